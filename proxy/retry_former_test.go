package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// recordKeepers is a fleet of one chunk over scripted shards that answer reads of
// config.transactions from a table and count the writes that they get.
type recordKeepers struct {
	f       *fleet
	records map[chunk.PlacementID]int64 // number of the newest write by placement
	lookups map[chunk.PlacementID]int
	writes  int
}

// newRecordKeepers makes the fleet.
func newRecordKeepers(t *testing.T) *recordKeepers {
	t.Helper()
	k := &recordKeepers{records: map[chunk.PlacementID]int64{}, lookups: map[chunk.PlacementID]int{}}
	k.f = newFleet(t, 0, 0)
	for _, name := range []string{"shard-a", "shard-b"} {
		k.f.scripted(name, k.answer)
		k.f.keeps(name)
	}
	return k
}

// answer is the shards' script.
func (k *recordKeepers) answer(s *sent) bson.D {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	if s.name != "find" || s.db != "config" {
		k.writes++
		return bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 1}}
	}
	_, id := s.body.Lookup("filter", "_id", "$gte", "id").Binary()
	var p chunk.PlacementID
	for _, b := range id[:8] {
		p = p<<8 | chunk.PlacementID(b)
	}
	k.lookups[p]++
	batch := bson.A{}
	if n, ok := k.records[p]; ok {
		batch = append(batch, bson.D{{Key: "txnNum", Value: n}})
	}
	return bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: batch}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: "config.transactions"}}}}
}

// move gives the chunk a new route, as a switch does.
func (k *recordKeepers) move(shard string) chunk.Route {
	old := k.f.routes[firstChunk]
	if old.Token != 0 {
		k.f.former = append(k.f.former, Former{Route: old, Left: time.Now()})
	}
	return k.f.route(1, chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}, shard)
}

// A proxy that was started after a switch once knew no former route, and so ran
// again what another proxy had sent to the old shard before it.
func TestRetryAtProxyThatNeverSawTheOldRoute(t *testing.T) {
	t.Parallel()

	k := newRecordKeepers(t)
	old := k.move("shard-a")
	k.records[old.Placement.ID] = 5
	k.move("shard-b")
	c := dialRaw(t, k.f.start(Config{}))
	got := c.run(increment("x", testSession, 5))
	require.Equal(t, codeIncompleteHistory, codeOf(got), "%v", got)
	got = c.run(increment("x", testSession, 5))
	require.Equal(t, codeIncompleteHistory, codeOf(got), "and again")
	require.Zero(t, k.writes)
	require.Equal(t, int64(1), numberAt(c.run(increment("x", testSession, 6)), "nModified"))
	looked := k.lookups[old.Placement.ID]
	require.Equal(t, int64(1), numberAt(c.run(increment("x", testSession, 7)), "nModified"))
	require.Equal(t, looked, k.lookups[old.Placement.ID], "once it is known, nothing is asked any more")
}

// A route that changed twice while a proxy heard nothing leaves a former route
// that the proxy never held: the one between.
func TestRetryOverMissedRoute(t *testing.T) {
	t.Parallel()

	k := newRecordKeepers(t)
	k.move("shard-a")
	p := k.f.start(Config{Deaf: true})
	c := dialRaw(t, p)
	require.Equal(t, int64(1), numberAt(c.run(increment("x", "another-session-", 1)), "nModified"))
	between := k.move("shard-b")
	k.records[between.Placement.ID] = 5
	k.move("shard-a")
	require.NoError(t, p.routing.refresh(t.Context(), p.routing.entry(firstChunk)))
	got := c.run(increment("x", testSession, 5))
	require.Equal(t, codeIncompleteHistory, codeOf(got), "%v", got)
	require.Equal(t, 1, k.writes)
}

// A rollback and a new try give a placement a second former route, whose record
// must be looked at again: it once counted as looked at for the session's life.
func TestRetryAfterRollbackAndNewTry(t *testing.T) {
	t.Parallel()

	k := newRecordKeepers(t)
	old := k.move("shard-a")
	moved := k.move("shard-b")
	p := k.f.start(Config{Deaf: true})
	c := dialRaw(t, p)
	route := func(to chunk.Route) {
		k.f.former = append(k.f.former, Former{Route: k.f.routes[firstChunk], Left: time.Now()})
		k.f.token++
		to.Token = k.f.token
		k.f.routes[firstChunk] = to
		require.NoError(t, p.routing.refresh(t.Context(), p.routing.entry(firstChunk)))
	}
	require.Equal(t, int64(1), numberAt(c.run(increment("x", testSession, 4)), "nModified"))
	require.Equal(t, 1, k.lookups[old.Placement.ID])
	route(old)
	k.records[old.Placement.ID] = 5 // sent by another proxy while the chunk was back
	route(moved)
	got := c.run(increment("x", testSession, 5))
	require.Equal(t, codeIncompleteHistory, codeOf(got), "%v", got)
	require.Equal(t, 1, k.writes)
}

// A former route of a chunk that was split or merged meanwhile is one of every
// chunk whose range it had a part of.
func TestFormerRouteOfAnotherRange(t *testing.T) {
	t.Parallel()

	k := newRecordKeepers(t)
	halves := chunk.Hashed.Split(2)
	whole := k.f.route(9, chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}, "shard-a")
	delete(k.f.routes, whole.Chunk.ID)
	k.f.former = []Former{{Route: whole, Left: time.Now()}}
	k.f.route(1, halves[0], "shard-b")
	k.f.route(2, halves[1], "shard-b")
	k.records[whole.Placement.ID] = 5
	c := dialRaw(t, k.f.start(Config{}))
	for id, keys := range k.f.keysOf(1) {
		got := c.run(increment(keys[0], testSession, 5))
		require.Equal(t, codeIncompleteHistory, codeOf(got), "%s: %v", id, got)
	}
}

// Records are forgotten in time, and so are former routes.
func TestFormerRoutesAreForgotten(t *testing.T) {
	t.Parallel()

	var p placements
	now := time.Now()
	for i := range 40 {
		r := &route{}
		r.Token = chunk.Token(i)
		p.add(former{Route: r.Route, left: now.Add(-time.Duration(39-i)*time.Minute - time.Second)})
	}
	require.Len(t, p.all(), 30)
	require.Equal(t, chunk.Token(39), p.all()[0].Token, "newest first")
	p.add(former{Route: p.all()[3].Route, left: now})
	require.Len(t, p.all(), 30, "each once")
}

// TestRecordsAreFoundByTheirIndex: a session's record lies within the range that is asked
// for, whatever its uid, and no other session's does.
func TestRecordsAreFoundByTheirIndex(t *testing.T) {
	t.Parallel()

	id := func(last byte) bson.Binary {
		return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: append(make([]byte, 15), last)}
	}
	key := func(last byte, uid ...byte) bson.RawValue {
		raw, err := bson.Marshal(bson.D{{Key: "id", Value: id(last)}, {Key: "uid", Value: bson.Binary{Data: append(make([]byte, 31), uid...)}}})
		require.NoError(t, err)
		return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: raw}
	}
	within := bson.Raw(recordRange(id(7).Data))
	for _, tc := range []struct {
		key  bson.RawValue
		want bool
	}{{key(7, 0), true}, {key(7, 255), true}, {key(6, 255), false}, {key(8, 0), false}} {
		low, err := chunk.CompareValues(tc.key, within.Lookup("$gte"))
		require.NoError(t, err)
		high, err := chunk.CompareValues(tc.key, within.Lookup("$lte"))
		require.NoError(t, err)
		require.Equal(t, tc.want, low >= 0 && high <= 0, "%v", tc.key)
	}
}
