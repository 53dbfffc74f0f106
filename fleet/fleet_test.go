package fleet_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/contract"
	"drover/fleet"
	"drover/internal/failure"
)

// books is a metadata that says what it was told.
type books struct {
	shards    []chunk.Shard
	databases []chunk.Database
	routes    []chunk.Route
	ages      map[chunk.ID]time.Duration
	loads     map[chunk.PlacementID]float64
	moving    map[chunk.ID]string
	emptied   map[string]string
	filled    map[string]string
	claimed   map[chunk.ID]string
	rates     map[string]float64
	pins      map[chunk.ID]string
	*strains
}

func (b books) IntentClaims(context.Context) (chunks map[chunk.ID]string, emptied, filled map[string]string, err error) {
	return b.claimed, b.emptied, b.filled, nil
}

func (b books) Pins(context.Context) (map[chunk.ID]string, error) { return b.pins, nil }

func (b books) Now(context.Context) (time.Time, error)                        { return time.Unix(1_800_000_000, 0), nil }
func (b books) Shards(context.Context) ([]chunk.Shard, error)                 { return b.shards, nil }
func (b books) Databases(context.Context) ([]chunk.Database, error)           { return b.databases, nil }
func (b books) Routes(context.Context, string) ([]chunk.Route, error)         { return b.routes, nil }
func (b books) RouteAges(context.Context) (map[chunk.ID]time.Duration, error) { return b.ages, nil }
func (b books) Loads(context.Context) (map[chunk.PlacementID]float64, error)  { return b.loads, nil }
func (b books) MoveRates(context.Context) (map[string]float64, error) {
	return b.rates, nil
}

func (b books) Moving(context.Context) (map[chunk.ID]string, error) { return b.moving, nil }

// someBooks has shop/0001 to shop/0004: three on shard-a, one on shard-b, shard-c empty.
func someBooks() books {
	b := books{strains: &strains{}, databases: []chunk.Database{{Name: "shop", KeySpace: chunk.Ranged}}}
	for _, s := range []string{"shard-a", "shard-b", "shard-c"} {
		b.shards = append(b.shards, chunk.Shard{Name: s})
	}
	bounds := []chunk.Key{chunk.KeyMin, "\x10a", "\x10b", "\x10c", chunk.KeyMax}
	for i, s := range []string{"shard-a", "shard-a", "shard-a", "shard-b"} {
		id := chunk.NewID("shop", i+1)
		p := chunk.PlacementID(i + 1)
		b.routes = append(b.routes, chunk.Route{
			Chunk:     chunk.Chunk{ID: id, Database: "shop", Range: chunk.Range{Lo: bounds[i], Hi: bounds[i+1]}},
			Placement: chunk.Placement{ID: p, Chunk: id, Shard: s, Database: chunk.PhysicalName(id, p)},
		})
	}
	return b
}

// read reads a fleet of which every chunk holds a hundred bytes.
func read(t *testing.T, b books, s contract.BalanceSettings, file string) fleet.View {
	t.Helper()

	r := fleet.Reader{
		Metadata: b, Settings: s, Sources: map[string]string{"shardBytes": "flag --shard-bytes"},
		Sizes: func(_ context.Context, s chunk.Shard, _ string) (int64, error) {
			if s.URI == "dead" {
				return 0, errors.New("no answer")
			}
			return 100, nil
		},
	}
	if file != "" {
		var err error
		r.File, err = fleet.Parse([]byte(file))
		require.NoError(t, err)
	}
	v, err := r.Read(t.Context())
	require.NoError(t, err)
	return v
}

func TestEveryFigureSaysWhereItComesFrom(t *testing.T) {
	t.Parallel()

	v := read(t, someBooks(), contract.BalanceSettings{ShardBytes: 1000}, "")
	sources := map[string]string{}
	for _, f := range v.Figures {
		require.NotEmpty(t, f.Source, f.Name)
		sources[f.Name] = f.Source
	}
	require.Equal(t, "flag --shard-bytes", sources["shardBytes"])
	require.Contains(t, sources["shardOps"], "default")
}

func TestBalanceRelievesTheWorstShard(t *testing.T) {
	t.Parallel()

	b := someBooks()
	b.loads = map[chunk.PlacementID]float64{1: 50, 2: 50, 3: 50, 4: 1}
	b.moving = map[chunk.ID]string{"shop/0001": "migrate/shop/0001"}
	b.ages = map[chunk.ID]time.Duration{"shop/0002": time.Minute}
	v := read(t, b, contract.BalanceSettings{ShardBytes: 1e6, ShardOps: 200}, "")
	p, err := v.Balance(contract.BalanceSettings{}, v.Fleet.At)
	require.NoError(t, err)
	require.Len(t, p.Moves, 1)
	require.Equal(t, chunk.ID("shop/0003"), p.Moves[0].Chunk, "one is being moved, one cools down")
	require.Less(t, p.After, p.Before)

	v = read(t, b, contract.BalanceSettings{ShardBytes: 1e6, ShardOps: 200, CoolDown: -1}, "")
	p, err = v.Balance(contract.BalanceSettings{}, v.Fleet.At)
	require.NoError(t, err)
	require.NotEqual(t, chunk.ID("shop/0001"), p.Moves[0].Chunk)
	require.Empty(t, v.Fleet.Chunks[1].Fixed, "no cool-down for what a person asks for")

	_, err = v.Balance(contract.BalanceSettings{}, v.Fleet.At.Add(6*time.Minute))
	require.ErrorContains(t, err, "too old")
}

