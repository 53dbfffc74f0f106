package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"drover/activities"
	"drover/chunk"
	"drover/contract"
	"drover/fleet"
	"drover/metadata"
)

// balanceBooks is the metadata of a fleet of two shards, of which one is hot.
type balanceBooks struct {
	opened  metadata.Intent
	notes   []metadata.Note
	desired string
	kept    map[string]chunk.KeptPressure
	loads   map[chunk.PlacementID]float64 // instead of as many on each
}

func (b *balanceBooks) Times(context.Context) (map[chunk.PlacementID]float64, error) { return nil, nil }

func (b *balanceBooks) Pressures(context.Context) (map[string]chunk.KeptPressure, error) {
	return b.kept, nil
}

func (b *balanceBooks) KeepPressure(context.Context, string, chunk.Counters, chunk.Pressure) error {
	return nil
}

func (b *balanceBooks) Copying(context.Context) (map[string]string, error) { return nil, nil }

func (b *balanceBooks) Heats(context.Context) (map[chunk.ID]json.RawMessage, error) { return nil, nil }

func (b *balanceBooks) KeepHeats(context.Context, map[chunk.ID]json.RawMessage) error { return nil }

func (b *balanceBooks) Now(context.Context) (time.Time, error) {
	return time.Unix(1_800_000_000, 0), nil
}

func (b *balanceBooks) Shards(context.Context) ([]chunk.Shard, error) {
	return []chunk.Shard{{Name: "shard-a"}, {Name: "shard-b"}}, nil
}

func (b *balanceBooks) Databases(context.Context) ([]chunk.Database, error) {
	return []chunk.Database{{Name: "shop", KeySpace: chunk.Hashed}}, nil
}

func (b *balanceBooks) Routes(context.Context, string) (out []chunk.Route, _ error) {
	for i, r := range chunk.Hashed.Split(4) {
		id := chunk.NewID("shop", i+1)
		out = append(out, chunk.Route{
			Chunk:     chunk.Chunk{ID: id, Database: "shop", Range: r},
			Placement: chunk.Placement{ID: chunk.PlacementID(i + 1), Chunk: id, Shard: "shard-a"},
		})
	}
	return out, nil
}

func (b *balanceBooks) RouteAges(context.Context) (map[chunk.ID]time.Duration, error) {
	return map[chunk.ID]time.Duration{"shop/0001": time.Minute}, nil
}

func (b *balanceBooks) Loads(context.Context) (map[chunk.PlacementID]float64, error) {
	if b.loads != nil {
		return b.loads, nil
	}
	return map[chunk.PlacementID]float64{1: 3000, 2: 3000, 3: 3000, 4: 3000}, nil
}

func (b *balanceBooks) MoveRates(context.Context) (map[string]float64, error) {
	return nil, nil
}
func (b *balanceBooks) Pins(context.Context) (map[chunk.ID]string, error) { return nil, nil }

func (b *balanceBooks) Moving(context.Context) (map[chunk.ID]string, error) { return nil, nil }

func (b *balanceBooks) IntentClaims(context.Context) (chunks map[chunk.ID]string, emptied, filled map[string]string, err error) {
	return nil, nil, nil, nil
}

func (b *balanceBooks) OpenIntent(_ context.Context, i metadata.Intent) (time.Time, error) {
	b.opened = i
	return time.Unix(1_800_000_000, 0), nil
}

func (b *balanceBooks) CloseIntent(context.Context, string, json.RawMessage) error { return nil }

func (b *balanceBooks) MovesSince(context.Context, []string, time.Time) ([]metadata.ChunkMove, error) {
	return nil, nil
}

func (b *balanceBooks) KeepRound(_ context.Context, _ json.RawMessage, notes []metadata.Note) ([]string, error) {
	b.notes = notes
	return []string{"shard-a"}, nil
}

func (b *balanceBooks) DesiredStates(context.Context, int) ([]metadata.DesiredState, error) {
	if b.desired == "" {
		return nil, nil
	}
	return []metadata.DesiredState{{Version: 1, Content: b.desired}}, nil
}

// planRound plans one round over b; shards say nothing of how they bear their load.
func planRound(t *testing.T, b *balanceBooks) contract.FleetPlan {
	t.Helper()

	return planRoundWith(t, b, nil)
}

