package replset_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/remediation"
	"drover/shard/replset"
	"drover/shard/replset/replsettest"
	"drover/shard/shardsim"
)

// bench is a simulated set with what works on it.
type bench struct{ *replsettest.World }

// slot is one voter of a layout.
func slot(zone string, priority float64) remediation.Slot {
	return remediation.Slot{Zone: zone, Instance: "m", Votes: 1, Priority: priority, OplogMB: 2000}
}

// three is the plainest layout.
func three() remediation.Layout {
	return remediation.Layout{Name: "three", Slots: []remediation.Slot{slot("a", 2), slot("b", 1), slot("c", 1)}}
}

// setup starts a set that meets the layout, with spare machines in some zones.
func setup(t *testing.T, l remediation.Layout, spares ...string) *bench {
	t.Helper()

	w, err := replsettest.New(l, spares...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close(context.WithoutCancel(t.Context()))) })
	return &bench{w}
}

// executor works on the set.
func (b *bench) executor(t *testing.T) *remediation.Executor {
	t.Helper()

	e, err := b.Executor()
	require.NoError(t, err)
	return e
}

// run executes to the end and wants full health.
func (b *bench) run(t *testing.T) remediation.Outcome {
	t.Helper()

	out, err := b.executor(t).Run(t.Context())
	require.NoError(t, err)
	require.True(t, out.Full, "%s", out.Why)
	return out
}

// names lists the steps that took.
func names(out remediation.Outcome) []string {
	var all []string
	for _, d := range out.Done {
		all = append(all, d.Order.Name)
	}
	return all
}

// Each operation, from a damage that calls for it to the layout, on a set that
// checks what is asked of it.
func TestEachOperation(t *testing.T) {
	t.Parallel()

	rebuilt := []string{"set-priority", "take-vote", "rebuild", "give-vote", "set-priority"}
	for name, test := range map[string]struct {
		layout remediation.Layout
		spares []string
		harm   func(b *bench)
		want   []string
	}{
		"down":            {three(), nil, func(b *bench) { b.Sim.Kill(b.Hosts[1]) }, rebuilt},
		"stalled":         {three(), nil, func(b *bench) { b.Sim.Stall(b.Hosts[2]); b.Sim.Advance(2 * time.Minute) }, rebuilt},
		"stale report":    {three(), nil, func(b *bench) { b.Sim.Mute(b.Hosts[2]); b.Sim.Advance(2 * time.Minute) }, rebuilt},
		"stalled primary": {three(), nil, func(b *bench) { b.Sim.Stall(b.Hosts[0]); b.Sim.Advance(2 * time.Minute) }, append([]string{"step-down"}, rebuilt...)},
		"lagging":         {three(), nil, func(b *bench) { b.Sim.Lag(b.Hosts[1], time.Minute) }, []string{"await"}},
		"recovering":      {three(), nil, func(b *bench) { b.Sim.Recover(b.Hosts[1], time.Minute) }, []string{"await"}},
		"small oplog":     {three(), nil, func(b *bench) { b.Sim.SetOplog(b.Hosts[1], 1000) }, []string{"resize-oplog"}},
		"election is due": {three(), nil, func(b *bench) { b.Sim.Kill(b.Hosts[0]); b.Sim.Start(b.Hosts[0]) }, []string{"await-election"}},
		"machine is gone": {three(), []string{"b"}, func(b *bench) { b.Sim.Lose(b.Hosts[1]) },
			[]string{"set-priority", "take-vote", "replace", "give-vote", "set-priority"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := setup(t, test.layout, test.spares...)
			test.harm(b)
			out := b.run(t)
			require.Equal(t, test.want, names(out))
			require.False(t, b.Lost, "the majority was lost")
			again, err := b.executor(t).Run(t.Context())
			require.NoError(t, err)
			require.Empty(t, again.Done, "a second run finds nothing to do")
		})
	}
}

// Operations that change what the set is made of: another layout calls for them.
func TestAnotherLayout(t *testing.T) {
	t.Parallel()

	hidden := remediation.Slot{Zone: "a", Instance: "m", Hidden: true, OplogMB: 2000}
	delayed := remediation.Slot{Zone: "b", Instance: "m", Hidden: true, Delay: 10 * time.Minute, OplogMB: 2000}
	arbiter := remediation.Slot{Zone: "c", Votes: 1, Arbiter: true}
	for name, test := range map[string]struct {
		slots  []remediation.Slot
		spares []string
		want   string
	}{
		"add":        {append(three().Slots, hidden), []string{"a"}, "add"},
		"arbiter":    {[]remediation.Slot{slot("a", 2), slot("b", 1), slot("c", 1), arbiter}, []string{"c"}, "add"},
		"remove":     {three().Slots[:2], nil, "remove"},
		"visibility": {[]remediation.Slot{slot("a", 2), slot("b", 1), slot("c", 1), delayed}, []string{"b"}, "add"},
		"other zone": {[]remediation.Slot{slot("a", 2), slot("b", 1), slot("d", 1)}, []string{"d"}, "replace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := setup(t, three(), test.spares...)
			b.Layout = remediation.Layout{Name: name, Slots: test.slots}
			out := b.run(t)
			require.Contains(t, names(out), test.want)
			require.False(t, b.Lost)
		})
	}
}

