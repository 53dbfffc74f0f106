package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/workflows"
)

// almanac plays the fleet of a season: one chunk that has to move on to a spare shard
// before it, and off it again.
type almanac struct {
	*herd
	in     contract.SeasonInput
	lead   time.Duration
	looks  []contract.SeasonLook
	opened []contract.IntentInput
	broken int // of the first looks that fail
	stays  bool
	pinned bool
}

// newAlmanac begins 40 days before a season of two weeks.
func newAlmanac() *almanac {
	a := &almanac{herd: newHerd(), lead: 3 * time.Hour}
	start := a.env.Now().UTC()
	a.in = contract.SeasonInput{
		Name: "winter", Factor: 3, At: start.Add(40 * 24 * time.Hour), Until: start.Add(54 * 24 * time.Hour), Spare: []string{"shard-s"}, Fill: 0.7,
		FiguresAt: start, RequestedBy: "ann",
	}
	a.env.RegisterWorkflowWithOptions(workflows.PrepareSeason, workflow.RegisterOptions{Name: contract.SeasonWorkflow})
	contract.PlanSeason.Register(a.env, a.plan)
	return a
}

// plan is the double of the activity: the chunk is where its newest move has brought it.
func (a *almanac) plan(_ context.Context, in contract.SeasonLook) (p contract.SeasonPlan, _ error) {
	a.looks = append(a.looks, in)
	if a.broken > 0 {
		a.broken--
		return p, failure.New(failure.Invalid, "shard.unknown", "there is no shard shard-s")
	}
	now := a.env.Now()
	moved := len(a.begun)
	if in.Back {
		p.Due, p.Left = true, moved%2
		if a.stays {
			p.Left = 1
			p.Plan.Refusals = []contract.Refused{{Subject: "shop/0001", Reason: "it is being moved by bob"}}
			if a.pinned {
				p.Kept = []contract.Refused{{Subject: "shop/0001", Reason: "pinned by ann"}}
			}
			return p, nil
		}
		if moved == 1 {
			p.Plan.Moves = []contract.PlannedMove{{Chunk: "shop/0001", From: "shard-s", To: "shard-a"}}
			p.Plan.Emptied = in.Spare
		}
	} else {
		p.BeginsAt = in.At.Add(-a.lead)
		p.Due = !now.Before(p.BeginsAt)
		if moved == 0 {
			p.Count = 1
			if p.Due {
				p.Plan.Moves = []contract.PlannedMove{{Chunk: "shop/0001", From: "shard-a", To: "shard-s"}}
			}
		}
	}
	p.Plan.FiguresAt = now
	return p, nil
}

// play runs the season to its end.
func (a *almanac) play(t *testing.T) contract.SeasonState {
	t.Helper()

	contract.OpenIntent.Register(a.env, func(_ context.Context, in contract.IntentInput) (contract.IntentOpened, error) {
		a.opened = append(a.opened, in)
		return contract.IntentOpened{At: a.env.Now()}, a.refuse
	})
	a.env.ExecuteWorkflow(contract.SeasonWorkflow, a.in)
	require.True(t, a.env.IsWorkflowCompleted())
	require.NoError(t, a.env.GetWorkflowError())
	var st contract.SeasonState
	require.NoError(t, a.env.GetWorkflowResult(&st))
	return st
}

// TestSeasonGrowsBeforeItsDateAndShrinksAfterIt by intents of their own, made of
// figures of their time; the spare shards are held in between.
func TestSeasonGrowsBeforeItsDateAndShrinksAfterIt(t *testing.T) {
	t.Parallel()

	a := newAlmanac()
	started := map[string]time.Time{}
	a.env.SetOnChildWorkflowStartedListener(func(info *workflow.Info, _ workflow.Context, _ converter.EncodedValues) {
		started[info.WorkflowExecution.ID] = a.env.Now()
	})
	st := a.play(t)
	require.Equal(t, contract.SeasonOver, st.Stage)
	require.Equal(t, "rebalance/expand/winter", st.Expanded)
	require.Equal(t, "rebalance/shrink/winter", st.Shrunk)
	require.Equal(t, []chunk.ID{"shop/0001", "shop/0001"}, a.begun)
	require.WithinDuration(t, a.in.At.Add(-a.lead), started[st.Expanded], time.Minute)
	require.WithinDuration(t, a.in.Until, started[st.Shrunk], time.Minute)
	require.Greater(t, len(a.looks), 40, "while it is ahead it looks every day: the lead changes")

	require.Equal(t, contract.SeasonIntent, a.opened[0].Kind)
	require.Equal(t, a.in.Spare, a.opened[0].Held)
	require.Equal(t, a.in.FiguresAt, a.opened[0].FiguresAt, "those that a person has seen")
	require.WithinDuration(t, started[st.Expanded], a.opened[1].FiguresAt, time.Minute)
	require.WithinDuration(t, started[st.Shrunk], a.opened[2].FiguresAt, time.Minute)
	require.Equal(t, a.in.Spare, a.opened[2].Emptied)
	runs := []string{a.opened[0].Run}
	require.Contains(t, runs, a.closed[1].Run, "the spare shards are let go before they are emptied")
}

