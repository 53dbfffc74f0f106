package cdc

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"drover/chunk"
	"drover/event"
)

// fields of a change event, for tests.
type fields struct {
	op       string
	db, coll string
	id       any
	doc      any
	update   any
	session  byte  // 0: none
	txn      int64 // 0: none
	time     uint32
}

// raw builds the change event.
func (f fields) raw() bson.Raw {
	d := bson.D{
		{Key: "_id", Value: bson.D{{Key: "_data", Value: "AB"}}},
		{Key: "operationType", Value: f.op},
		{Key: "clusterTime", Value: bson.Timestamp{T: f.time + 1, I: 1}},
		{Key: "ns", Value: bson.D{{Key: "db", Value: f.db}, {Key: "coll", Value: f.coll}}},
	}
	if f.id != nil {
		d = append(d, bson.E{Key: "documentKey", Value: bson.D{{Key: "_id", Value: f.id}}})
	}
	if f.doc != nil {
		d = append(d, bson.E{Key: "fullDocument", Value: f.doc})
	}
	if f.update != nil {
		d = append(d, bson.E{Key: "updateDescription", Value: bson.D{{Key: "updatedFields", Value: f.update}}})
	}
	if f.session != 0 {
		d = append(d, bson.E{Key: "lsid", Value: bson.D{
			{Key: "id", Value: bson.Binary{Subtype: 4, Data: bytes.Repeat([]byte{f.session}, 16)}},
			{Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}},
		}})
	}
	if f.txn != 0 {
		d = append(d, bson.E{Key: "txnNumber", Value: f.txn})
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

// plain is an insert outside transactions.
func plain(id any) fields {
	return fields{op: "insert", db: "flights_0003_p42", coll: "c", id: id, doc: bson.D{{Key: "_id", Value: id}}}
}

// checkpoint is the first change of a replicator's transaction.
func checkpoint(session byte, txn int64, id string) fields {
	return fields{op: "update", db: "drover", coll: "checkpoints", id: id, update: bson.D{{Key: "seq", Value: 1}}, session: session, txn: txn}
}

// marked is the insert of a marker.
func marked(m chunk.Marker) fields {
	return fields{op: "insert", db: "drover", coll: "markers", id: m.Key(), doc: m}
}

// in puts f into a transaction.
func (f fields) in(session byte, txn int64) fields {
	f.session, f.txn = session, txn
	return f
}

// fresh is the numbering of a new log.
func fresh(partitions int32) *numbering {
	return &numbering{position: Position{
		Shard: "s", Log: "L", Partitions: partitions,
		Last: make([]int64, partitions), Counts: make([]int64, partitions),
	}}
}

// feed numbers changes and gives what they come to.
func feed(t require.TestingT, n *numbering, in ...fields) []outcome {
	out := make([]outcome, 0, len(in))
	for _, f := range in {
		c, err := parseChange(f.raw())
		require.NoError(t, err)
		o, err := n.take(&c, bson.Raw{5, 0, 0, 0, 0})
		require.NoError(t, err)
		out = append(out, o)
	}
	return out
}

// labels gives each outcome's label.
func labels(out []outcome) []chunk.MigrationID {
	var l []chunk.MigrationID
	for _, o := range out {
		l = append(l, o.event.Label)
	}
	return l
}

func TestTransactionsAreLabelledByTheirCheckpoint(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		in   []fields
		want []chunk.MigrationID // of the events that are sent
	}{
		"whole transaction": {
			[]fields{plain(1), checkpoint('A', 1, "m7/d0/p3"), plain(2).in('A', 1), plain(3).in('A', 1), plain(4)},
			[]chunk.MigrationID{0, 0, 7, 7, 0},
		},
		"another transaction of the same session": { // fault B053
			[]fields{checkpoint('A', 1, "m7/d0/p3"), plain(2).in('A', 1), plain(3).in('A', 2), plain(4)},
			[]chunk.MigrationID{0, 7, 0, 0},
		},
		"another session with the same number": {
			[]fields{checkpoint('A', 1, "m7/d0/p3"), plain(2).in('B', 1)},
			[]chunk.MigrationID{0, 0},
		},
		"others' changes in between": { // a server may deliver two transactions interleaved
			[]fields{checkpoint('A', 1, "m7/d0/p3"), plain(2).in('B', 1), plain(3).in('A', 1), plain(4), plain(5).in('A', 1)},
			[]chunk.MigrationID{0, 0, 7, 0, 7},
		},
		"one after the other": {
			[]fields{checkpoint('A', 1, "m7/d0/p3"), plain(2).in('A', 1), checkpoint('A', 2, "m12/d6/p0"), plain(3).in('A', 2)},
			[]chunk.MigrationID{0, 7, 0, 12},
		},
		"batched writes share a time, not a session": { // fault B051
			[]fields{checkpoint('A', 1, "m7/d0/p3"), plain(2), plain(3), plain(4)},
			[]chunk.MigrationID{0, 0, 0, 0},
		},
		"a checkpoint outside a transaction": {
			[]fields{checkpoint(0, 0, "m7/d0/p3"), plain(2)},
			[]chunk.MigrationID{0, 0},
		},
		"a session without a transaction": {
			[]fields{checkpoint('A', 0, "m7/d0/p3"), plain(2).in('A', 0)},
			[]chunk.MigrationID{0, 0},
		},
		"a checkpoint of nobody": {
			[]fields{checkpoint('A', 1, "x7/d0"), plain(2).in('A', 1)},
			[]chunk.MigrationID{0, 0},
		},
		"DDL in it": {
			[]fields{checkpoint('A', 1, "m7/d0/p3"), {op: "create", db: "d", coll: "c", session: 'A', txn: 1}},
			[]chunk.MigrationID{0, 7},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			require.Equal(t, tt.want, labels(feed(t, fresh(4), tt.in...)))
		})
	}
}

