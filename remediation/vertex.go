// Package remediation plans the way of a shard (a MongoDB replica set) from any
// broken configuration back to health. A configuration is a vertex, an
// operation an edge; the planner looks for the fewest operations to full
// health, or the cheapest way to the best health that can be reached. It does
// no I/O: what performs an operation uses the same type that predicts it.
package remediation

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// State is what a member does.
type State uint8

// The states of a member.
const (
	Healthy    State = iota // primary, or a secondary that is caught up (a delayed one: to its delay)
	Lagging                 // replicates, but is behind
	Stalled                 // answers, but its optime or its report does not move
	Recovering              // on its way back by itself, serves nothing yet
	Down                    // does not answer; its machine is there
	Rebuilding              // initial sync is under way
	Lost                    // its machine is gone: only another one helps
)

// String names the state as plans show it.
func (s State) String() string {
	names := [...]string{"healthy", "lagging", "stalled", "recovering", "down", "rebuilding", "lost"}
	if int(s) >= len(names) {
		return fmt.Sprintf("state(%d)", uint8(s))
	}
	return names[s]
}

// comesBack reports whether waiting helps.
func (s State) comesBack() bool { return s == Lagging || s == Recovering || s == Rebuilding }

// Member is one node of a replica set as its configuration and its status show it.
type Member struct {
	Host     string // names the member; all else being equal, members are interchangeable
	Zone     string
	Instance string // the kind of machine
	State    State
	Votes    int // 0 or 1
	Priority float64
	Hidden   bool
	Delay    time.Duration
	Arbiter  bool
	OplogMB  int
	Primary  bool
}

// electable reports whether m may be elected as it is.
func (m *Member) electable() bool { return m.State == Healthy && m.Votes == 1 && m.Priority > 0 }

// holdsData reports whether m is a copy that others can be made from.
func (m *Member) holdsData() bool { return !m.Arbiter && m.State == Healthy }

// compareMembers orders members by everything but their names.
func compareMembers(a, b *Member) int {
	return cmp.Or(
		strings.Compare(a.Zone, b.Zone),
		strings.Compare(a.Instance, b.Instance),
		cmp.Compare(a.State, b.State),
		cmp.Compare(a.Votes, b.Votes),
		cmp.Compare(a.Priority, b.Priority),
		cmp.Compare(a.Delay, b.Delay),
		cmp.Compare(a.OplogMB, b.OplogMB),
		cmp.Compare(flags(a), flags(b)),
	)
}

// flags packs the yes-or-no attributes of m.
func flags(m *Member) uint64 {
	var f uint64
	for i, set := range [...]bool{m.Hidden, m.Arbiter, m.Primary} {
		if set {
			f |= 1 << i
		}
	}
	return f
}

// Spare is a machine on which a member can be built.
type Spare struct {
	Host     string
	Zone     string
	Instance string
}

// Vertex is a shard's configuration and state, and the machines that it may use.
type Vertex struct {
	Members []Member
	Spares  []Spare
}

// clone copies v so that one member more fits.
func (v Vertex) clone() Vertex {
	members := make([]Member, len(v.Members), len(v.Members)+1)
	copy(members, v.Members)
	return Vertex{Members: members, Spares: v.Spares}
}

// index gives the place of a host among the members, -1 when it is none.
func (v Vertex) index(host string) int {
	for i := range v.Members {
		if v.Members[i].Host == host {
			return i
		}
	}
	return -1
}

// spare gives the place of a host among the spares, -1 when it is none.
func (v Vertex) spare(host string) int {
	return slices.IndexFunc(v.Spares, func(s Spare) bool { return s.Host == host })
}

// primary gives the place of the primary, -1 when there is none.
func (v Vertex) primary() int {
	for i := range v.Members {
		if v.Members[i].Primary {
			return i
		}
	}
	return -1
}

// votes counts all votes and those of healthy members.
func (v Vertex) votes() (all, healthy int) {
	for i := range v.Members {
		if m := &v.Members[i]; m.Votes == 1 {
			all++
			if m.State == Healthy {
				healthy++
			}
		}
	}
	return all, healthy
}

// majority is how many of n votes decide.
func majority(n int) int { return n/2 + 1 }

// HasMajority reports whether healthy members alone have a majority of the votes.
func (v Vertex) HasMajority() bool {
	all, healthy := v.votes()
	return healthy >= majority(all)
}

// Writable reports whether a healthy primary has a healthy majority.
func (v Vertex) Writable() bool {
	p := v.primary()
	return p >= 0 && v.Members[p].State == Healthy && v.HasMajority()
}

// heir gives the member that wins the next election: the highest priority, the
// present primary among equals, and then an order that no name decides. It is
// -1 when nobody can win.
func (v Vertex) heir() int {
	if !v.HasMajority() {
		return -1
	}
	best := -1
	for i := range v.Members {
		m := &v.Members[i]
		if !m.electable() {
			continue
		}
		if best < 0 || m.Priority > v.Members[best].Priority {
			best = i
			continue
		}
		b := &v.Members[best]
		if m.Priority == b.Priority && !b.Primary && (m.Primary || compareMembers(m, b) < 0) {
			best = i
		}
	}
	return best
}

// election gives the winner of the election that is due, -1 when none is: a set
// without a primary elects one, and a healthy member of higher priority takes
// over.
func (v Vertex) election() int {
	p, h := v.primary(), v.heir()
	if h < 0 || h == p || p >= 0 && v.Members[h].Priority <= v.Members[p].Priority {
		return -1
	}
	return h
}

// settle lets the election happen that is due.
func (v Vertex) settle() {
	if h := v.election(); h >= 0 {
		v.makePrimary(h)
	}
}

// makePrimary hands the primary's office to member i.
func (v Vertex) makePrimary(i int) {
	for j := range v.Members {
		v.Members[j].Primary = j == i
	}
}

// Limits of a replica set.
const (
	maxMembers  = 50
	maxVoters   = 7
	maxPriority = 1000
)

// Validate refuses what no replica set can look like, for example two primaries
// seen at once: such a view is read again, not acted upon. It tells every
// problem.
func (v Vertex) Validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if n := len(v.Members); n == 0 || n > maxMembers {
		refuse("%d members: a set has 1 to %d", n, maxMembers)
	}
	seen := map[string]bool{}
	primaries, voters := 0, 0
	for i := range v.Members {
		m := &v.Members[i]
		if m.Host == "" || seen[m.Host] {
			refuse("host %q: empty or used twice", m.Host)
		}
		seen[m.Host] = true
		voters += m.Votes
		if m.Primary {
			primaries++
			if m.State != Healthy && m.State != Stalled {
				refuse("%s: primary but %s", m.Host, m.State)
			}
		}
		for _, p := range (Slot{Votes: m.Votes, Priority: m.Priority, Hidden: m.Hidden, Delay: m.Delay, Arbiter: m.Arbiter}).problems() {
			refuse("%s: %s: %s", m.Host, p.Field, p.Reason)
		}
		if m.Primary && (m.Priority == 0 || m.Votes == 0) {
			refuse("%s: primary but not electable", m.Host)
		}
	}
	for _, s := range v.Spares {
		if s.Host == "" || seen[s.Host] {
			refuse("spare %q: empty or used twice", s.Host)
		}
		seen[s.Host] = true
	}
	if primaries > 1 {
		refuse("%d primaries at once", primaries)
	}
	if voters > maxVoters {
		refuse("%d votes: a set has at most %d", voters, maxVoters)
	}
	return errors.Join(errs...)
}
