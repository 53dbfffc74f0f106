package remediation

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Slot is one member that a layout wants.
type Slot struct {
	Zone     string
	Instance string // empty: any
	Votes    int    // 0 or 1
	Priority float64
	Hidden   bool
	Delay    time.Duration
	Arbiter  bool
	OplogMB  int // 0: any
}

// Layout is how a shard is wanted to be.
type Layout struct {
	Name  string
	Slots []Slot
}

// Problem is one thing that is wrong with a layout.
type Problem struct{ Field, Reason string }

// LayoutError tells all that is wrong with a layout.
type LayoutError struct {
	Layout   string
	Problems []Problem
}

// Error implements error.
func (e *LayoutError) Error() string {
	errs := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		errs[i] = fmt.Errorf("layout %s: %s: %s", e.Layout, p.Field, p.Reason)
	}
	return errors.Join(errs...).Error()
}

// problems lists what mongod would refuse of one member's configuration.
func (s Slot) problems() []Problem {
	var found []Problem
	check := func(wrong bool, field, reason string) {
		if wrong {
			found = append(found, Problem{field, reason})
		}
	}
	check(s.Votes != 0 && s.Votes != 1, "votes", "must be 0 or 1")
	check(s.Priority < 0 || s.Priority > maxPriority, "priority", fmt.Sprintf("must be 0 to %d", maxPriority))
	check(s.Votes == 0 && s.Priority > 0, "priority", "must be 0 without a vote")
	check(s.Hidden && s.Priority > 0, "priority", "must be 0 for a hidden member")
	check(s.Delay > 0 && s.Priority > 0, "priority", "must be 0 for a delayed member")
	check(s.Delay < 0, "delay", "must not be negative")
	check(s.Arbiter && s.Priority > 0, "priority", "must be 0 for an arbiter")
	check(s.Arbiter && s.Votes != 1, "votes", "must be 1 for an arbiter")
	check(s.Arbiter && (s.Hidden || s.Delay > 0), "arbiter", "must be neither hidden nor delayed")
	return found
}

// Validate refuses a layout that no set can have, telling every problem with
// its field.
func (l Layout) Validate() error {
	var found []Problem
	voters, electable, arbiters := 0, 0, 0
	for i, s := range l.Slots {
		for _, p := range s.problems() {
			found = append(found, Problem{fmt.Sprintf("slots[%d].%s", i, p.Field), p.Reason})
		}
		if s.Zone == "" {
			found = append(found, Problem{fmt.Sprintf("slots[%d].zone", i), "must be named"})
		}
		if s.OplogMB != 0 && (s.OplogMB < 990 || s.Arbiter) {
			found = append(found, Problem{fmt.Sprintf("slots[%d].oplog_mb", i), "must be at least 990, and 0 for an arbiter"})
		}
		voters += s.Votes
		if s.Priority > 0 {
			electable++
		}
		if s.Arbiter {
			arbiters++
		}
	}
	check := func(wrong bool, field, reason string) {
		if wrong {
			found = append(found, Problem{field, reason})
		}
	}
	check(l.Name == "", "name", "must be given")
	check(len(l.Slots) == 0 || len(l.Slots) > maxMembers, "slots", fmt.Sprintf("must be 1 to %d", maxMembers))
	check(voters > maxVoters, "slots", fmt.Sprintf("%d votes: a set has at most %d", voters, maxVoters))
	check(electable == 0, "slots", "nobody can be elected: one needs a vote and a priority above 0")
	check(arbiters > 1, "slots", "more than one arbiter: with two, data that a majority acknowledged may be on one node only")
	if len(found) > 0 {
		return &LayoutError{Layout: l.Name, Problems: found}
	}
	return nil
}

// Wanted is the layout of one shard.
type Wanted struct {
	Shard  string
	Layout Layout
}

// Index gives the layout of each shard. It refuses a layout that cannot be, and
// a second one for the same shard.
func Index(wanted []Wanted) (map[string]Layout, error) {
	var errs []error
	byShard := map[string]Layout{}
	for _, w := range wanted {
		if err := w.Layout.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("shard %s: %w", w.Shard, err))
		}
		if other, twice := byShard[w.Shard]; twice {
			errs = append(errs, fmt.Errorf("shard %s: two layouts, %s and %s", w.Shard, other.Name, w.Layout.Name))
		}
		byShard[w.Shard] = w.Layout
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return byShard, nil
}

// fits reports whether a machine of the given place may hold the slot's member.
func (s *Slot) fits(zone, instance string) bool {
	return s.Zone == zone && (s.Instance == "" || s.Instance == instance)
}

// met reports whether m is what s wants.
func (s *Slot) met(m *Member) bool {
	return m.State == Healthy && s.fits(m.Zone, m.Instance) && s.Arbiter == m.Arbiter && s.Votes == m.Votes &&
		s.Priority == m.Priority && s.Hidden == m.Hidden && s.Delay == m.Delay && s.rightOplog(m)
}

// rightOplog reports whether m's oplog has the wanted size.
func (s *Slot) rightOplog(m *Member) bool {
	return s.OplogMB == 0 || m.Arbiter || s.OplogMB == m.OplogMB
}

// Healthy gives the members that meet the layout, named by name(i), the one of
// the highest priority as primary.
func (l Layout) Healthy(name func(i int) string) Vertex {
	var v Vertex
	for i, s := range l.Slots {
		v.Members = append(v.Members, Member{
			Host: name(i), Zone: s.Zone, Instance: s.Instance, Votes: s.Votes, Priority: s.Priority,
			Hidden: s.Hidden, Delay: s.Delay, Arbiter: s.Arbiter, OplogMB: s.OplogMB,
		})
	}
	v.settle()
	return v
}

// zones lists the layout's zones in order.
func (l Layout) zones() []string {
	var zones []string
	for _, s := range l.Slots {
		if !slices.Contains(zones, s.Zone) {
			zones = append(zones, s.Zone)
		}
	}
	slices.Sort(zones)
	return zones
}