func TestBoundariesAreBetweenTransactions(t *testing.T) {
	t.Parallel()

	n := fresh(4)
	var got []bool
	for _, f := range []fields{
		plain(1), plain(2), plain(3).in('A', 1), plain(4).in('A', 1), plain(5).in('A', 2), plain(6).in('B', 2), plain(7).in('B', 2), plain(8),
	} {
		c, err := parseChange(f.raw())
		require.NoError(t, err)
		got = append(got, n.boundary(&c))
		_, err = n.take(&c, nil)
		require.NoError(t, err)
	}
	require.Equal(t, []bool{true, true, true, false, true, true, false, true}, got)
}

func TestOnlyMarkersAreMarkers(t *testing.T) {
	t.Parallel()

	beat := bson.D{{Key: "_id", Value: heartbeatID}, {Key: "kind", Value: "heartbeat"}, {Key: "round", Value: 5}, {Key: "log", Value: "L"}}
	start := chunk.Marker{Kind: chunk.StartMarker, Migration: 7, Placement: 42, Round: 1}
	for name, tt := range map[string]struct {
		in   fields
		want string
	}{
		"insert":              {marked(start), start.Key()},
		"heartbeat":           {fields{op: "replace", db: "drover", coll: "markers", id: heartbeatID, doc: beat}, "heartbeat/m0/a0/p0/r5"},
		"first heartbeat":     {fields{op: "insert", db: "drover", coll: "markers", id: heartbeatID, doc: beat}, "heartbeat/m0/a0/p0/r5"},
		"replace of another":  {fields{op: "replace", db: "drover", coll: "markers", id: start.Key(), doc: start}, ""},
		"delete":              {fields{op: "delete", db: "drover", coll: "markers", id: start.Key()}, ""},
		"update":              {fields{op: "update", db: "drover", coll: "markers", id: start.Key(), update: bson.D{}}, ""},
		"a stranger":          {fields{op: "insert", db: "drover", coll: "markers", id: 1, doc: bson.D{{Key: "kind", Value: 1}}}, ""},
		"another collection":  {fields{op: "insert", db: "drover", coll: "fences", id: 42, doc: bson.D{{Key: "_id", Value: 42}}}, ""},
		"DDL of our database": {fields{op: "create", db: "drover", coll: "markers"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			out := feed(t, fresh(3), tt.in)[0]
			if tt.want == "" {
				require.Empty(t, out.records)
				return
			}
			require.Equal(t, tt.want, out.event.Marker.Key())
			require.Len(t, out.records, 3)
		})
	}
}

