// Package gate judges whether a switch may begin: pure functions from what was
// measured to checks that say value, limit, whose limit it is, and what would
// make them pass. Who measures is package activities.
package gate

import (
	"cmp"
	"slices"
	"time"

	"drover/contract"
)

// Bound is a limit with where it comes from.
type Bound struct {
	Name   string // of its setting
	Value  time.Duration
	Source string // "default", "flag", a variable or a file
}

// Limits are the bounds of the gate, and the fence's deadline, which is printed
// with them.
type Limits struct {
	Lag           Bound // (1)
	Latency       Bound // (2)
	ElectionQuiet Bound // (4)
	SecondaryLag  Bound // (4)
	FenceDeadline Bound
}

// List gives all of them for a report.
func (l Limits) List() []contract.Limit {
	out := make([]contract.Limit, 0, 5)
	for _, b := range []Bound{l.Lag, l.Latency, l.ElectionQuiet, l.SecondaryLag, l.FenceDeadline} {
		out = append(out, contract.Limit{Name: b.Name, Value: b.Value.String(), Source: b.Source})
	}
	return out
}

// Report judges all checks together.
func Report(at time.Time, l Limits, open *contract.OpenWork, checks ...contract.Check) contract.GateReport {
	r := contract.GateReport{Go: true, At: at, Checks: checks, Limits: l.List(), Open: open}
	for _, c := range checks {
		r.Go = r.Go && c.OK
	}
	return r
}

// Together judges the legs of a split or merge, which switch at once: of each check the
// worst counts. Open is nil in a report whose source another one speaks of.
func Together(legs []contract.GateReport) contract.GateReport {
	r := legs[0]
	r.Checks = slices.Clone(r.Checks)
	for _, one := range legs[1:] {
		r.Go = r.Go && one.Go
		for _, c := range one.Checks {
			n := slices.IndexFunc(r.Checks, func(x contract.Check) bool { return x.Name == c.Name })
			if n < 0 { // only some legs have it
				r.Checks = append(r.Checks, c)
			} else if worse(c, r.Checks[n]) {
				r.Checks[n] = c
			}
		}
		r.Open, r.Before = openTogether(r.Open, one.Open), servedTogether(r.Before, one.Before)
	}
	return r
}

// worse reports whether a says more against a switch than b, of the same name.
func worse(a, b contract.Check) bool {
	rank := func(c contract.Check) int {
		switch {
		case !c.OK:
			return 3
		case c.Waived != "":
			return 2
		case c.Skipped == "":
			return 1
		}
		return 0
	}
	if rank(a) != rank(b) {
		return rank(a) > rank(b)
	}
	if a.Name == electionCheck { // for how long nobody was elected
		return a.Measured < b.Measured
	}
	return a.Measured > b.Measured
}

// ShownOpen is how many of the oldest open transactions and cursors are named.
const ShownOpen = 10

// openTogether counts what is open on two sources.
func openTogether(a, b *contract.OpenWork) *contract.OpenWork {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	sum := contract.OpenWork{
		Way: a.Way, Transactions: a.Transactions + b.Transactions, Cursors: a.Cursors + b.Cursors, Oldest: max(a.Oldest, b.Oldest),
		Items: slices.Concat(a.Items, b.Items),
	}
	slices.SortStableFunc(sum.Items, func(x, y contract.OpenItem) int { return cmp.Compare(y.Age, x.Age) })
	sum.Items = sum.Items[:min(ShownOpen, len(sum.Items))]
	return &sum
}

// servedTogether is how two sources serve: a switch is compared with the slower one.
func servedTogether(a, b *contract.Traffic) *contract.Traffic {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return &contract.Traffic{
		Proxies: max(a.Proxies, b.Proxies), Requests: a.Requests + b.Requests, Errors: a.Errors + b.Errors,
		P50MS: max(a.P50MS, b.P50MS), P99MS: max(a.P99MS, b.P99MS),
	}
}

// Names of checks that may be waived.
const (
	lagCheck         = "lag"
	latencyCheck     = "latency"
	electionCheck    = "election"
	secondariesCheck = "secondaries"
	openCheck        = "open"
)

// Sources of limits that no setting changes.
const (
	protocol = "protocol"
	policy   = "policy"
)

// fail is a check that could not be measured: it does not pass.
func fail(c contract.Check, err error) contract.Check {
	c.OK, c.Error, c.Value = false, err.Error(), "unknown: "+err.Error()
	return c
}

// skip is a check that has nothing to look at here.
func skip(c contract.Check, why string) contract.Check {
	c.OK, c.Skipped, c.Value = true, why, "not applicable: "+why
	return c
}

// within is a check of a duration against a bound.
func within(c contract.Check, d time.Duration, b Bound) contract.Check {
	c.Measured, c.Value, c.OK = milliseconds(d), round(d).String(), d <= b.Value
	return c
}

// bounded begins a check with a bound in it.
func bounded(number int, name string, b Bound) contract.Check {
	return contract.Check{
		Number: number, Name: name, Unit: "ms", Bound: milliseconds(b.Value), Limit: "at most " + b.Value.String(), LimitSource: b.Source,
	}
}

// none begins a check that counts what there must be none of.
func none(number int, name, limit string) contract.Check {
	return contract.Check{Number: number, Name: name, Unit: "count", Limit: limit, LimitSource: protocol}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// round keeps a duration readable.
func round(d time.Duration) time.Duration {
	if d >= 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond / 10)
}
