package remediation

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
	"drover/internal/stoppoint"
)

// paper is a shard on paper: it is as its vertex says, and hands change that.
type paper struct {
	v       Vertex
	gone    []Machine
	now     time.Time
	refuse  error                     // of the next change
	ignore  bool                      // changes are acknowledged and do not take
	onPause func(p *paper)            // what happens while time passes
	mend    map[string]int            // readings until a copy is made
	views   func(views []View) []View // what comes of the readings
	calls   []string
}

// newPaper starts from a vertex.
func newPaper(v Vertex) *paper {
	return &paper{v: v, now: time.UnixMilli(1_800_000_000_000), mend: map[string]int{}}
}

// Set implements [Shard].
func (p *paper) Set() string { return "rs" }

// Inventory implements [Shard].
func (p *paper) Inventory(context.Context) ([]Machine, error) {
	all := slices.Clone(p.gone)
	for _, m := range p.v.Members {
		all = append(all, Machine{Host: m.Host, Zone: m.Zone, Instance: m.Instance, Gone: m.State == Lost})
	}
	for _, s := range p.v.Spares {
		all = append(all, Machine{Host: s.Host, Zone: s.Zone, Instance: s.Instance})
	}
	return all, nil
}

// Pause implements [Shard]: copies come nearer to their end.
func (p *paper) Pause(_ context.Context, d time.Duration) error {
	p.now = p.now.Add(d)
	for host, n := range p.mend {
		if p.mend[host] = n - 1; n <= 1 {
			if i := p.v.index(host); i >= 0 {
				p.v.Members[i].State = Healthy
			}
			delete(p.mend, host)
		}
	}
	p.v.settle()
	if p.onPause != nil {
		p.onPause(p)
	}
	return nil
}

// Look implements [Shard].
func (p *paper) Look(context.Context) ([]View, error) {
	var views []View
	var cfg Config
	cfg.Term, cfg.Version = 1, 1
	for _, m := range p.v.Members {
		cfg.Members = append(cfg.Members, Configured{Host: m.Host, Votes: m.Votes, Priority: m.Priority, Hidden: m.Hidden, Delay: m.Delay, Arbiter: m.Arbiter})
	}
	for _, m := range p.v.Members {
		if m.State == Down || m.State == Lost || m.Arbiter {
			continue
		}
		view := View{Host: m.Host, Set: "rs", Config: cfg, Term: 1, Now: p.now, OplogMB: m.OplogMB}
		for _, o := range p.v.Members {
			view.Sights = append(view.Sights, p.sight(m, o))
		}
		views = append(views, view)
	}
	if p.views != nil {
		views = p.views(views)
	}
	return views, nil
}

// sight is how from sees a member.
func (p *paper) sight(from, o Member) Sight {
	s := Sight{Host: o.Host, Up: o.State != Down && o.State != Lost, State: "SECONDARY", Optime: p.now, Heard: p.now}
	switch {
	case o.Primary && o.State == Stalled:
		s.State, s.Optime = "PRIMARY", p.now.Add(-time.Hour)
	case o.Primary:
		s.State = "PRIMARY"
	case o.Arbiter:
		s.State = "ARBITER"
	case o.State == Lagging:
		s.Optime = p.now.Add(-30 * time.Second)
	case o.State == Recovering:
		s.State = "RECOVERING"
	case o.State == Rebuilding:
		s.State = "STARTUP2"
	}
	if from.State == Stalled && !from.Primary {
		s.Heard = p.now.Add(-time.Hour)
	}
	return s
}

// take notes a call and tells whether it takes.
func (p *paper) take(call string) (bool, error) {
	p.calls = append(p.calls, call)
	err := p.refuse
	p.refuse = nil
	return err == nil && !p.ignore, err
}

// Reconfigure implements [Hands].
func (p *paper) Reconfigure(_ context.Context, e Edit) error {
	ok, err := p.take("reconfigure")
	if !ok {
		return err
	}
	for _, m := range e.Set {
		at := &p.v.Members[p.v.index(m.Host)]
		at.Votes, at.Priority, at.Hidden, at.Delay = m.Votes, m.Priority, m.Hidden, m.Delay
	}
	for _, m := range e.Add {
		p.v.takeSpare(m.Host)
		if !m.Arbiter {
			m.State, p.mend[m.Host] = Rebuilding, 5
		}
		p.v.Members = append(p.v.Members, m)
	}
	for _, host := range e.Remove {
		i := p.v.index(host)
		old := p.v.Members[i]
		p.v.Members = slices.Delete(p.v.Members, i, i+1)
		p.v.release(&old)
	}
	return nil
}

// StepDown implements [Hands].
func (p *paper) StepDown(_ context.Context, _, to string) error {
	ok, err := p.take("step-down")
	if ok {
		p.v.makePrimary(p.v.index(to))
	}
	return err
}

// ResizeOplog implements [Hands].
func (p *paper) ResizeOplog(_ context.Context, host string, mb int) error {
	ok, err := p.take("resize")
	if ok {
		p.v.Members[p.v.index(host)].OplogMB = mb
	}
	return err
}

