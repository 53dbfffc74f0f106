package remediation

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"drover/internal/failure"
)

// Machine is one machine that the inventory knows: the zone and kind of a member,
// or of a spare.
type Machine struct {
	Host     string
	Zone     string
	Instance string
	Gone     bool // the machine does not exist any more
}

// View is what one member tells of its set.
type View struct {
	Host    string // the member that was asked, as the configuration names it
	Set     string
	Config  Config
	Term    int64
	Now     time.Time // its clock
	Sights  []Sight
	OplogMB int // 0: unknown
	// Uncommitted tells, of a primary, that a majority does not have its
	// configuration yet: another primary may still take it back.
	Uncommitted bool
}

// Config is a configuration as a member holds it.
type Config struct {
	Term    int64
	Version int64
	Members []Configured
}

// newer reports whether c was made after o.
func (c *Config) newer(o *Config) bool {
	return cmp.Or(cmp.Compare(c.Term, o.Term), cmp.Compare(c.Version, o.Version)) > 0
}

// Configured is a member as the configuration has it.
type Configured struct {
	Host     string
	Votes    int
	Priority float64
	Hidden   bool
	Delay    time.Duration
	Arbiter  bool
}

// Sight is how one member sees another, or itself.
type Sight struct {
	Host   string
	State  string // as replSetGetStatus names it: PRIMARY, SECONDARY, STARTUP2...
	Up     bool
	Optime time.Time // of the last operation it has
	Heard  time.Time // the last heartbeat; zero for itself
}

// Limits are the times after which an observer loses patience.
type Limits struct {
	CaughtUp   time.Duration // a secondary at most so far behind is healthy; 10 s
	Stalled    time.Duration // an optime or report that does not move for so long is stalled; 60 s
	ComingBack time.Duration // what is recovering or copying for so long without an end does not come back; 24 h
}

// withDefaults fills in what is 0.
func (l Limits) withDefaults() Limits {
	return Limits{
		CaughtUp: cmp.Or(l.CaughtUp, 10*time.Second), Stalled: cmp.Or(l.Stalled, time.Minute), ComingBack: cmp.Or(l.ComingBack, 24*time.Hour),
	}
}

// Observer turns what members tell into a vertex. It remembers since when a
// member has not moved, so it is used for one shard and for one view after the
// other. The zero value has the default limits.
type Observer struct {
	Limits Limits
	// Moved is what is remembered, by host. Who keeps it and gives it to the next
	// observer of the shard lets patience outlive a process.
	Moved map[string]Movement
}

// Movement is since when a member is as it is. Times are the set's own.
type Movement struct {
	State  State     `json:"state"`
	Optime time.Time `json:"optime"` // of the last operation it has
	Since  time.Time `json:"since"`  // when state and optime were first like this
	Clock  time.Time `json:"clock"`  // what its report says that the time is
	Ticked time.Time `json:"ticked"` // when that was first so, by the others' clocks
}

// unreadable refuses a view of a shard, naming field and reason. Reading again
// may help where something else than the question was wrong.
func unreadable(kind failure.Kind, code, field, format string, args ...any) error {
	return failure.New(kind, code, "%s: %s", field, fmt.Sprintf(format, args...))
}

