package fleet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/fleet"
)

const spareFile = `
shards:
  - {name: shard-a}
  - {name: shard-b}
  - {name: shard-c, spare: true}
databases:
  - name: shop
    keySpace: range
    collections: [{name: orders, shardKey: customer}]
`

// busy is someBooks of which every chunk serves 30 of the 150 requests that a shard can.
func busy() (books, contract.BalanceSettings) {
	b := someBooks()
	b.loads = map[chunk.PlacementID]float64{1: 30, 2: 30, 3: 30, 4: 30}
	return b, contract.BalanceSettings{ShardBytes: 1e6, ShardOps: 150, CoolDown: -1}
}

// TestSeasonUsesThePool and leads back out of it; nothing else is put there.
func TestSeasonUsesThePool(t *testing.T) {
	t.Parallel()

	b, s := busy()
	v := read(t, b, s, spareFile)
	require.Equal(t, []string{"shard-c"}, v.Spare)
	p, err := v.Season(nil, 2, 0.85)
	require.NoError(t, err)
	require.Equal(t, []string{"shard-c"}, p.Spare)
	require.Len(t, p.Expand.Moves, 1)
	require.Equal(t, "shard-b", p.Expand.Moves[0].To, "120 % on a: one chunk fits on b")
	require.Empty(t, p.Shrink.Moves)

	p, err = v.Season(nil, 3, 0.85)
	require.NoError(t, err)
	require.Len(t, p.Expand.Moves, 1)
	require.Equal(t, "shard-c", p.Expand.Moves[0].To)
	require.Contains(t, p.Expand.Refusals[0].Subject, "shard-a", "four chunks of 60 % on three shards")
	full, err := v.Season(nil, 4, 0.85)
	require.NoError(t, err)
	require.Contains(t, full.Expand.Refusals[len(full.Expand.Refusals)-1].Reason, "would be at 107 %, and should stay at 85 %")
	require.NotEmpty(t, p.Shrink.Moves)
	require.Equal(t, "shard-c", p.Shrink.Moves[0].From)
	require.Contains(t, p.Shrink.Moves[0].Reason, "goes back to the pool")
	require.Equal(t, []string{"shard-c"}, p.Shrink.Emptied)

	drained, err := v.Drain("shard-a", 0.85)
	require.NoError(t, err)
	for _, m := range drained.Moves {
		require.Equal(t, "shard-b", m.To, "a spare shard takes nothing else")
	}
}

// TestPoolWithoutAFile is what is empty, or what is named.
func TestPoolWithoutAFile(t *testing.T) {
	t.Parallel()

	b, s := busy()
	p, err := read(t, b, s, "").Season(nil, 3, 0.85)
	require.NoError(t, err)
	require.Equal(t, []string{"shard-c"}, p.Spare)

	_, err = read(t, b, s, "").Season([]string{"nowhere"}, 3, 0.85)
	require.ErrorContains(t, err, "shard.unknown")
	b.emptied = map[string]string{"shard-c": "rebalance/drain/shard-c"}
	_, err = read(t, b, s, "").Season([]string{"shard-c"}, 3, 0.85)
	require.ErrorContains(t, err, "rebalance/drain/shard-c empties it")
	b.emptied = nil
	b.shards[2].URI = "dead"
	b.routes[3].Placement.Shard = "shard-c"
	_, err = read(t, b, s, "").Season([]string{"shard-c"}, 3, 0.85)
	require.ErrorContains(t, err, "capacity.spare_silent")
	_, err = read(t, b, s, "").Season(nil, 0.5, 0.85)
	require.ErrorContains(t, err, "must not lie below 1")
}

