package fleet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/fleet"
)

// versions sets what the shards of someBooks run.
func versions(b books, of map[string]string) books {
	for i := range b.shards {
		b.shards[i].Capabilities.Version = of[b.shards[i].Name]
	}
	return b
}

func TestUpgradeMovesEverythingToTheNewerShard(t *testing.T) {
	t.Parallel()

	b := versions(someBooks(), map[string]string{"shard-a": "6.0.4", "shard-b": "6.0.4", "shard-c": "8.0.12"})
	p, err := read(t, b, contract.BalanceSettings{}, "").Upgrade("shard-a", "shard-c")
	require.NoError(t, err)
	require.Len(t, p.Moves, 3)
	require.Equal(t, []string{"shard-a"}, p.Emptied)
	require.Contains(t, p.Moves[0].Reason, "shard-a (6.0.4) is upgraded to shard-c (8.0.12)")

	_, err = read(t, b, contract.BalanceSettings{}, "").Upgrade("shard-c", "shard-a")
	require.ErrorContains(t, err, "upgrade.not_newer")
	_, err = read(t, b, contract.BalanceSettings{}, "").Upgrade("shard-a", "shard-b")
	require.ErrorContains(t, err, "upgrade.not_newer", "the same version")
	_, err = read(t, b, contract.BalanceSettings{ShardBytes: 250}, "").Upgrade("shard-a", "shard-c")
	require.ErrorContains(t, err, "upgrade.no_room")
	_, err = read(t, b, contract.BalanceSettings{}, "").Upgrade("shard-a", "shard-x")
	require.ErrorContains(t, err, "shard.unknown")
	b.shards[0].Capabilities.Version = ""
	_, err = read(t, b, contract.BalanceSettings{}, "").Upgrade("shard-a", "shard-c")
	require.ErrorContains(t, err, "upgrade.version_unknown")
	b = versions(b, map[string]string{"shard-a": "6.0.4", "shard-b": "6.0.4", "shard-c": "10.0.0-rc1"})
	b.filled = map[string]string{"shard-a": "rebalance/binpack"}
	_, err = read(t, b, contract.BalanceSettings{}, "").Upgrade("shard-a", "shard-c")
	require.ErrorContains(t, err, "rebalance/binpack", "the intent that it fights is named")
}

func TestCampaignTakesTheLeastCriticalShardsFirst(t *testing.T) {
	t.Parallel()

	b := versions(someBooks(), map[string]string{"shard-a": "6.0.4", "shard-b": "7.0.1", "shard-c": "8.0.12"})
	b.shards = append(b.shards, chunk.Shard{Name: "shard-d", Capabilities: chunk.Capabilities{Version: "8.0.12"}})
	b.databases = append(b.databases, chunk.Database{Name: "logs", KeySpace: chunk.Ranged})
	id := chunk.NewID("logs", 1)
	b.routes[3] = chunk.Route{
		Chunk:     chunk.Chunk{ID: id, Database: "logs", Range: chunk.Range{Hi: chunk.KeyMax}},
		Placement: chunk.Placement{ID: 4, Chunk: id, Shard: "shard-b", Database: chunk.PhysicalName(id, 4)},
	}
	b.loads = map[chunk.PlacementID]float64{4: 1000}
	rank := fleet.Criticality{"shop": 2, "logs": 0}
	v := read(t, b, contract.BalanceSettings{}, "")
	p, err := v.Campaign("8.0", 1, rank)
	require.NoError(t, err)
	require.Empty(t, p.Refusals)
	require.Len(t, p.Moves, 4)
	require.Equal(t, id, p.Moves[0].Chunk, "batch before critical, however busy")
	require.Equal(t, 0, p.Moves[0].Wave)
	for _, m := range p.Moves[1:] {
		require.Equal(t, 1, m.Wave)
		require.Equal(t, "shard-a", m.From)
		require.NotEqual(t, p.Moves[0].To, m.To, "each gets a shard of its own")
	}
	require.Equal(t, []string{"shard-b", "shard-a"}, p.Emptied)

	p, err = v.Campaign("8.0", 2, rank)
	require.NoError(t, err)
	require.Equal(t, 0, p.Moves[3].Wave, "two at once")
	p, err = v.Campaign("9.0", 1, rank)
	require.NoError(t, err)
	require.Empty(t, p.Moves)
	require.Len(t, p.Refusals, 2)
	require.Contains(t, p.Refusals[0].Reason, "no empty shard outside of all zones runs 9.0 or newer")
	p, err = v.Campaign("7.0.1", 1, rank)
	require.NoError(t, err)
	require.Equal(t, []string{"shard-a"}, p.Emptied, "shard-b runs it already")
	_, err = v.Campaign("eight", 1, rank)
	require.ErrorContains(t, err, "upgrade.bad_version")
}