// TestSeasonTriesAgain what could not be done, and says what it was.
func TestSeasonTriesAgain(t *testing.T) {
	t.Parallel()

	a := newAlmanac()
	a.broken = 2
	a.fail["shop/0001"] = temporal.NewNonRetryableApplicationError("no room", "gate.room", nil)
	var held []string
	a.env.RegisterDelayedCallback(func() { held = append(held, a.state(t).Held) }, time.Minute)
	a.env.RegisterDelayedCallback(func() {
		held = append(held, a.state(t).Held)
		delete(a.fail, "shop/0001")
		a.begun = nil
	}, 40*24*time.Hour-a.lead+5*time.Minute)
	st := a.play(t)
	require.Contains(t, held[0], "there is no shard shard-s")
	require.Contains(t, held[1], "1 of its moves failed, the first of shop/0001: no room")
	require.Equal(t, contract.SeasonOver, st.Stage)
	require.Empty(t, st.Held)
}

// state asks the season.
func (a *almanac) state(t *testing.T) (st contract.SeasonState) {
	t.Helper()
	v, err := a.env.QueryWorkflow(contract.StatusQuery)
	require.NoError(t, err)
	require.NoError(t, v.Get(&st))
	return st
}

// TestSeasonIsNotOverWhileSpareShardsHoldSomething.
func TestSeasonIsNotOverWhileSpareShardsHoldSomething(t *testing.T) {
	t.Parallel()

	a := newAlmanac()
	a.stays = true
	a.env.RegisterDelayedCallback(func() {
		st := a.state(t)
		require.Equal(t, contract.SeasonWanes, st.Stage)
		require.Equal(t, "shop/0001: it is being moved by bob", st.Held)
		a.stays = false
	}, 54*24*time.Hour+3*time.Hour)
	require.Equal(t, contract.SeasonOver, a.play(t).Stage)
}

// TestSeasonEndsWithWhatIsPinned: what nobody may move keeps it from being over no longer
// than until it has seen so, and is listed.
func TestSeasonEndsWithWhatIsPinned(t *testing.T) {
	t.Parallel()

	a := newAlmanac()
	a.stays, a.pinned = true, true
	st := a.play(t)
	require.Equal(t, contract.SeasonOver, st.Stage)
	require.Equal(t, []contract.Refused{{Subject: "shop/0001", Reason: "pinned by ann"}}, st.Kept)
	require.Empty(t, st.Held)
}

// TestSeasonStops and lets go of its shards, in whatever stage.
func TestSeasonStops(t *testing.T) {
	t.Parallel()

	for name, after := range map[string]time.Duration{"ahead": time.Hour, "serving": 45 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			a := newAlmanac()
			a.env.RegisterDelayedCallback(func() {
				a.env.UpdateWorkflow(contract.StopUpdate, "", &answered{t: t}, contract.UpdateInput{By: "bob", Reason: "cancelled"})
			}, after)
			st := a.play(t)
			require.Equal(t, "by bob: cancelled", st.Stopped)
			require.Equal(t, name, st.Stage)
			require.Empty(t, st.Shrunk)
			require.Equal(t, a.opened[0].Run, a.closed[len(a.closed)-1].Run)
		})
	}
}

// TestSeasonThatFightsStartsNothing: the open intent is named.
func TestSeasonThatFightsStartsNothing(t *testing.T) {
	t.Parallel()

	a := newAlmanac()
	a.refuse = failure.New(failure.Invalid, "rebalance.fights", "it fights rebalance/drain/shard-s")
	contract.OpenIntent.Register(a.env, func(context.Context, contract.IntentInput) (contract.IntentOpened, error) {
		return contract.IntentOpened{}, a.refuse
	})
	a.env.ExecuteWorkflow(contract.SeasonWorkflow, a.in)
	require.ErrorContains(t, a.env.GetWorkflowError(), "it fights rebalance/drain/shard-s")
	require.Empty(t, a.looks)
}

// TestSeasonGoesOnInAFurtherRun at its stage.
func TestSeasonGoesOnInAFurtherRun(t *testing.T) {
	t.Parallel()

	a := newAlmanac()
	a.begun = []chunk.ID{"shop/0001"}
	a.in.Resumed = &contract.SeasonState{ID: "capacity/winter", Run: "r1", OpenedAt: a.env.Now(), Stage: contract.SeasonServes, Expanded: "rebalance/expand/winter"}
	st := a.play(t)
	require.Equal(t, contract.SeasonOver, st.Stage)
	require.Equal(t, "rebalance/shrink/winter", st.Shrunk)
	require.Equal(t, contract.ShrinkIntent, a.opened[0].Kind, "it was admitted before")
	require.Equal(t, "r1", a.closed[0].Run)
}

func TestSeasonRefusesBadInput(t *testing.T) {
	t.Parallel()

	for name, spoil := range map[string]func(*contract.SeasonInput){
		"name":   func(in *contract.SeasonInput) { in.Name = "" },
		"order":  func(in *contract.SeasonInput) { in.Until = in.At },
		"past":   func(in *contract.SeasonInput) { in.At, in.Until = in.At.AddDate(-1, 0, 0), in.Until.AddDate(-1, 0, 0) },
		"factor": func(in *contract.SeasonInput) { in.Factor = 1 },
		"spare":  func(in *contract.SeasonInput) { in.Spare = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			a := newAlmanac()
			spoil(&a.in)
			a.env.ExecuteWorkflow(contract.SeasonWorkflow, a.in)
			var e *temporal.ApplicationError
			require.ErrorAs(t, a.env.GetWorkflowError(), &e)
			require.Equal(t, "capacity.bad_input", e.Type())
		})
	}
}