// A heartbeat of another log must not stand for this log's.
func TestHeartbeatsAreRememberedByLog(t *testing.T) {
	t.Parallel()

	n := fresh(1)
	beat := func(log string, round int64) fields {
		return fields{op: "replace", db: "drover", coll: "markers", id: heartbeatID, doc: bson.D{
			{Key: "kind", Value: "heartbeat"}, {Key: "round", Value: round}, {Key: "log", Value: log},
		}}
	}
	start := chunk.Marker{Kind: chunk.StartMarker, Migration: 7}
	feed(t, n, beat("L", 3), beat("M", 9))
	require.Equal(t, int64(3), n.position.Round)
	feed(t, n, marked(start))
	require.Equal(t, start.Key(), n.position.Marker)
	feed(t, n, beat("L", 4))
	require.Empty(t, n.position.Marker, "the heartbeat is newer")
}

func TestDDLAndTheUnknownGoEverywhere(t *testing.T) {
	t.Parallel()

	for _, op := range []string{"create", "createIndexes", "modify", "drop", "rename", "dropDatabase", "of a later version"} {
		in := fields{op: op, db: "flights_0003_p42", coll: "c"}
		out := feed(t, fresh(4), in)[0]
		require.Len(t, out.records, 4, op)
		for p, r := range out.records {
			e, err := event.Decode(r.value)
			require.NoError(t, err)
			require.Equal(t, int32(p), r.partition)
			require.Equal(t, []byte(in.raw()), e.Description, "%s is not whole", op)
		}
	}
}

// finalOf is the final marker of an attempt's round on placement 42.
func finalOf(a chunk.AttemptID, round int64) fields {
	return marked(chunk.Marker{Kind: chunk.FinalMarker, Migration: 7, Attempt: a, Placement: 42, Round: round})
}

// opened is the open record of an attempt on placement 42.
func opened(a chunk.AttemptID) fields {
	return fields{op: "update", db: "drover", coll: "fences", id: int64(42), update: bson.D{{Key: "state", Value: "open"}, {Key: "opened", Value: int64(a)}}}
}

// What came behind a final marker that another one of the same attempt followed, or
// that attempt's way back, was applied like any other event: it must not be counted
// as lost, nor keep the old placement from being dropped.
func TestStragglersAreTakenBack(t *testing.T) {
	t.Parallel()

	back := func(from, to int64) []Reprieve {
		return []Reprieve{{Shard: "s", Placement: 42, Attempt: 6, From: from, To: to}}
	}
	for name, tt := range map[string]struct {
		in   []fields
		want []Reprieve
	}{
		"a second round":                   {[]fields{plain(0), finalOf(6, 1), plain(1), finalOf(6, 2)}, back(2, 4)},
		"a way back":                       {[]fields{finalOf(6, 1), plain(1), opened(6)}, back(1, 3)},
		"a way back after two rounds":      {[]fields{finalOf(6, 1), finalOf(6, 2), plain(1), opened(6)}, append(back(1, 2), back(2, 4)...)},
		"a rollback of what was published": {[]fields{finalOf(6, 1), plain(1), opened(8)}, nil},
		"another attempt's final marker":   {[]fields{finalOf(6, 1), plain(1), finalOf(7, 1)}, nil},
		"nothing was closed":               {[]fields{plain(1), opened(6)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got []Reprieve
			for _, o := range feed(t, fresh(2), tt.in...) {
				if o.reprieve != nil {
					got = append(got, *o.reprieve)
				}
			}
			require.Equal(t, tt.want, got)
		})
	}
}