// Vertex judges the views that were given together. It refuses what nobody may
// act upon: a foreign set, too few witnesses, a member that only we cannot reach,
// a host that the inventory does not know, a view that cannot be.
func (o *Observer) Vertex(set string, views []View, inventory []Machine) (Vertex, error) {
	l, err := newLook(set, views, inventory)
	if err != nil {
		return Vertex{}, err
	}
	l.limits = o.Limits.withDefaults()
	var v Vertex
	moved := map[string]Movement{}
	for _, c := range l.config.Members {
		m := Member{Host: c.Host, Votes: c.Votes, Priority: c.Priority, Hidden: c.Hidden, Delay: c.Delay, Arbiter: c.Arbiter}
		machine, known := l.machines[c.Host]
		if !known {
			return v, unreadable(failure.Invalid, "remediation.unknown_machine", "members."+c.Host, "the inventory does not know this host")
		}
		m.Zone, m.Instance, m.Primary = machine.Zone, machine.Instance, c.Host == l.primary
		if own := l.own(c.Host); own != nil {
			m.OplogMB = own.OplogMB
		}
		state, err := l.state(c, machine)
		if err != nil {
			return v, err
		}
		moved[c.Host] = l.move(o.Moved[c.Host], c.Host, state)
		m.State = l.patience(moved[c.Host], c.Host, m.Primary)
		m.Primary = m.Primary && (m.State == Healthy || m.State == Stalled)
		v.Members = append(v.Members, m)
	}
	o.Moved = moved
	for _, x := range inventory {
		if !x.Gone && v.index(x.Host) < 0 {
			v.Spares = append(v.Spares, Spare{Host: x.Host, Zone: x.Zone, Instance: x.Instance})
		}
	}
	if err := v.Validate(); err != nil {
		return v, failure.New(failure.Transient, "remediation.impossible_view", "members: %w", err)
	}
	return v, nil
}

// look is one reading of a shard.
type look struct {
	views    []View
	machines map[string]Machine
	config   Config    // the newest
	primary  string    // empty: none
	now      time.Time // the middle of the members' clocks: one that is wrong does not count
	optime   time.Time // the newest that anybody has
	limits   Limits
}

// newLook refuses views that tell of no set, or of another one.
func newLook(set string, views []View, inventory []Machine) (*look, error) {
	l := &look{views: views, machines: map[string]Machine{}}
	for _, m := range inventory {
		l.machines[m.Host] = m
	}
	var term int64 = -1
	for i := range views {
		v := &views[i]
		if v.Set != set {
			return nil, unreadable(failure.Invalid, "remediation.foreign_set", "set", "%s says that it is of set %q, not of %q", v.Host, v.Set, set)
		}
		if v.Config.newer(&l.config) {
			l.config = v.Config
		}
		for _, s := range v.Sights {
			if s.Optime.After(l.optime) {
				l.optime = s.Optime
			}
			if s.Host == v.Host && s.State == "PRIMARY" && v.Term > term {
				l.primary, term = v.Host, v.Term // one of an older term has not heard of its end
			} else if s.Host == v.Host && s.State == "PRIMARY" && v.Term == term {
				return nil, unreadable(failure.Transient, "remediation.impossible_view", "members", "%s and %s are both primary of term %d", l.primary, v.Host, term)
			}
		}
	}
	l.now = l.clock("")
	data := 0
	for _, c := range l.config.Members {
		data += number(!c.Arbiter)
	}
	l.views = slices.DeleteFunc(slices.Clone(views), func(v View) bool {
		return !slices.ContainsFunc(l.config.Members, func(c Configured) bool { return c.Host == v.Host })
	})
	if len(l.views) == 0 || len(l.views) < min(2, data) {
		return nil, unreadable(failure.Transient, "remediation.unreachable", "members", "%d of %d members answer; the word of one is not enough", len(l.views), len(l.config.Members))
	}
	return l, nil
}