// planRoundWith is planRound with shards that count something.
func planRoundWith(t *testing.T, b *balanceBooks, counting fleet.Counting) contract.FleetPlan {
	t.Helper()

	env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
	x := &activities.Balancer{Ledger: b, Sizes: func(context.Context, chunk.Shard, string) (int64, error) { return 1 << 30, nil }, Counting: counting}
	x.Register(env, contract.BulkQueue)
	v, err := env.ExecuteActivity(contract.PlanRound.Name, contract.RoundInput{})
	require.NoError(t, err)
	var plan contract.FleetPlan
	require.NoError(t, v.Get(&plan))
	return plan
}

// TestRoundPlansByTheRulesThatWereApplied: a chunk that cools down or is pinned stays.
func TestRoundPlansByTheRulesThatWereApplied(t *testing.T) {
	t.Parallel()

	plan := planRound(t, &balanceBooks{})
	require.NotEmpty(t, plan.Moves)
	for _, m := range plan.Moves {
		require.NotEqual(t, chunk.ID("shop/0001"), m.Chunk, "it cools down")
	}
	plan = planRound(t, &balanceBooks{desired: `
shards: [{name: shard-a}, {name: shard-b}]
databases: [{name: shop, collections: [{name: orders}]}]
placement:
  pins: [{chunk: shop/0002, shard: shard-a}, {chunk: shop/0003, shard: shard-a}, {chunk: shop/0004, shard: shard-a}]
`})
	require.Empty(t, plan.Moves)
	require.NotEmpty(t, plan.Refusals, "why nothing moves is said")
}

// TestRoundReadsHowShardsBearTheirLoad: what one of them tells is in the plan, and what
// the other one does not tell is named.
func TestRoundReadsHowShardsBearTheirLoad(t *testing.T) {
	t.Parallel()

	before := chunk.Counters{Host: "a:1", At: time.Unix(1000, 0), Up: time.Hour, CPU: time.Hour, Cores: 2}
	plan := planRoundWith(t, &balanceBooks{kept: map[string]chunk.KeptPressure{"shard-a": {Counters: before, Age: time.Minute}}},
		func(_ context.Context, s chunk.Shard, c chunk.Counters) (chunk.Counters, error) {
			if s.Name == "shard-b" {
				return c, errors.New("not for you")
			}
			c.At, c.Up, c.CPU = c.At.Add(time.Minute), c.Up+time.Minute, c.CPU+time.Minute
			return c, nil
		})
	require.Len(t, plan.Shards, 2)
	require.Equal(t, "shard-a", plan.Shards[0].Shard)
	require.InDelta(t, 0.5, *plan.Shards[0].CPU, 1e-9)
	require.Equal(t, contract.ShardStrain{Shard: "shard-b", Unknown: "not for you"}, plan.Shards[1])
}

// TestHotKeyIsNotSplit: a chunk of which one key is most has no split point, and the round
// says so with its share; one that nobody can look into is split, and that is said.
func TestHotKeyIsNotSplit(t *testing.T) {
	t.Parallel()

	round := func(share float64, err error) (plan contract.FleetPlan) {
		env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
		b := &activities.Balancer{
			Ledger: &balanceBooks{loads: map[chunk.PlacementID]float64{1: 100, 2: 100, 3: 100, 4: 12000}},
			Sizes:  func(context.Context, chunk.Shard, string) (int64, error) { return 1 << 30, nil },
			HotKey: func(_ context.Context, db chunk.Database, r chunk.Route) (float64, error) {
				require.Equal(t, "shop", db.Name)
				return share, err
			},
		}
		b.Register(env, contract.BulkQueue)
		v, failed := env.ExecuteActivity(contract.PlanRound.Name, contract.RoundInput{})
		require.NoError(t, failed)
		require.NoError(t, v.Get(&plan))
		return plan
	}
	require.Len(t, round(0.3, nil).Splits, 1)
	plan := round(0.713, nil)
	require.Empty(t, plan.Splits)
	require.Contains(t, plan.Refusals[0].Reason, "no split point: one key takes 70 % of its operations")
	require.Equal(t, plan.Refusals[0].Reason, round(0.69, nil).Refusals[0].Reason, "what has hardly changed is not said anew")
	plan = round(0, errors.New("no log"))
	require.Len(t, plan.Splits, 1)
	require.Equal(t, contract.Figure{Name: "hot key of shop/0004", Value: "unknown", Source: "no log"}, plan.Figures[len(plan.Figures)-1])
}