// Who dies in the middle, before the change or after it, is followed by another
// executor that begins no copy twice.
func TestExecutorCrashesAtEachStep(t *testing.T) {
	t.Parallel()

	for _, place := range []string{remediation.StopBefore, remediation.StopAfter} {
		for n := range 5 {
			t.Run(place, func(t *testing.T) {
				t.Parallel()

				b := setup(t, three())
				b.Sim.Kill(b.Hosts[1])
				crash, passed := errors.New("crash"), 0
				e := b.executor(t)
				e.Stops = stoppoint.New(func(_ context.Context, at string) error {
					if at != place {
						return nil
					}
					if passed++; passed > n {
						return crash
					}
					return nil
				})
				_, err := e.Run(t.Context())
				require.ErrorIs(t, err, crash)
				b.run(t)
				require.Equal(t, []string{"rebuild " + b.Hosts[1]}, b.Calls)
				require.False(t, b.Lost)
			})
		}
	}
}

// What goes wrong while a plan is followed leads to another plan, not to the next
// step.
func TestFaultsWhileAPlanIsFollowed(t *testing.T) {
	t.Parallel()

	five := remediation.Layout{Name: "five", Slots: []remediation.Slot{slot("a", 2), slot("a", 1), slot("b", 1), slot("b", 1), slot("c", 1)}}
	for name, harm := range map[string]func(b *bench){
		"another member dies": func(b *bench) {
			b.OnPause = func() { b.OnPause = nil; b.Sim.Kill(b.Hosts[3]) }
		},
		"the primary dies": func(b *bench) {
			b.OnPause = func() { b.OnPause = nil; b.Sim.Kill(b.Hosts[0]) }
		},
		"reconfiguration is refused": func(b *bench) {
			b.Sim.Inject(shardsim.Fault{Stage: shardsim.Checked, Match: shardsim.Command("replSetReconfig", ""), Times: 2, Code: 74})
		},
		"its answer is lost": func(b *bench) {
			b.Sim.Inject(shardsim.Fault{Stage: shardsim.Done, Match: shardsim.Command("replSetReconfig", ""), Times: 2, Drop: true})
		},
		"another change comes between": func(b *bench) {
			b.Sim.Inject(shardsim.Fault{Stage: shardsim.Arrived, Match: shardsim.Command("replSetReconfig", ""), Times: 1, Do: func() { b.Sim.StepUp(b.Hosts[4]) }})
		},
		"readings fail": func(b *bench) {
			b.Sim.Inject(shardsim.Fault{Stage: shardsim.Arrived, Match: shardsim.Command("replSetGetStatus", b.Hosts[2]), Times: 3, Drop: true})
		},
		"the hook fails once": func(b *bench) { b.Failing = errors.New("no room in the rack") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := setup(t, five)
			b.Sim.Kill(b.Hosts[1])
			harm(b)
			b.run(t)
			require.False(t, b.Lost, "the majority was lost")
		})
	}
}

// A change is made only to the configuration that was read: whoever came between
// may have had other things in mind.
func TestReconfigureComparesWithWhatWasRead(t *testing.T) {
	t.Parallel()

	b := setup(t, three())
	_, err := b.Set.Look(t.Context())
	require.NoError(t, err)
	edit := remediation.Edit{Set: []remediation.Member{{Host: b.Hosts[1], Votes: 1, Priority: 0}}}
	require.True(t, b.Sim.StepUp(b.Hosts[1]))
	require.True(t, b.Sim.StepUp(b.Hosts[0]))
	err = b.Set.Reconfigure(t.Context(), edit)
	require.True(t, failure.HasCode(err, "remediation.config_changed"), "%v", err)
	_, err = b.Set.Look(t.Context())
	require.NoError(t, err)
	require.NoError(t, b.Set.Reconfigure(t.Context(), edit))
	err = b.Set.Reconfigure(t.Context(), edit)
	require.True(t, failure.HasCode(err, "remediation.config_changed"), "not twice on one reading: %v", err)
}

