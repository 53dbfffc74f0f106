package remediation

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// judge reads a paper shard with an observer.
func judge(t *testing.T, o *Observer, p *paper) Vertex {
	t.Helper()

	views, err := p.Look(t.Context())
	require.NoError(t, err)
	machines, err := p.Inventory(t.Context())
	require.NoError(t, err)
	v, err := o.Vertex("rs", views, machines)
	require.NoError(t, err)
	return v
}

// A member whose clock is wrong makes nobody look as if it stood still: neither
// itself nor, above all, a primary that would then be stepped down.
func TestAWrongClockStallsNobody(t *testing.T) {
	t.Parallel()

	for _, wrong := range []time.Duration{30 * time.Hour, -30 * time.Hour} {
		for _, second := range []State{Healthy, Rebuilding, Down} {
			l := layout(t, "3-abc-[2 1 1]")
			want := l.Healthy(Hosts)
			want.Members[1].State = second
			p, round := newPaper(want), 0
			p.views = func(views []View) []View {
				if round++; round == 1 {
					return views
				}
				last := &views[len(views)-1]
				last.Now = last.Now.Add(wrong)
				for i := range last.Sights {
					last.Sights[i].Heard = last.Sights[i].Heard.Add(wrong)
				}
				return views
			}
			o := &Observer{}
			for range 5 {
				require.Empty(t, Differences(withoutOplog(want), judge(t, o, p)), "%s, the other %s", wrong, second)
				p.now = p.now.Add(30 * time.Second)
			}
		}
	}
}

// A member that repeats an old report, its date with it, is stalled, whoever else
// is there to compare it with.
func TestARepeatedReportIsStalled(t *testing.T) {
	t.Parallel()

	for _, alive := range []int{3, 2} {
		l := layout(t, "3-abc-[2 1 1]")
		v := l.Healthy(Hosts)
		if alive == 2 {
			v.Members[1].State = Down
		}
		p := newPaper(v)
		old, err := p.Look(t.Context())
		require.NoError(t, err)
		p.views = func(views []View) []View {
			views[len(views)-1] = old[len(old)-1]
			return views
		}
		o := &Observer{Limits: Limits{CaughtUp: time.Hour}} // nothing but the report tells
		require.Equal(t, Healthy, judge(t, o, p).Members[2].State)
		p.now = p.now.Add(50 * time.Second)
		require.Equal(t, Healthy, judge(t, o, p).Members[2].State, "%d alive", alive)
		p.now = p.now.Add(20 * time.Second)
		require.Equal(t, Stalled, judge(t, o, p).Members[2].State, "%d alive", alive)
	}
}

// What an observer remembers may be kept and given to another one: patience does
// not begin anew with a process.
func TestPatienceOutlivesTheProcess(t *testing.T) {
	t.Parallel()

	l := layout(t, "3-abc-[2 1 1]")
	v := l.Healthy(Hosts)
	v.Members[2].State = Rebuilding
	p := newPaper(v)
	first := &Observer{}
	require.Equal(t, Rebuilding, judge(t, first, p).Members[2].State)
	p.now = p.now.Add(23 * time.Hour)
	require.Equal(t, Rebuilding, judge(t, first, p).Members[2].State)
	kept, err := json.Marshal(first.Moved)
	require.NoError(t, err)

	next, forgetful := &Observer{}, &Observer{}
	require.NoError(t, json.Unmarshal(kept, &next.Moved))
	p.now = p.now.Add(2 * time.Hour)
	require.Equal(t, Stalled, judge(t, next, p).Members[2].State)
	require.Equal(t, Rebuilding, judge(t, forgetful, p).Members[2].State)
}

// A copy is given up only when a majority has the configuration that took its
// vote: until then another primary may give the vote back.
func TestNothingIsDestroyedUnderAConfigurationOfOne(t *testing.T) {
	t.Parallel()

	l, p := broken(t)
	uncommitted := true
	p.views = func(views []View) []View {
		views[0].Uncommitted = uncommitted && p.v.Members[1].Votes == 0
		return views
	}
	e := executor(t, l, p)
	e.MaxReplans = 2
	_, err := e.Run(t.Context())
	require.ErrorContains(t, err, "remediation.unsettled")
	require.ErrorContains(t, err, "h1: a majority does not have the configuration yet")
	require.NotContains(t, p.calls, "rebuild h1 from h2")

	polls := 0
	p.onPause = func(*paper) {
		if polls++; polls == 3 {
			uncommitted = false
		}
	}
	out, err := executor(t, l, p).Run(t.Context())
	require.NoError(t, err)
	require.True(t, out.Full)
	require.Zero(t, out.Replans, "it was waited for")
	require.Contains(t, p.calls, "rebuild h1 from h2")
}

// The guard is asked right before each change: nothing changes when it refuses.
func TestGuardComesBeforeEachChange(t *testing.T) {
	t.Parallel()

	l, p := broken(t)
	e := executor(t, l, p)
	over, asked := errors.New("the lease is over"), 0
	e.Guard = func(_ context.Context) error {
		if asked++; asked == 3 {
			return over
		}
		return nil
	}
	_, err := e.Run(t.Context())
	require.ErrorIs(t, err, over)
	require.Equal(t, []string{"reconfigure", "reconfigure"}, p.calls)
}