func TestStragglers(t *testing.T) {
	t.Parallel()

	final := finalOf(6, 1)
	reopen := marked(chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: 8, Placement: 42, Round: 1})
	other := plain(1)
	other.db = "flights_0004_p43"
	fence := func(op, state string) fields {
		f := fields{op: op, db: "drover", coll: "fences", id: int64(42)}
		if op == "update" {
			f.update = bson.D{{Key: "state", Value: state}}
		} else if op != "delete" {
			f.doc = bson.D{{Key: "_id", Value: int64(42)}, {Key: "state", Value: state}}
		}
		return f
	}
	for name, tt := range map[string]struct {
		in   []fields
		want []int64 // seqs
	}{
		"before the final marker":     {[]fields{plain(1)}, nil},
		"after it":                    {[]fields{final, plain(1), plain(2)}, []int64{2, 3}},
		"another placement":           {[]fields{final, other}, nil},
		"by a replicator":             {[]fields{final, checkpoint('A', 1, "m7/d6/p0"), plain(1).in('A', 1), plain(2)}, []int64{4}},
		"DDL":                         {[]fields{final, {op: "createIndexes", db: "flights_0003_p42", coll: "c"}}, nil},
		"after the open marker":       {[]fields{final, plain(1), reopen, plain(2)}, []int64{2}},
		"after going back, replaced":  {[]fields{final, fence("replace", "open"), plain(2)}, nil},
		"after going back, updated":   {[]fields{final, fence("update", "open"), plain(2)}, nil},
		"after going back, deleted":   {[]fields{final, fence("delete", ""), plain(2)}, nil},
		"while it is fenced":          {[]fields{final, fence("replace", "fenced"), fence("update", "fenced"), plain(2)}, []int64{4}},
		"while it is being dropped":   {[]fields{final, fence("update", "gone"), plain(2)}, []int64{3}},
		"a database made again":       {[]fields{final, {op: "dropDatabase", db: "flights_0003_p42"}, plain(2)}, []int64{3}},
		"dropped without a marker":    {[]fields{plain(1), {op: "dropDatabase", db: "flights_0003_p42"}, plain(2), other}, []int64{3}},
		"dropped, by a replicator":    {[]fields{{op: "dropDatabase", db: "flights_0003_p42"}, checkpoint('A', 1, "m7/d6/p0"), plain(1).in('A', 1)}, nil},
		"two attempts, two finals":    {[]fields{final, final, reopen, plain(2)}, nil},
		"a database of another kind":  {[]fields{final, {op: "insert", db: "p42", coll: "c", id: 1, doc: bson.D{}}}, nil},
		"closed again after a return": {[]fields{final, reopen, finalOf(9, 1), plain(2)}, []int64{4}},
		// A coordinator that slept through its own way back:
		"a late marker after the way back":   {[]fields{opened(6), final, plain(1)}, nil},
		"a late marker after a newer open":   {[]fields{final, opened(6), opened(8), finalOf(7, 1), plain(1)}, nil},
		"a late marker of an older attempt":  {[]fields{finalOf(9, 1), final, opened(6), plain(1)}, []int64{4}},
		"the next attempt after a way back":  {[]fields{final, opened(6), finalOf(7, 1), plain(1)}, []int64{4}},
		"a late marker after a dropped past": {[]fields{opened(6), {op: "dropDatabase", db: "flights_0003_p42"}, finalOf(5, 1), plain(1)}, []int64{4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got []int64
			for _, o := range feed(t, fresh(2), tt.in...) {
				if o.straggler != 0 {
					require.Equal(t, chunk.PlacementID(42), o.straggler)
					got = append(got, o.event.Seq)
				}
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// anyChange draws a change, now and then in a transaction.
func anyChange(t *rapid.T) fields {
	f := plain(rapid.IntRange(0, 20).Draw(t, "id"))
	switch rapid.IntRange(0, 7).Draw(t, "what") {
	case 0:
		f = marked(chunk.Marker{Kind: chunk.ValidateMarker, Migration: 7, Round: rapid.Int64Range(1, 1000).Draw(t, "round")})
	case 1:
		f = marked(chunk.Marker{Kind: chunk.FinalMarker, Placement: 42, Attempt: 6})
	case 2:
		f = fields{op: "createIndexes", db: "flights_0003_p42", coll: "c"}
	case 3:
		f = fields{op: "delete", db: "drover", coll: "parked", id: 1}
	}
	return f
}

// anyLog draws a shard's changes, with transactions in one piece.
func anyLog(t *rapid.T) []fields {
	var log []fields
	for txn := range int64(rapid.IntRange(1, 12).Draw(t, "groups")) {
		if rapid.Bool().Draw(t, "plain") {
			log = append(log, anyChange(t))
			continue
		}
		session := byte('A' + rapid.IntRange(0, 1).Draw(t, "session"))
		if rapid.Bool().Draw(t, "replicator") {
			log = append(log, checkpoint(session, txn+1, fmt.Sprintf("m%d/d0/p0", txn+1)))
		}
		for range rapid.IntRange(1, 4).Draw(t, "size") {
			log = append(log, plain(rapid.IntRange(0, 20).Draw(t, "id")).in(session, txn+1))
		}
	}
	return log
}

// Whoever resumes from any saved position makes the same records, and what it
// makes is complete and counted for every partition, repetitions or not.
func TestNumberingIsAFunctionOfThePosition(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		log := anyLog(t)
		cut := rapid.IntRange(0, len(log)).Draw(t, "cut")
		whole := fresh(3)
		var want []record
		var saved []byte
		var before int
		for i, f := range log {
			if i == cut {
				before = len(want)
				var err error
				saved, err = whole.position.encode()
				require.NoError(t, err)
			}
			want = append(want, feed(t, whole, f)[0].records...)
		}
		if saved != nil {
			position, err := DecodePosition(saved)
			require.NoError(t, err)
			var again []record
			for _, o := range feed(t, &numbering{position: position}, log[cut:]...) {
				again = append(again, o.records...)
			}
			require.True(t, slices.EqualFunc(want[before:], again, func(a, b record) bool {
				return a.partition == b.partition && bytes.Equal(a.value, b.value)
			}))
			want = slices.Concat(want, again)
		}
		counters := make([]event.Counter, 3)
		seen := make([]map[int64]bool, 3)
		for _, r := range want {
			e, err := event.Decode(r.value)
			require.NoError(t, err)
			ok, err := counters[r.partition].Accept(e)
			require.NoError(t, err)
			if seen[r.partition] == nil {
				seen[r.partition] = map[int64]bool{}
			}
			require.Equal(t, !seen[r.partition][e.Seq], ok)
			seen[r.partition][e.Seq] = true
		}
	})
}

func TestWhatIsNoChangeEvent(t *testing.T) {
	t.Parallel()

	for name, d := range map[string]bson.D{
		"empty":         {},
		"no time":       {{Key: "operationType", Value: "insert"}},
		"op of no type": {{Key: "operationType", Value: 1}},
		"no key": {
			{Key: "operationType", Value: "insert"}, {Key: "clusterTime", Value: bson.Timestamp{T: 1}},
			{Key: "ns", Value: bson.D{{Key: "db", Value: "d"}, {Key: "coll", Value: "c"}}},
		},
	} {
		raw, err := bson.Marshal(d)
		require.NoError(t, err)
		_, err = parseChange(raw)
		require.Error(t, err, name)
	}
	// fields that a later version may add are no trouble
	f := plain(1)
	raw, err := bson.Marshal(append(mustD(f.raw()), bson.E{Key: "new", Value: bson.D{}}))
	require.NoError(t, err)
	_, err = parseChange(raw)
	require.NoError(t, err)
}

// mustD decodes a document.
func mustD(raw bson.Raw) bson.D {
	var d bson.D
	if err := bson.Unmarshal(raw, &d); err != nil {
		panic(err)
	}
	return d
}

// TestAdoptedPlacementIsKnownByItsMarker sees stragglers in a database whose name
// tells no placement.
func TestAdoptedPlacementIsKnownByItsMarker(t *testing.T) {
	t.Parallel()

	final := marked(chunk.Marker{Kind: chunk.FinalMarker, Migration: 7, Attempt: 6, Placement: 42, Round: 1, Database: "legacy"})
	write := plain(1)
	write.db = "legacy"
	other := write
	other.db = "other"
	n := fresh(2)
	out := feed(t, n, write, final, write, other, checkpoint(1, 5, "m7/d6/p0"), write.in(1, 5))
	var got []chunk.PlacementID
	for _, o := range out {
		got = append(got, o.straggler)
	}
	require.Equal(t, []chunk.PlacementID{0, 0, 42, 0, 0, 0}, got)
	value, err := n.position.encode()
	require.NoError(t, err)
	saved, err := DecodePosition(value)
	require.NoError(t, err)
	require.Equal(t, n.position.Closed, saved.Closed, "a restart knows it too")

	dropped := fields{op: "dropDatabase", db: "legacy"}
	require.Zero(t, feed(t, n, dropped, write)[1].straggler, "it is gone")
	out = feed(t, n, final, marked(chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: 8, Placement: 42}), write)
	require.Zero(t, out[2].straggler, "it is open again")
}