// A configuration that the primary has alone is in force, and shows as one that can
// still be taken back.
func TestConfigurationThatNoMajorityHas(t *testing.T) {
	t.Parallel()

	b := setup(t, three())
	lone := func() bool {
		views, err := b.Set.Look(t.Context())
		require.NoError(t, err)
		return slices.ContainsFunc(views, func(v remediation.View) bool { return v.Uncommitted })
	}
	require.False(t, lone())
	b.Sim.Kill(b.Hosts[1])
	f := b.Sim.Inject(shardsim.Fault{Stage: shardsim.Done, Match: shardsim.Command("replSetReconfig", ""), Do: func() { b.Sim.Kill(b.Hosts[2]) }})
	require.NoError(t, b.Set.Reconfigure(t.Context(), remediation.Edit{Set: []remediation.Member{{Host: b.Hosts[1], Votes: 1}}}))
	require.Equal(t, 1, f.Hits())
	require.True(t, lone(), "those who had it are gone")
	f.Release()
	b.Sim.Start(b.Hosts[2])
	b.Sim.Advance(time.Minute)
	require.False(t, lone())
}

// Where the office does not change hands, nobody is kept from standing any longer.
func TestStepDownThatFailsLetsAllStandAgain(t *testing.T) {
	t.Parallel()

	b := setup(t, three())
	_, err := b.Set.Look(t.Context())
	require.NoError(t, err)
	b.Sim.Inject(shardsim.Fault{Stage: shardsim.Checked, Match: shardsim.Command("replSetStepDown", ""), Times: 1, Code: 262})
	err = b.Set.StepDown(t.Context(), b.Hosts[0], b.Hosts[1])
	require.True(t, failure.HasCode(err, "remediation.refused"), "%v", err)
	require.True(t, b.Sim.StepUp(b.Hosts[2]), "it was frozen for nothing")
}

// What nobody may act upon is refused, and nothing changes.
func TestRefusals(t *testing.T) {
	t.Parallel()

	b := setup(t, three())
	other, err := b.Open("other")
	require.NoError(t, err)
	b.Set = other
	_, err = b.executor(t).Run(t.Context())
	require.True(t, failure.HasCode(err, "remediation.foreign_set"), "%v", err)
	require.True(t, failure.Is(err, failure.Invalid))

	b = setup(t, three())
	b.Sim.Kill(b.Hosts[0])
	b.Sim.Kill(b.Hosts[1])
	_, err = b.executor(t).Run(t.Context())
	require.True(t, failure.HasCode(err, "remediation.unreachable"), "%v", err)

	b = setup(t, three())
	b.Sim.Silence(b.Hosts[1], true)
	_, err = b.executor(t).Run(t.Context())
	require.True(t, failure.HasCode(err, "remediation.out_of_reach"), "%v", err)

	b = setup(t, three())
	b.Machines = b.Machines[:2]
	_, err = b.executor(t).Run(t.Context())
	require.True(t, failure.HasCode(err, "remediation.unknown_machine"), "%v", err)

	_, err = replset.Open(chunk.Shard{Name: replsettest.ShardName}, "a secret", replset.Options{})
	require.True(t, failure.HasCode(err, "remediation.foreign_set"), "%v", err)
	require.Empty(t, b.Calls)
}

// The built-in hook runs the operator's commands and tells them everything.
func TestExecHook(t *testing.T) {
	t.Parallel()

	out := filepath.Join(t.TempDir(), "out")
	e := replset.Exec{
		RebuildCommand: []string{"sh", "-c", `echo "$DROVER_ACTION $DROVER_SHARD $DROVER_SET $DROVER_HOST $DROVER_SOURCE $DROVER_OPLOG_MB $DROVER_ARBITER" > "$0"`, out},
		ReleaseCommand: []string{"sh", "-c", "echo the rack is locked >&2; exit 3"},
	}
	n := replset.Node{Shard: "s1", Set: "rs", Host: "h1:1", Source: "h2:1", OplogMB: 2000}
	require.NoError(t, e.Rebuild(t.Context(), n))
	told, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, "rebuild s1 rs h1:1 h2:1 2000 false\n", string(told))
	require.ErrorContains(t, e.Release(t.Context(), n), "exit status 3: the rack is locked")
	err = e.Provision(t.Context(), n)
	require.True(t, failure.HasCode(err, "remediation.no_hook"), "%v", err)
	require.True(t, failure.Is(err, failure.Invalid))
}

// A dry run plans the same steps and touches nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()

	b := setup(t, three())
	b.Sim.Kill(b.Hosts[1])
	e := b.executor(t)
	e.Execute = false
	f := b.Sim.Inject(shardsim.Fault{Stage: shardsim.Arrived, Match: func(c shardsim.Call) bool {
		return slices.Contains([]string{"replSetReconfig", "replSetStepDown", "replSetFreeze"}, c.Command)
	}})
	out, err := e.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"set-priority", "take-vote", "rebuild", "give-vote", "set-priority"}, names(out))
	require.Zero(t, f.Hits())
	require.Empty(t, b.Calls)
}