// TestPinnedChunkStays: what a person has pinned is moved by no plan, and named.
func TestPinnedChunkStays(t *testing.T) {
	t.Parallel()

	b := someBooks()
	b.pins = map[chunk.ID]string{"shop/0002": "shop/0002 is pinned by anna until Friday: audit"}
	p, err := read(t, b, contract.BalanceSettings{}, "").Drain("shard-a", 0.8)
	require.NoError(t, err)
	require.Len(t, p.Moves, 2)
	require.Len(t, p.Refusals, 1)
	require.Contains(t, p.Refusals[0].Reason, "pinned by anna")
	b = versions(b, map[string]string{"shard-a": "6.0.4", "shard-b": "6.0.4", "shard-c": "8.0.12"})
	p, err = read(t, b, contract.BalanceSettings{}, "").Upgrade("shard-a", "shard-c")
	require.NoError(t, err)
	require.Len(t, p.Moves, 2)
	require.Contains(t, p.Refusals[0].Reason, "pinned by anna")
}

func TestSilentShardGivesAndTakesNothing(t *testing.T) {
	t.Parallel()

	b := someBooks()
	b.shards[2].URI = "dead"
	b.routes[3].Placement.Shard = "shard-c"
	v := read(t, b, contract.BalanceSettings{}, "")
	require.Len(t, v.Silent, 1)
	require.Contains(t, v.Silent[0].Reason, "no answer")
	p, err := v.Drain("shard-a", 0.8)
	require.NoError(t, err)
	require.Len(t, p.Moves, 3)
	for _, m := range p.Moves {
		require.Equal(t, "shard-b", m.To)
	}
	require.Equal(t, []string{"shard-a"}, p.Emptied)
	_, err = v.Drain("nowhere", 0.8)
	require.ErrorContains(t, err, "shard.unknown")
}

func TestPackEmptiesShards(t *testing.T) {
	t.Parallel()

	p, err := read(t, someBooks(), contract.BalanceSettings{ShardBytes: 1000}, "").Pack(0.7)
	require.NoError(t, err)
	require.Equal(t, []string{"shard-b"}, p.Emptied)
	require.Len(t, p.Moves, 1)
	require.Equal(t, "shard-a", p.Moves[0].To)
}

func TestIsolateAKeyCutsItOut(t *testing.T) {
	t.Parallel()

	b := someBooks()
	v := read(t, b, contract.BalanceSettings{}, "")
	key := chunk.Key("\x10aa")
	p, err := v.Isolate(b.routes[1], &key, "shard-c")
	require.NoError(t, err)
	require.Len(t, p.Moves, 1)
	require.Equal(t, []string{"shard-a", "shard-c", "shard-a"}, p.Moves[0].Reshape.Shards)
	require.Equal(t, []string{"106161", "10616100"}, p.Moves[0].Reshape.At)
	require.Empty(t, p.Refusals)

	key = "\x10a" // where the chunk begins: one cut is enough
	p, err = v.Isolate(b.routes[1], &key, "shard-b")
	require.NoError(t, err)
	require.Equal(t, []string{"shard-b", "shard-a"}, p.Moves[0].Reshape.Shards)
	require.Equal(t, "shop/0004", p.Refusals[0].Subject, "who lives there is named")
}

// TestTenantIsCutOutOfAChunkThatItsRuleContradicts: that is the way to follow the rule.
func TestTenantIsCutOutOfAChunkThatItsRuleContradicts(t *testing.T) {
	t.Parallel()

	b := someBooks()
	v := read(t, b, contract.BalanceSettings{}, spareFile+"placement:\n  tenants: [{database: shop, key: c-17, shard: shard-b}]\n")
	require.Len(t, v.Conflicts, 1)
	at := v.Routes[3] // strings lie behind the bounds of someBooks
	require.Equal(t, string(at.Chunk.ID), v.Conflicts[0].Subject)
	key, err := chunk.Ranged.Border(bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, "c-17")})
	require.NoError(t, err)
	p, err := v.Isolate(at, &key, "shard-b")
	require.NoError(t, err)
	require.Len(t, p.Moves, 1)
	require.NotNil(t, p.Moves[0].Reshape)
	_, err = v.Isolate(at, nil, "shard-a")
	require.ErrorContains(t, err, "contradict each other", "all of it would be wrong for one of both")
}