// Rebuild implements [Hands].
func (p *paper) Rebuild(_ context.Context, b Build) error {
	ok, err := p.take("rebuild " + b.Host + " from " + b.Source)
	if ok {
		m := &p.v.Members[p.v.index(b.Host)]
		m.State, p.mend[b.Host] = Rebuilding, 5
		if b.OplogMB > 0 {
			m.OplogMB = b.OplogMB
		}
	}
	return err
}

// Provision implements [Hands].
func (p *paper) Provision(context.Context, Build) error { return nil }

// Release implements [Hands].
func (p *paper) Release(context.Context, string) error { return nil }

// executor works on a paper shard.
func executor(t *testing.T, l Layout, p *paper) *Executor {
	t.Helper()

	return &Executor{Planner: planner(t, l), Shard: p, Execute: true}
}

// broken is a set of three whose h1 is down.
func broken(t *testing.T) (Layout, *paper) {
	t.Helper()

	l := layout(t, "3-abc-[2 1 1]")
	v := l.Healthy(Hosts)
	v.Members[1].State = Down
	return l, newPaper(v)
}

func TestExecuteBringsTheShardToItsLayout(t *testing.T) {
	t.Parallel()

	l, p := broken(t)
	e := executor(t, l, p)
	var reports int
	e.Report = func(context.Context, Progress) error { reports++; return nil }
	out, err := e.Run(t.Context())
	require.NoError(t, err)
	require.True(t, out.Full)
	require.Zero(t, out.Replans)
	require.Len(t, out.Done, 5)
	require.Equal(t, []string{"reconfigure", "reconfigure", "rebuild h1 from h2", "reconfigure", "reconfigure"}, p.calls)
	require.Greater(t, reports, 5)

	l, p = broken(t)
	dry := executor(t, l, p)
	dry.Execute = false
	same, err := dry.Run(t.Context())
	require.NoError(t, err)
	require.Empty(t, p.calls, "a dry run touches nothing")
	require.Equal(t, out.Done, same.Done)
	require.Equal(t, out.To, same.To)
	require.True(t, same.DryRun)
}

// A member that dies in the middle of a plan makes the rest of it void.
func TestExecutePlansAgainWhenTheShardIsAnother(t *testing.T) {
	t.Parallel()

	l := layout(t, "5-abcde-[1 1 1 1 1]")
	v := l.Healthy(Hosts)
	v.Members[1].State = Down
	p := newPaper(v)
	p.onPause = func(p *paper) { p.v.Members[2].State, p.onPause = Down, nil }
	out, err := executor(t, l, p).Run(t.Context())
	require.NoError(t, err)
	require.True(t, out.Full)
	require.Positive(t, out.Replans)
	require.Contains(t, p.calls, "rebuild h2 from h1")
	copies := slices.DeleteFunc(p.calls, func(c string) bool { return c != "rebuild h1 from h2" })
	require.Len(t, copies, 1, "the copy that was under way is waited for, not begun again")
}

func TestExecuteDoesNotPushOn(t *testing.T) {
	t.Parallel()

	l, p := broken(t)
	p.refuse = errors.New("another change came between")
	out, err := executor(t, l, p).Run(t.Context())
	require.NoError(t, err)
	require.True(t, out.Full)
	require.Equal(t, 1, out.Replans)

	l, p = broken(t)
	p.ignore = true
	e := executor(t, l, p)
	e.MaxReplans = 3
	_, err = e.Run(t.Context())
	require.True(t, failure.HasCode(err, "remediation.unsettled"), "%v", err)
	require.ErrorContains(t, err, "h1: priority is 1 instead of 0")
	require.Len(t, p.calls, 4, "the next step is never begun on a shard that is not as predicted")

	l, p = broken(t)
	p.refuse = failure.New(failure.Invalid, "remediation.no_rebuilder", "nothing rebuilds")
	_, err = executor(t, l, p).Run(t.Context())
	require.True(t, failure.HasCode(err, "remediation.no_rebuilder"), "%v", err)
}

// Whoever dies, before the change or after it, the next executor finishes.
func TestExecuteResumesAfterACrash(t *testing.T) {
	t.Parallel()

	for _, place := range []string{StopBefore, StopAfter} {
		for n := range 5 {
			l, p := broken(t)
			e, passed := executor(t, l, p), 0
			crash := errors.New("crash")
			e.Stops = stoppoint.New(func(_ context.Context, name string) error {
				if name != place {
					return nil
				}
				if passed++; passed == n+1 {
					return crash
				}
				return nil
			})
			_, err := e.Run(t.Context())
			require.ErrorIs(t, err, crash)
			out, err := executor(t, l, p).Run(t.Context())
			require.NoError(t, err)
			require.True(t, out.Full, "%s of step %d", place, n)
			require.Len(t, slices.DeleteFunc(p.calls, func(c string) bool { return c != "rebuild h1 from h2" }), 1, "%s of step %d", place, n)
		}
	}
}

