package fleet_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"drover/chunk"
	"drover/fleet"
)

const goodFile = `shards:
  - name: shard-a
  - name: shard-b
    uriEnv: SHARD_B
databases:
  - name: shop
    chunks: 4
    quota: {opsPerSecond: 2000, priority: critical}
    collections:
      - name: orders
        shardKey: customer
        indexes:
          - {key: {customer: 1, ref: -1}, name: customer_ref, unique: true}
users:
  - name: app
    passwordEnv: APP_PASSWORD
    grants: [{database: shop, actions: [read, write]}]
placement:
  tenants: [{database: shop, key: c-17, shard: shard-b}]
`

func TestParse(t *testing.T) {
	t.Parallel()

	f, err := fleet.Parse([]byte(goodFile))
	require.NoError(t, err)
	require.Len(t, f.Databases[0].Ranges, 4)
	require.JSONEq(t, `{"ops_per_second": 2000, "priority": "critical"}`, string(f.Databases[0].Policy))
	require.JSONEq(t, `{"key":{"customer":{"$numberInt":"1"},"ref":{"$numberInt":"-1"}},"name":"customer_ref","unique":true}`,
		f.Databases[0].Collections[0].Indexes[0].String())
	require.Equal(t, map[string][]string{"shop": {"read", "write"}}, f.Users[0].Grants)
	require.Len(t, f.Rules(nil), 1)
}

// TestErrorsNameLineAndField: each of these files is refused for one thing.
func TestErrorsNameLineAndField(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct{ old, new, want string }{
		"unknown field":      {"uriEnv: SHARD_B", "uri: x", "line 4: shards[1].uri is unknown; want one of name, region, spare, uriEnv, zone"},
		"twice a field":      {"    chunks: 4", "    chunks: 4\n    chunks: 5", "line 8: databases[0].chunks is there twice"},
		"wrong type":         {"chunks: 4", "chunks: four", "line 7: databases[0].chunks want a whole number"},
		"no chunks":          {"chunks: 4", "chunks: -1", "line 7: databases[0].chunks is -1"},
		"no name":            {"  - name: app\n    passwordEnv", "  - passwordEnv", "line 15: users[0].name is missing"},
		"shard twice":        {"name: shard-b", "name: shard-a", `"shard-a" is there already, on line 2`},
		"overlap":            {"    chunks: 4", "    keySpace: range\n    splits: [m, c]", "line 8: databases[0].splits[1] does not lie above the split before it: chunks would overlap"},
		"key space":          {"chunks: 4", "keySpace: ring", `databases[0].keySpace is "ring"`},
		"index without name": {", name: customer_ref", "", "line 13: databases[0].collections[0].indexes[0] an index needs key"},
		"unknown database":   {"grants: [{database: shop", "grants: [{database: shp", `line 15: users app: a grant names database "shp"`},
		"unknown shard":      {"shard: shard-b}", "shard: shard-c}", `line 19: placement.tenants[0].shard "shard-c" is not among shards`},
		"orphaned by a zone": {"shard: shard-b}", "zone: eu}", `no shard is in zone "eu"`},
		"zone of two":        {"  - name: shard-a\n", "  - {name: shard-a, zone: z, region: eu}\n  - {name: shard-z, zone: z}\n", "zone \"z\" is in region \"\", on line 2 in \"eu\": a zone lies in one region"},
		"no region":          {"shard: shard-b}", "region: mars}", "no shard is in region \"mars\""},
		"no truth":           {"  - name: shard-a\n", "  - {name: shard-a, spare: maybe}\n", "spare want true or false"},
		"two places":         {"shard: shard-b}", "shard: shard-b, zone: eu}", "line 19: placement.tenants[0] want one of shard, zone and region"},
		"array as key":       {"key: c-17", "key: []", "line 19: placement.tenants[0].key"},
		"rule twice":         {"shard: shard-b}]", "shard: shard-b}, {database: shop, key: c-17, shard: shard-a}]", "is there already, on line 19"},
		"emptied":            {"shards:\n  - name: shard-a\n  - name: shard-b\n    uriEnv: SHARD_B\n", "shards: []\n", "line 1: shards shards is empty: that would empty the fleet"},
		"no yaml":            {"shards:", "shards: [", "line"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			require.Contains(t, goodFile, c.old)
			_, err := fleet.Parse([]byte(strings.Replace(goodFile, c.old, c.new, 1)))
			require.ErrorContains(t, err, strings.ReplaceAll(c.want, "shards shards", "shards"))
			require.ErrorContains(t, err, "fleet.bad_file")
		})
	}
}