// TestKeptIsWhatIsPinned to a spare shard, by a person or a rule; what moves is not.
func TestKeptIsWhatIsPinned(t *testing.T) {
	t.Parallel()

	b := someBooks()
	b.pins = map[chunk.ID]string{"shop/0001": "pinned by ann", "shop/0004": "pinned by bob"}
	b.moving = map[chunk.ID]string{"shop/0004": "migrate/shop/0004"}
	v := read(t, b, contract.BalanceSettings{}, `
shards: [{name: shard-a}, {name: shard-b}, {name: shard-c}]
databases: [{name: shop, keySpace: range, collections: [{name: orders}]}]
placement:
  pins: [{chunk: shop/0002, shard: shard-a}]
`)
	kept := v.Kept([]string{"shard-a", "shard-b"})
	require.Len(t, kept, 2)
	require.Equal(t, contract.Refused{Subject: "shop/0001", Reason: "pinned by ann", Offer: "take the pin away, and drover shard drain shard-a"}, kept[0])
	require.Equal(t, "shop/0002", kept[1].Subject)
	require.Contains(t, kept[1].Reason, "pinned by pin")
	require.Empty(t, v.Kept([]string{"shard-c"}))
}

// TestExpectedTimeIsOfMeasuredMoves where there are any.
func TestExpectedTimeIsOfMeasuredMoves(t *testing.T) {
	t.Parallel()

	moves := []contract.PlannedMove{{To: "shard-b", Bytes: 100 << 20}, {To: "shard-b", Bytes: 100 << 20}, {To: "shard-c", Bytes: 100 << 20}}
	b := someBooks()
	d, f := read(t, b, contract.BalanceSettings{}, "").Expect(moves, 0, 2)
	require.Contains(t, f.Source, "default")
	require.Equal(t, 7*time.Second, d, "two after each other at 30 MiB/s")

	b.rates = map[string]float64{"shard-b": 10 << 20, "shard-a": 4 << 20}
	v := read(t, b, contract.BalanceSettings{}, "")
	d, f = v.Expect(moves, 0, 3)
	require.Equal(t, 25*time.Second, d, "shard-c was never measured: as slow as the slowest")
	require.Equal(t, "4.0 MiB/s of one move", f.Value)
	require.Contains(t, f.Source, "imports")
	d, f = v.Expect(moves, 100<<20, 1)
	require.Equal(t, 3*time.Second, d)
	require.Contains(t, f.Source, "--move-rate")
	require.Equal(t, 65*time.Minute, fleet.Lead(25*time.Minute))
	d, _ = v.Expect(nil, 0, 0)
	require.Zero(t, d)
}

const regionFile = `
shards:
  - {name: shard-a, region: eu, zone: eu-1}
  - {name: shard-b, region: eu, zone: eu-2}
  - {name: shard-c, region: us}
databases:
  - name: shop
    keySpace: range
    collections: [{name: orders, shardKey: customer}]
placement:
  databases: [{database: shop, region: eu}]
  tenants: [{database: shop, key: b, region: eu}]
  default: {region: us}
`

// TestRegionHoldsZones: a rule for a region is content with each of its zones.
func TestRegionHoldsZones(t *testing.T) {
	t.Parallel()

	b := someBooks()
	b.routes[3].Placement.Shard = "shard-c"
	v := read(t, b, contract.BalanceSettings{}, regionFile)
	p := v.Reconcile()
	require.Len(t, p.Moves, 1)
	require.Equal(t, chunk.ID("shop/0004"), p.Moves[0].Chunk)
	require.Equal(t, "shard-b", p.Moves[0].To, "the cooler one of both zones")
	require.Contains(t, p.Moves[0].Reason, "region eu")

	drained, err := v.Drain("shard-a", 0.85)
	require.NoError(t, err)
	for _, m := range drained.Moves {
		require.Equal(t, "shard-b", m.To, "another zone of the region")
	}

	f, err := fleet.Parse([]byte(regionFile))
	require.NoError(t, err)
	e := f.Explain(b.routes[0], "\x10a0", b.databases[0])
	require.Equal(t, "database shop (line 11)", e.Rule)
	require.Equal(t, "region eu", e.Target)
	require.Equal(t, "in zone eu-1 of region eu", e.Place)
	require.Equal(t, "yes", e.InPlace)
	require.Equal(t, []string{"default (line 13), which wants region us"}, e.Lost)
}
