package fleet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
)

// figure finds what a plan relies on.
func figure(t *testing.T, p contract.FleetPlan, name string) string {
	t.Helper()

	for _, f := range p.Figures {
		if f.Name == name {
			return f.Value
		}
	}
	t.Fatalf("no figure %s in %v", name, p.Figures)
	return ""
}

// TestSplitShowsFanOutAndRefusesMore: requests that do not name the shard key go to
// every part afterwards; where they are most of all, a split makes most requests dearer.
func TestSplitShowsFanOutAndRefusesMore(t *testing.T) {
	t.Parallel()

	v := read(t, someBooks(), contract.BalanceSettings{}, "")
	cut := contract.Reshape{Parts: 3}
	byKey := chunk.FanOut{Pinned: 70, Wide: map[int]int64{4: 30}}
	p, err := v.Split("shop/0002", cut, "shard-c", byKey, false)
	require.NoError(t, err)
	require.Equal(t, "median 1, p99 4, mean 1.90, by the shard key 70 %", figure(t, p, "fan-out now"))
	require.Equal(t, "at most median 1, p99 6, mean 2.50, by the shard key 70 %", figure(t, p, "fan-out after"))
	require.Equal(t, []contract.PlannedMove{{
		Chunk: "shop/0002", From: "shard-a", To: "shard-c", Bytes: 100, Reshape: &cut, Reason: "it is replaced by 3 parts on shard-c",
	}}, p.Moves)

	wide := chunk.FanOut{Pinned: 30, Wide: map[int]int64{1: 70}}
	_, err = v.Split("shop/0002", cut, "shard-c", wide, false)
	require.True(t, failure.HasCode(err, "split.fan_out"), "%v", err)
	require.ErrorContains(t, err, "concern 1 chunks or fewer; of 3 parts it would be 3")
	p, err = v.Split("shop/0002", cut, "shard-c", wide, true)
	require.NoError(t, err)
	require.Len(t, p.Moves, 1, "a person allowed it")

	p, err = v.Split("shop/0002", contract.Reshape{At: []string{"106161", "106162"}, Shards: []string{"shard-b", "shard-a", "shard-b"}}, "", chunk.FanOut{}, false)
	require.NoError(t, err, "nothing is known against it")
	require.Contains(t, figure(t, p, "fan-out now"), "unknown")
	require.Equal(t, "it is replaced by 3 parts on shard-a, shard-b", p.Moves[0].Reason)
	_, err = v.Split("shop/0002", contract.Reshape{Parts: 3, Shards: []string{"shard-b", "shard-a"}}, "", chunk.FanOut{}, false)
	require.True(t, failure.HasCode(err, "migration.bad_input"), "%v", err)
	_, err = v.Split("shop/0009", cut, "shard-c", byKey, false)
	require.True(t, failure.HasCode(err, "chunk.unknown"), "%v", err)
	_, err = v.Split("shop/0002", cut, "shard-x", byKey, false)
	require.True(t, failure.HasCode(err, "shard.unknown"), "%v", err)

	b := someBooks()
	b.pins = map[chunk.ID]string{"shop/0002": "shop/0002 is pinned by anna"}
	_, err = read(t, b, contract.BalanceSettings{}, "").Split("shop/0002", cut, "shard-c", byKey, false)
	require.ErrorContains(t, err, "pinned by anna")
}

// TestMergeIsLedByTheFirstOfTheKeySpace, in whatever order the chunks are named.
func TestMergeIsLedByTheFirstOfTheKeySpace(t *testing.T) {
	t.Parallel()

	v := read(t, someBooks(), contract.BalanceSettings{}, "")
	p, err := v.Merge([]chunk.ID{"shop/0004", "shop/0003"}, "shard-c")
	require.NoError(t, err)
	require.Equal(t, []contract.PlannedMove{{
		Chunk: "shop/0003", From: "shard-a, shard-b", To: "shard-c", Bytes: 200, Reshape: &contract.Reshape{With: []chunk.ID{"shop/0004"}}, Reason: "2 chunks become one",
	}}, p.Moves)
}

// TestRejoinIsTheWayBackOfIsolate: a key that was cut out comes back to both sides of
// the cut, where they live on one shard.
func TestRejoinIsTheWayBackOfIsolate(t *testing.T) {
	t.Parallel()

	b := someBooks()
	b.routes[1].Placement.Shard = "shard-c"
	v := read(t, b, contract.BalanceSettings{}, "")
	p, err := v.Rejoin(b.routes[1])
	require.NoError(t, err)
	require.Equal(t, []contract.PlannedMove{{
		Chunk: "shop/0001", From: "shard-a, shard-c", To: "shard-a", Bytes: 300, Reshape: &contract.Reshape{With: []chunk.ID{"shop/0002", "shop/0003"}},
		Reason: "shop/0002 is isolated no more: it is merged with what lies beside it on shard-a",
	}}, p.Moves)

	p, err = v.Rejoin(b.routes[3])
	require.NoError(t, err, "the last one has one side")
	require.Equal(t, chunk.ID("shop/0003"), p.Moves[0].Chunk)
	b.routes[1].Placement.Shard = "shard-a"
	_, err = read(t, b, contract.BalanceSettings{}, "").Rejoin(b.routes[1])
	require.True(t, failure.HasCode(err, "rebalance.no_plan"), "%v", err)
	b.claimed = map[chunk.ID]string{"shop/0003": "rebalance/drain/shard-a"}
	_, err = read(t, b, contract.BalanceSettings{}, "").Rejoin(b.routes[3])
	require.ErrorContains(t, err, "rebalance/drain/shard-a moves it")
}