// TestParseNeverPanics on what may stand in a file.
func TestParseNeverPanics(t *testing.T) {
	t.Parallel()

	lines := strings.Split(goodFile, "\n")
	rapid.Check(t, func(t *rapid.T) {
		kept := rapid.SliceOfN(rapid.SampledFrom(lines), 0, 2*len(lines)).Draw(t, "lines")
		_, _ = fleet.Parse([]byte(strings.Join(kept, "\n")))
	})
}

// presentOf is the fleet that goodFile describes, made.
func presentOf(t *testing.T) fleet.Present {
	t.Helper()

	index, err := bson.Marshal(bson.D{
		{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "customer", Value: 1.0}, {Key: "ref", Value: int64(-1)}}},
		{Key: "name", Value: "customer_ref"}, {Key: "unique", Value: true},
	})
	require.NoError(t, err)
	return fleet.Present{
		Shards: []chunk.Shard{{Name: "shard-a"}, {Name: "shard-b"}}, Placed: map[string]int{"shard-a": 3, "shard-b": 1},
		Databases: []chunk.Database{{Name: "shop", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "orders", ShardKey: "customer", Indexes: []bson.Raw{index}}}}},
		Routes:    []chunk.Route{{Chunk: chunk.Chunk{ID: "shop/0001", Database: "shop"}}},
		Policies:  map[string][]byte{"shop": []byte(`{"priority":"critical","ops_per_second":2000}`)},
		Users:     map[string]map[string][]string{"app": {"shop": {"write", "read"}}},
	}
}

// diffOf compares goodFile, changed, with p.
func diffOf(t *testing.T, p fleet.Present, replace ...string) (fleet.Diff, error) {
	t.Helper()

	f, err := fleet.Parse([]byte(strings.NewReplacer(replace...).Replace(goodFile)))
	require.NoError(t, err)
	return f.Diff(p)
}

func TestDiffOfWhatIsThereIsEmpty(t *testing.T) {
	t.Parallel()

	d, err := diffOf(t, presentOf(t))
	require.NoError(t, err)
	require.Empty(t, d.Changes)
	require.Empty(t, d.Left)
}

func TestDiffOfNothingMakesEverythingInOrder(t *testing.T) {
	t.Parallel()

	d, err := diffOf(t, fleet.Present{Shards: []chunk.Shard{{Name: "shard-a"}}})
	require.NoError(t, err)
	var kinds []string
	for _, c := range d.Changes {
		kinds = append(kinds, c.Kind)
		require.Positive(t, c.Line)
	}
	require.Equal(t, []string{fleet.AddShard, fleet.CreateDatabase, fleet.SetQuota, fleet.AddUser, fleet.GrantUser}, kinds)
}

func TestDiffFindsWhatIsMissing(t *testing.T) {
	t.Parallel()

	d, err := diffOf(t, presentOf(t),
		"      - name: orders", "      - {name: carts, indexes: [{key: {at: 1}, name: at}]}\n      - name: orders",
		"[read, write]", "[read, ddl]", "2000", "3000",
		"unique: true}", "unique: true}\n          - {key: {at: 1}, name: at}")
	require.NoError(t, err)
	var kinds []string
	for _, c := range d.Changes {
		kinds = append(kinds, c.Kind)
	}
	require.Equal(t, []string{fleet.CreateCollection, fleet.CreateIndex, fleet.CreateIndex, fleet.SetQuota, fleet.GrantUser, fleet.RevokeUser}, kinds)
}