// TestIntentNamesWhatItFills: also the shards of a cut, and it claims what a merge replaces.
func TestIntentNamesWhatItFills(t *testing.T) {
	t.Parallel()

	b := &balanceBooks{}
	_, err := (&activities.Balancer{Ledger: b}).OpenIntent(t.Context(), contract.IntentInput{RebalanceInput: contract.RebalanceInput{
		Moves: []contract.PlannedMove{{Chunk: "shop/0001", To: "b"}, {Chunk: "shop/0002", Reshape: &contract.Reshape{With: []chunk.ID{"shop/0003"}, Shards: []string{"a", "c", "b"}}}},
	}})
	require.NoError(t, err)
	require.Equal(t, []string{"shop/0001", "shop/0002", "shop/0003"}, b.opened.Chunks)
	require.Equal(t, []string{"b", "a", "c"}, b.opened.Filled)
}

// TestRoundNotesEachSubjectOnce with the first reason.
func TestRoundNotesEachSubjectOnce(t *testing.T) {
	t.Parallel()

	b := &balanceBooks{}
	r, err := (&activities.Balancer{Ledger: b}).RecordRound(t.Context(), contract.RoundResult{Plan: contract.FleetPlan{
		Refusals: []contract.Refused{{Subject: "shard-a", Reason: "one"}, {Subject: "shard-a", Reason: "two"}},
	}})
	require.NoError(t, err)
	require.Equal(t, []string{"shard-a"}, r.Said)
	require.Equal(t, []metadata.Note{{Subject: "shard-a", Reason: "one"}}, b.notes)
}

// TestSeasonIsPlannedWhenItIsDue: until then its moves are only counted.
func TestSeasonIsPlannedWhenItIsDue(t *testing.T) {
	t.Parallel()

	books := &balanceBooks{}
	b := &activities.Balancer{Ledger: books, Sizes: func(context.Context, chunk.Shard, string) (int64, error) { return 30 << 20, nil }}
	env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
	b.Register(env, contract.BulkQueue)
	look := func(in contract.SeasonLook) (p contract.SeasonPlan) {
		t.Helper()
		v, err := env.ExecuteActivity(contract.PlanSeason.Name, in)
		require.NoError(t, err)
		require.NoError(t, v.Get(&p))
		return p
	}
	now, err := books.Now(t.Context())
	require.NoError(t, err)
	in := contract.SeasonLook{SeasonInput: contract.SeasonInput{
		Factor: 2, At: now.Add(24 * time.Hour), Until: now.Add(48 * time.Hour), Spare: []string{"shard-b"}, Fill: 0.7, MoveRate: 1 << 20, AtOnce: 1,
	}}
	p := look(in) // four chunks of 3000/s become 24,000/s on one shard of 20,000/s
	require.False(t, p.Due)
	require.Equal(t, 2, p.Count)
	require.Empty(t, p.Plan.Moves)
	require.Equal(t, contract.Duration(time.Minute), p.Expected, "60 MiB at 1 MiB/s")
	require.Equal(t, in.At.Add(-17*time.Minute).UTC(), p.BeginsAt.UTC())

	in.At = now.Add(10 * time.Minute)
	p = look(in)
	require.True(t, p.Due)
	require.Len(t, p.Plan.Moves, 2)
	require.Equal(t, "shard-b", p.Plan.Moves[0].To)
	in.Lead = contract.Duration(time.Minute)
	require.False(t, look(in).Due, "a lead that is given")

	in.At = now
	require.Zero(t, look(in).Count, "the season's load is there already: 12,000/s, and is not multiplied again")

	in.Back = true
	p = look(in)
	require.True(t, p.Due)
	require.Zero(t, p.Left)
	require.Equal(t, []string{"shard-b"}, p.Plan.Emptied)
}

// TestSeasonHoldsItsShards in the metadata, without a move.
func TestSeasonHoldsItsShards(t *testing.T) {
	t.Parallel()

	books := &balanceBooks{}
	b := &activities.Balancer{Ledger: books}
	_, err := b.OpenIntent(t.Context(), contract.IntentInput{RebalanceInput: contract.RebalanceInput{Kind: contract.SeasonIntent}, Held: []string{"shard-b"}})
	require.NoError(t, err)
	require.Equal(t, []string{"shard-b"}, books.opened.Filled)
}
