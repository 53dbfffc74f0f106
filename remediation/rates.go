package remediation

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Rates bound how much of a fleet is remediated at once.
type Rates struct {
	AtOnce  int           `json:"atOnce"`  // shards under remediation at the same time
	PerHour int           `json:"perHour"` // weight of the plans that are started within an hour
	Settle  time.Duration `json:"settle"`  // how long a shard must have been unhealthy
}

// DefaultRates let a dozen rebuilds start in an hour.
var DefaultRates = Rates{AtOnce: 10, PerHour: 400, Settle: 5 * time.Minute}

// Candidate is a shard whose plan has steps. Shards of one failure domain are
// never remediated at the same time; those that name none share one.
type Candidate struct {
	Shard  string    `json:"shard"`
	Domain string    `json:"domain"`
	Health Health    `json:"health"`
	Since  time.Time `json:"since"` // when it was first seen unhealthy
	Cost   int       `json:"cost"`
}

// Started is a remediation that was started.
type Started struct {
	Shard   string    `json:"shard"`
	Domain  string    `json:"domain"`
	At      time.Time `json:"at"`
	Cost    int       `json:"cost"`
	Ended   bool      `json:"ended"`
	Waiting bool      `json:"waiting,omitempty"` // for the lease
}

// The reasons for which a candidate is held.
const (
	HeldSettle  = "settle"   // unhealthy for too short a time
	HeldRunning = "running"  // under remediation already
	HeldAtOnce  = "at-once"  // as many shards as may be are under remediation
	HeldDomain  = "domain"   // another shard of its failure domain is under remediation
	HeldPerHour = "per-hour" // the hour's budget is used up
)

// Held is a candidate that may not go on, and why.
type Held struct {
	Shard  string `json:"shard"`
	Reason string `json:"reason"`
}

// Admit chooses those that may start now: the worst health first, then the
// longest unhealthy. Started must hold all that run and all of the last hour. A
// plan that is dearer than a whole hour's budget starts when the hour is unused.
func (l Rates) Admit(now time.Time, candidates []Candidate, started []Started) (admitted []Candidate, held []Held) {
	running, spent := 0, 0
	domains, shards := map[string]bool{}, map[string]bool{}
	for _, s := range started {
		if !s.Ended {
			running++
			domains[s.Domain], shards[s.Shard] = true, true
		}
		if now.Sub(s.At) < time.Hour {
			spent += s.Cost
		}
	}
	ordered := slices.Clone(candidates)
	slices.SortStableFunc(ordered, func(a, b Candidate) int {
		return cmp.Or(a.Health.Compare(b.Health), a.Since.Compare(b.Since), cmp.Compare(a.Shard, b.Shard))
	})
	for _, c := range ordered {
		reason := ""
		switch {
		case shards[c.Shard]:
			reason = HeldRunning
		case now.Sub(c.Since) < l.Settle:
			reason = HeldSettle
		case running >= l.AtOnce:
			reason = HeldAtOnce
		case domains[c.Domain]:
			reason = HeldDomain
		case spent > 0 && spent+c.Cost > l.PerHour:
			reason = HeldPerHour
		}
		if reason != "" {
			held = append(held, Held{Shard: c.Shard, Reason: reason})
			continue
		}
		admitted = append(admitted, c)
		running, spent = running+1, spent+c.Cost
		domains[c.Domain], shards[c.Shard] = true, true
	}
	return admitted, held
}

// Validate refuses limits that would let nothing or everything through.
func (l Rates) Validate() error {
	if l.AtOnce < 1 || l.PerHour < 1 || l.Settle < 0 {
		return fmt.Errorf("rates %+v: at-once and per-hour must be at least 1, settle not negative", l)
	}
	return nil
}