// TestFileThatWouldLoseSomethingIsRefused as a whole, with the line.
func TestFileThatWouldLoseSomethingIsRefused(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		change  func(*fleet.Present)
		replace []string
		want    string
	}{
		"orphaned database": {func(p *fleet.Present) {
			p.Databases = append(p.Databases, chunk.Database{Name: "mail"})
			p.Routes = append(p.Routes, chunk.Route{Chunk: chunk.Chunk{ID: "mail/0001", Database: "mail"}})
		}, nil, "line 6: databases database mail is not in the file: its 1 chunks would be orphaned"},
		"orphaned placements": {func(p *fleet.Present) {
			p.Shards = append(p.Shards, chunk.Shard{Name: "shard-c"})
			p.Placed["shard-c"] = 2
		}, nil, "line 2: shards shard shard-c is not in the file and 2 placements live there"},
		"emptied collection": {func(p *fleet.Present) {
			p.Databases[0].Collections = append(p.Databases[0].Collections, chunk.Collection{Name: "carts", ShardKey: "_id"})
		}, nil, "line 6: databases shop: collection carts is not in the file: it would be emptied"},
		"another shard key":   {nil, []string{"shardKey: customer", "shardKey: ref"}, "line 10: databases shop.orders: shardKey is customer and cannot become ref"},
		"another key space":   {nil, []string{"    chunks: 4", "    keySpace: range"}, "line 6: databases shop: keySpace is hashed and cannot become range"},
		"another index":       {nil, []string{"ref: -1", "ref: 1"}, "line 13: databases shop.orders: index customer_ref is there with another definition"},
		"pin of nothing":      {nil, []string{"  tenants:", "  pins: [{chunk: shop/0099, shard: shard-a}]\n  tenants:"}, "placement.pins[0].chunk there is no chunk shop/0099"},
		"user of no password": {func(p *fleet.Present) { p.Users = nil }, []string{"    passwordEnv: APP_PASSWORD\n", ""}, "line 15: users app does not exist: want passwordEnv"},
		"shard of no address": {func(p *fleet.Present) { p.Shards = p.Shards[1:]; delete(p.Placed, "shard-a") }, nil, "line 2: shards shard-a is not registered: want uriEnv"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := presentOf(t)
			if c.change != nil {
				c.change(&p)
			}
			d, err := diffOf(t, p, c.replace...)
			require.ErrorContains(t, err, c.want)
			require.Empty(t, d.Changes)
		})
	}
}

func TestFirstChunksGoWhereTheRulesWantThem(t *testing.T) {
	t.Parallel()

	f, err := fleet.Parse([]byte(strings.Replace(euFile, "keySpace: range", "chunks: 3", 1)))
	require.NoError(t, err)
	shards, err := f.FirstChunks(f.Databases[0])
	require.NoError(t, err)
	require.Equal(t, []string{"shard-b", "shard-a", "shard-b"}, shards, "the second is pinned")
	f.Databases[0].Shards = []string{"shard-a"}
	shards, err = f.FirstChunks(f.Databases[0])
	require.NoError(t, err)
	require.Equal(t, []string{"shard-a", "shard-a", "shard-a"}, shards)
}

func TestExplainNamesTheRuleThatWon(t *testing.T) {
	t.Parallel()

	f, err := fleet.Parse([]byte(goodFile))
	require.NoError(t, err)
	db := chunk.Database{Name: "shop", KeySpace: chunk.Hashed}
	kind, value, err := bson.MarshalValue("c-17")
	require.NoError(t, err)
	k, err := db.KeySpace.Point(bson.RawValue{Type: kind, Value: value})
	require.NoError(t, err)
	r := chunk.Route{Chunk: chunk.Chunk{ID: "shop/0001", Database: "shop", Range: chunk.Range{Hi: chunk.KeyMax}}, Placement: chunk.Placement{Shard: "shard-a"}}
	e := f.Explain(r, k, db)
	require.Equal(t, `tenant "c-17" of shop (line 19)`, e.Rule)
	require.Equal(t, []string{"default (built in), which wants any shard outside of all zones"}, e.Lost)
	require.Contains(t, e.InPlace, "chunk isolate")
	r.Chunk.Range = chunk.Range{Lo: k, Hi: db.KeySpace.After(k)}
	require.Contains(t, f.Explain(r, k, db).InPlace, "drover apply")
	r.Placement.Shard = "shard-b"
	require.Equal(t, "yes", f.Explain(r, k, db).InPlace)
	require.Contains(t, f.Explain(r, "\x10other", db).Rule, "default")
}
