package metadatatest

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
)

// admissionCases are about which moves may begin.
var admissionCases = map[string]func(*testing.T, *fleet){
	"BestRateStaysForADay": func(t *testing.T, f *fleet) {
		ctx := t.Context()
		for _, rate := range []float64{700, 1000, 900} {
			require.NoError(t, f.KeepRate(ctx, "c", metadata.ApplyRate, rate))
		}
		require.NoError(t, f.KeepRate(ctx, "c", metadata.LoadRate, 5))
		got, err := f.Rates(ctx, "c")
		require.NoError(t, err)
		require.InDelta(t, 1000, got[metadata.ApplyRate].PerSecond, 0)
		require.InDelta(t, 5, got[metadata.LoadRate].PerSecond, 0)
		require.NoError(t, f.KeepRate(ctx, "b", metadata.LoadBytesRate, 9e6))
		moves, err := f.MoveRates(ctx)
		require.NoError(t, err)
		require.Equal(t, map[string]float64{"b": 9e6}, moves)
		require.NoError(t, f.exec(t, `update shard_rates set at = at - interval '2 days'`))
		require.NoError(t, f.KeepRate(ctx, "c", metadata.ApplyRate, 900))
		got, err = f.Rates(ctx, "c")
		require.NoError(t, err)
		require.InDelta(t, 900, got[metadata.ApplyRate].PerSecond, 0)
	},

	"MovesQueueBehindWhatTheTargetCanApply": func(t *testing.T, f *fleet) {
		ctx := t.Context()
		one, two := f.register(t), f.registerOf(t, "flights/0002")
		admit := func(m metadata.Migration, demand float64, always bool) metadata.Admission {
			a, err := f.Admit(ctx, m.ID, map[chunk.MigrationID]float64{m.ID: demand}, 2, always)
			require.NoError(t, err)
			return a
		}
		require.NoError(t, f.KeepRate(ctx, "c", metadata.ApplyRate, 1000))
		require.Equal(t, metadata.Admission{Admitted: true, Shard: "c", Capacity: 1000, Demand: 400}, admit(one, 400, false))
		require.Equal(t, metadata.Admission{Shard: "c", Capacity: 1000, Converging: 400, Others: 1, Demand: 150}, admit(two, 150, false))
		require.True(t, admit(two, 100, false).Admitted)
		require.True(t, admit(two, 9000, false).Admitted, "an admitted move stays admitted")

		three := f.registerOf(t, "flights/0003")
		require.False(t, admit(three, 1, false).Admitted)
		require.NoError(t, f.exec(t, `update migrations set progress = '{"step": "replicate", "perSecond": 50}' where id = $1`, int64(one.ID)))
		require.InDelta(t, 150, admit(three, 400, false).Converging, 0, "lanes say what they really apply")
		require.True(t, admit(three, 350, false).Admitted)
		four := f.registerOf(t, "flights/0004")
		require.False(t, admit(four, 1, false).Admitted)
		f.walk(t, one.ID, chunk.Registered, chunk.Aborting)
		require.NoError(t, f.SetPlacementState(ctx, one.Target.ID, chunk.Loading, chunk.Dropping))
		require.NoError(t, f.SetPlacementState(ctx, one.Target.ID, chunk.Dropping, chunk.Gone))
		f.walk(t, one.ID, chunk.Aborting, chunk.Aborted)
		require.False(t, admit(four, 60, false).Admitted)
		require.True(t, admit(four, 50, false).Admitted, "a move that has ended makes room")
	},

	"UnmeasuredTargetTakesAll": func(t *testing.T, f *fleet) {
		m := f.register(t)
		a, err := f.Admit(t.Context(), m.ID, map[chunk.MigrationID]float64{m.ID: 1e6}, 2, false)
		require.NoError(t, err)
		require.Equal(t, metadata.Admission{Admitted: true, Shard: "c", Demand: 1e6}, a)
	},

	"NoQueueGoesFirst": func(t *testing.T, f *fleet) {
		m, alone := f.register(t), f.registerOf(t, "flights/0002")
		require.NoError(t, f.KeepRate(t.Context(), "c", metadata.ApplyRate, 10))
		first, err := f.Admit(t.Context(), alone.ID, map[chunk.MigrationID]float64{alone.ID: 500}, 2, false)
		require.NoError(t, err)
		require.True(t, first.Admitted, "nothing else converges: waiting would make no room")
		demand := map[chunk.MigrationID]float64{m.ID: 1000}
		a, err := f.Admit(t.Context(), m.ID, demand, 2, false)
		require.NoError(t, err)
		require.False(t, a.Admitted)
		a, err = f.Admit(t.Context(), m.ID, demand, 2, true)
		require.NoError(t, err)
		require.True(t, a.Admitted)
	},

	"TwoAtOnceDoNotShareTheSameRoom": func(t *testing.T, f *fleet) {
		require.NoError(t, f.KeepRate(t.Context(), "c", metadata.ApplyRate, 1000))
		var mu sync.Mutex
		var group sync.WaitGroup
		admitted := 0
		for _, id := range []chunk.ID{"flights/0001", "flights/0002", "flights/0003", "flights/0004"} {
			m := f.registerOf(t, id)
			group.Go(func() {
				a, err := f.Admit(context.WithoutCancel(t.Context()), m.ID, map[chunk.MigrationID]float64{m.ID: 250}, 2, false)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && a.Admitted {
					admitted++
				}
			})
		}
		group.Wait()
		require.Equal(t, 2, admitted)
	},
}

// registerOf begins a migration of a chunk to shard c.
func (f *fleet) registerOf(t *testing.T, id chunk.ID) metadata.Migration {
	t.Helper()
	m, err := f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: id, Target: "c", WorkflowID: "migrate/" + string(id)})
	require.NoError(t, err)
	return m
}
