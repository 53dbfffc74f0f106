package scenario_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
)

// reshape starts a split or merge that the hot chunk is part of.
func (f *fleet) reshape(to string, r contract.Reshape) {
	f.t.Helper()
	_, err := f.starter.Migrate(f.t.Context(), contract.MigrateInput{
		Chunk: f.hot.Chunk.ID, To: to, Complete: contract.Manual, RequestedBy: f.t.Name(), Reshape: &r,
		AfterSwitch: "off", // the machine may be busy: no test is about speed
	})
	require.NoError(f.t, err)
}

// routes gives the chunks that the key space consists of, and sees that it has no
// gap and no overlap.
func (f *fleet) routes() []chunk.Route {
	f.t.Helper()
	routes, err := f.store.Routes(f.t.Context(), "app")
	require.NoError(f.t, err)
	at := chunk.KeyMin
	for _, r := range routes {
		require.Equal(f.t, at, r.Chunk.Range.Lo)
		at = r.Chunk.Range.Hi
	}
	require.Equal(f.t, chunk.KeyMax, at)
	return routes
}

// onShards names the shards of routes in the order of the key space.
func onShards(routes []chunk.Route) (out []string) {
	for _, r := range routes {
		out = append(out, r.Placement.Shard)
	}
	return out
}

// TestLiveSplitAndMerge cuts the busiest chunk three ways by size, one part of it
// on the shard that it came from, goes back and forth, and then makes two of
// the parts and the next chunk by heat: under live traffic, and with a proxy that hears nothing.
func TestLiveSplitAndMerge(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	f.startProxy("deaf", "--deaf")
	f.startWorker("worker")
	f.startWork(false)
	a, b, c := f.names[0], f.names[1], f.names[2]

	f.reshape("", contract.Reshape{Parts: 3, Shards: []string{c, a, b}})
	st := f.await("burn-in", inBurnIn)
	split := f.routes()
	plan, err := f.starter.PlanSwitch(t.Context(), st, 0) // the chunk that it began with has no route any more
	require.NoError(t, err)
	require.NotEmpty(t, plan.Steps)
	require.Equal(t, []string{c, a, b, b, a, b}, onShards(split))
	f.ask(contract.RollbackUpdate)
	f.await("the way back", func(st contract.Status) bool {
		return st.Phase == chunk.BurnIn && st.Serving.ID == st.Source.ID && st.WaitingFor != ""
	})
	require.Equal(t, []string{a, b, a, b}, onShards(f.routes()))
	f.ask(contract.ApproveUpdate)
	f.await("burn-in again", inBurnIn)
	require.Equal(t, onShards(split), onShards(f.routes()))
	f.complete()

	f.hot = split[0]
	f.reshape(c, contract.Reshape{With: []chunk.ID{split[1].Chunk.ID, split[2].Chunk.ID, split[3].Chunk.ID}, Parts: 2, By: contract.ByHeat})
	f.await("burn-in of two of four", inBurnIn)
	halves := f.routes()
	require.Equal(t, []string{c, c, a, b}, onShards(halves))
	require.Equal(t, split[0].Chunk.Range.Lo, halves[0].Chunk.Range.Lo)
	require.Equal(t, split[3].Chunk.Range.Hi, halves[1].Chunk.Range.Hi)
	f.complete()
	f.hot = halves[0]
	f.check(false)
	placements, err := f.store.Placements(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, placements, 4, "a placement was left behind")
	left, err := f.store.Cleanups(t.Context())
	require.NoError(t, err)
	require.Empty(t, left, "a clean-up was not finished")
}