// What does not move is stalled after a while, and then rebuilt; until then it is
// waited for.
func TestWhatDoesNotMoveIsNotWaitedForWithoutEnd(t *testing.T) {
	t.Parallel()

	l := layout(t, "3-abc-[1 1 1]")
	v := l.Healthy(Hosts)
	v.Members[2].State = Lagging
	p := newPaper(v)
	frozen := p.now.Add(-time.Minute)
	p.views = func(views []View) []View {
		for i := range views {
			for j := range views[i].Sights {
				if s := &views[i].Sights[j]; s.Host == "h2" && p.v.Members[2].State == Lagging {
					s.Optime = frozen
				}
			}
		}
		return views
	}
	out, err := executor(t, l, p).Run(t.Context())
	require.NoError(t, err)
	require.True(t, out.Full)
	require.Contains(t, p.calls, "rebuild h2 from h1")
	require.Equal(t, 1, out.Replans, "one plan waited, the next one rebuilt")
}

// A destroying step is refused where the others alone have no majority, whatever
// the operation's own preconditions say.
func TestDestroyingNeedsAMajorityElsewhere(t *testing.T) {
	t.Parallel()

	require.True(t, Destroys(Rebuild{}) && Destroys(Replace{}) && Destroys(Remove{}))
	require.False(t, Destroys(Add{}))
	l := layout(t, "3-abc-[1 1 1]")
	v := l.Healthy(Hosts)
	require.True(t, v.majorityElsewhere("h0"))
	v.Members[1].State = Down
	require.False(t, v.majorityElsewhere("h0"))
	require.True(t, v.majorityElsewhere("h1"))
}

// Readings that nobody may act upon name the field and the reason.
func TestReadingsThatAreRefused(t *testing.T) {
	t.Parallel()

	for want, edit := range map[string]func(p *paper, v []View) []View{
		`remediation.foreign_set: set: h1 says that it is of set "other"`:            func(_ *paper, v []View) []View { v[1].Set = "other"; return v },
		"remediation.unreachable: members: 0 of 0 members answer":                    func(*paper, []View) []View { return nil },
		"remediation.unreachable: members: 1 of 3 members answer":                    func(_ *paper, v []View) []View { return v[:1] },
		"remediation.out_of_reach: members.h2: its set sees it and we do not":        func(_ *paper, v []View) []View { return v[:2] },
		"remediation.impossible_view: members: h0 and h1 are both primary of term 1": func(_ *paper, v []View) []View { v[1].Sights[1].State = "PRIMARY"; return v },
		"remediation.unknown_machine: members.stranger: the inventory does not know this host": func(_ *paper, v []View) []View {
			v[0].Config.Version++
			v[0].Config.Members = append(slices.Clone(v[0].Config.Members), Configured{Host: "stranger"})
			return v
		},
		"remediation.impossible_view: members: h1: priority: must be 0 without a vote": func(_ *paper, v []View) []View {
			v[0].Config.Version++
			v[0].Config.Members = slices.Clone(v[0].Config.Members)
			v[0].Config.Members[1].Votes = 0
			return v
		},
	} {
		l := layout(t, "3-abc-[2 1 1]")
		p := newPaper(l.Healthy(Hosts))
		p.views = func(v []View) []View { return edit(p, v) }
		_, err := executor(t, l, p).Run(t.Context())
		require.ErrorContains(t, err, want)
		require.Empty(t, p.calls)
	}
}

// How a member is judged.
func TestStatesAsObserved(t *testing.T) {
	t.Parallel()

	l := layout(t, "3-abc-[2 1 1]")
	for want := Healthy; want <= Lost; want++ {
		v := l.Healthy(Hosts)
		v.Members[2].State = want
		seen, err := executor(t, l, newPaper(v)).Look(t.Context())
		require.NoError(t, err)
		require.Empty(t, Differences(withoutOplog(v), seen), "%s", want)
	}
	v := l.Healthy(Hosts)
	v.Members[0].State = Stalled
	seen, err := executor(t, l, newPaper(v)).Look(t.Context())
	require.NoError(t, err)
	require.Empty(t, Differences(v, seen), "a primary that writes nothing, not even no-ops")

	p := newPaper(l.Healthy(Hosts))
	p.views = func(views []View) []View { // the former primary has not heard of its end
		views[1].Sights[1].State, views[1].Term = "PRIMARY", 2
		return views
	}
	seen, err = executor(t, l, p).Look(t.Context())
	require.NoError(t, err)
	require.True(t, seen.Members[1].Primary)

	p = newPaper(l.Healthy(Hosts))
	p.views = func(views []View) []View { // cut off from the others, not from us
		views[0].Sights[2].Up, views[1].Sights[2].Up = false, false
		return views
	}
	seen, err = executor(t, l, p).Look(t.Context())
	require.NoError(t, err)
	require.Equal(t, Recovering, seen.Members[2].State)
}

// withoutOplog forgets what a member that does not answer cannot tell.
func withoutOplog(v Vertex) Vertex {
	v = v.clone()
	for i := range v.Members {
		if s := v.Members[i].State; s == Down || s == Lost {
			v.Members[i].OplogMB = 0
		}
	}
	return v
}