// clock gives the middle of the clocks of all but one member; of two that differ
// the earlier one, by which nobody has stood still for longer than is true.
func (l *look) clock(but string) time.Time {
	var all []time.Time
	for i := range l.views {
		if l.views[i].Host != but {
			all = append(all, l.views[i].Now)
		}
	}
	if len(all) == 0 {
		return time.Time{}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all[(len(all)-1)/2]
}

// own gives what a host says of itself, nil when it did not answer.
func (l *look) own(host string) *View {
	for i := range l.views {
		if l.views[i].Host == host {
			return &l.views[i]
		}
	}
	return nil
}

// sight gives how a view sees a host.
func (v *View) sight(host string) Sight {
	for _, s := range v.Sights {
		if s.Host == host {
			return s
		}
	}
	return Sight{}
}

// upFor counts the others that see a host, and all that have an opinion.
func (l *look) upFor(host string) (up, all int) {
	for i := range l.views {
		if v := &l.views[i]; v.Host != host {
			all++
			up += number(v.sight(host).Up)
		}
	}
	return up, all
}

// seenAs gives what the first of the others that sees a host takes it for.
func (l *look) seenAs(host string) string {
	for i := range l.views {
		if s := l.views[i].sight(host); l.views[i].Host != host && s.Up {
			return s.State
		}
	}
	return ""
}

// state judges one member by this look alone.
func (l *look) state(c Configured, m Machine) (State, error) {
	up, all := l.upFor(c.Host)
	own := l.own(c.Host)
	switch {
	case m.Gone:
		return Lost, nil
	case own == nil && 2*up <= all:
		return Down, nil
	case c.Arbiter:
		return Healthy, nil // it has no users, so nobody can ask it; the others see it
	case own == nil && l.seenAs(c.Host) == "STARTUP2":
		return Rebuilding, nil // it has no users yet, so nobody can ask it
	case own == nil && l.seenAs(c.Host) != "SECONDARY" && l.seenAs(c.Host) != "PRIMARY":
		return Recovering, nil
	case own == nil:
		return 0, unreadable(failure.Transient, "remediation.out_of_reach", "members."+c.Host, "its set sees it and we do not: what is wrong is between it and us")
	case all > 0 && 2*up <= all && len(l.config.Members) > 1:
		return Recovering, nil // cut off from the others
	}
	return l.reported(c, own), nil
}

// reported judges a member that answers.
func (l *look) reported(c Configured, own *View) State {
	self := own.sight(c.Host)
	switch self.State {
	case "PRIMARY":
		return Healthy
	case "SECONDARY":
		if l.deaf(own) {
			return Stalled
		}
		if l.optime.Sub(self.Optime)-c.Delay > l.limits.CaughtUp {
			return Lagging
		}
		return Healthy
	case "STARTUP2":
		return Rebuilding
	default: // STARTUP, RECOVERING, ROLLBACK, REMOVED
		return Recovering
	}
}

// deaf reports whether a member that the others hear has heard nobody for too
// long, by its own clock.
func (l *look) deaf(own *View) bool {
	others := 0
	for _, s := range own.Sights {
		if s.Host == own.Host {
			continue
		}
		others++
		if own.Now.Sub(s.Heard) <= l.limits.Stalled {
			return false
		}
	}
	return others > 0
}

// move notes since when a member is as it is, and since when it says the same.
func (l *look) move(before Movement, host string, s State) Movement {
	m := Movement{State: s, Since: l.now, Ticked: l.clock(host)}
	if own := l.own(host); own != nil {
		m.Optime, m.Clock = own.sight(host).Optime, own.Now
		if before.Clock.Equal(m.Clock) && !before.Ticked.IsZero() {
			m.Ticked = before.Ticked
		}
	}
	if before.Since.IsZero() || before.State != s || s != Rebuilding && s != Recovering && !before.Optime.Equal(m.Optime) {
		return m
	}
	m.Since = before.Since
	return m
}

// patience turns what has not moved for too long into what waiting does not help.
func (l *look) patience(m Movement, host string, primary bool) State {
	still, own := l.now.Sub(m.Since), l.own(host)
	switch {
	case own != nil && m.State == Healthy && l.clock(host).Sub(m.Ticked) > l.limits.Stalled:
		return Stalled // it answers, and repeats an old report
	case primary && m.State == Healthy && m.Clock.Sub(m.Optime) > l.limits.Stalled:
		return Stalled // a primary writes at least a no-op every ten seconds
	case m.State == Lagging && still >= l.limits.Stalled:
		return Stalled
	case (m.State == Rebuilding || m.State == Recovering) && still >= l.limits.ComingBack:
		return Stalled
	default:
		return m.State
	}
}