const euFile = `
shards:
  - {name: shard-a, zone: eu}
  - {name: shard-b, zone: us}
  - {name: shard-c, zone: us}
databases:
  - name: shop
    keySpace: range
    collections: [{name: orders, shardKey: customer}]
placement:
  databases: [{database: shop, zone: us}]
  pins: [{chunk: shop/0002, shard: shard-a}, {chunk: shop/0004, shard: shard-c}]
`

func TestReconcileFollowsTheRules(t *testing.T) {
	t.Parallel()

	p := read(t, someBooks(), contract.BalanceSettings{ShardBytes: 1000}, euFile).Reconcile()
	to := map[chunk.ID]string{}
	for _, m := range p.Moves {
		to[m.Chunk] = m.To
		require.Contains(t, m.Reason, "line")
	}
	require.Equal(t, map[chunk.ID]string{"shop/0001": "shard-b", "shop/0003": "shard-b", "shop/0004": "shard-c"}, fixed(to),
		"the pin of 0002 holds it, that of 0004 moves it, the others go to the zone")
}

// fixed leaves the choice among the shards of a zone open.
func fixed(to map[chunk.ID]string) map[chunk.ID]string {
	for c, s := range to {
		if c != "shop/0004" && s == "shard-c" {
			to[c] = "shard-b"
		}
	}
	return to
}

// TestOpenIntentIsNamedByAPlanThatFightsIt, and what it empties is not filled.
func TestOpenIntentIsNamedByAPlanThatFightsIt(t *testing.T) {
	t.Parallel()

	b := someBooks()
	b.claimed = map[chunk.ID]string{"shop/0001": "rebalance/reconcile"}
	b.filled = map[string]string{"shard-c": "rebalance/reconcile"}
	b.emptied = map[string]string{"shard-b": "rebalance/drain/shard-b"}
	v := read(t, b, contract.BalanceSettings{}, "")
	old := read(t, versions(b, map[string]string{"shard-a": "7.0.4", "shard-b": "8.0.0", "shard-c": "6.0.4"}), contract.BalanceSettings{}, "")
	cut := contract.Reshape{Parts: 2}
	for want, plan := range map[string]func() (contract.FleetPlan, error){
		"drain what is filled":       func() (contract.FleetPlan, error) { return v.Drain("shard-c", 0.8) },
		"isolate what is moved":      func() (contract.FleetPlan, error) { return v.Isolate(b.routes[0], nil, "shard-c") },
		"isolate on what is emptied": func() (contract.FleetPlan, error) { return v.Isolate(b.routes[1], nil, "shard-b") },
		"split what is moved":        func() (contract.FleetPlan, error) { return v.Split("shop/0001", cut, "shard-c", chunk.FanOut{}, false) },
		"split on to what is emptied": func() (contract.FleetPlan, error) {
			return v.Split("shop/0002", contract.Reshape{Parts: 2, Shards: []string{"shard-a", "shard-b"}}, "", chunk.FanOut{}, false)
		},
		"merge what is moved":           func() (contract.FleetPlan, error) { return v.Merge([]chunk.ID{"shop/0002", "shop/0001"}, "shard-a") },
		"merge on what is emptied":      func() (contract.FleetPlan, error) { return v.Merge([]chunk.ID{"shop/0002", "shop/0003"}, "shard-b") },
		"upgrade what is filled":        func() (contract.FleetPlan, error) { return old.Upgrade("shard-c", "shard-a") },
		"upgrade on to what is emptied": func() (contract.FleetPlan, error) { return old.Upgrade("shard-a", "shard-b") },
		"a season on what is emptied": func() (contract.FleetPlan, error) {
			s, err := v.Season([]string{"shard-b"}, 2, 0.8)
			return s.Expand, err
		},
	} {
		p, err := plan()
		require.True(t, failure.HasCode(err, "rebalance.fights"), "%s: %v", want, err)
		require.ErrorContains(t, err, "rebalance/", want)
		require.Empty(t, p.Moves, want)
	}
	p, err := old.Campaign("9.0", 1, nil)
	require.NoError(t, err)
	require.Empty(t, p.Emptied)
	require.Equal(t, "rebalance/drain/shard-b empties it", p.Refusals[0].Reason)
	pack, err := v.Pack(0.8)
	require.NoError(t, err)
	require.Contains(t, pack.Figures, contract.Figure{Name: "open intent", Value: "rebalance/drain/shard-b empties shard-b", Source: "metadata; drover rebalance status"})
	p, err = v.Drain("shard-a", 0.8)
	require.NoError(t, err)
	require.Len(t, p.Moves, 2)
	for _, m := range p.Moves {
		require.Equal(t, "shard-c", m.To, "the other one is being emptied")
	}
	require.Contains(t, p.Refusals[0].Reason, "rebalance/reconcile")
}
