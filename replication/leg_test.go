package replication

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
)

// legWorld is a source and the targets of its split in memory: the lanes' own
// planning and folding, without a server.
type legWorld struct {
	t      *testing.T
	r      *rand.Rand
	source map[int]bson.Raw
	log    []*event.Event
	legs   []*legTarget
}

// legTarget is one target with one lane.
type legTarget struct {
	lane            *Lane
	keep            *chunk.Keep
	docs            map[docKey]bson.Raw
	deltas, foreign int
}

// shardKeyed is the key space of the tests: documents of c by k.sub.
var shardKeyed = map[string]string{"c": "k.sub"}

// newLegWorld cuts a range key space at the given values.
func newLegWorld(t *testing.T, seed uint64, cuts ...any) *legWorld {
	t.Helper()
	points := make([]chunk.Key, 0, len(cuts))
	for _, c := range cuts {
		k, err := chunk.Ranged.DocumentPoint(raw(t, bson.D{{Key: "v", Value: c}}), "v")
		require.NoError(t, err)
		points = append(points, k)
	}
	ranges, err := chunk.RangesAt(points)
	require.NoError(t, err)
	w := &legWorld{t: t, r: rand.New(rand.NewPCG(seed, 7)), source: map[int]bson.Raw{}}
	for _, r := range ranges {
		keep := &chunk.Keep{Space: chunk.Ranged, ShardKeys: shardKeyed, Ranges: []chunk.Range{r}}
		w.legs = append(w.legs, &legTarget{
			keep: keep, docs: map[docKey]bson.Raw{},
			lane: &Lane{id: "m1/d0/p0", cfg: &Config{Direction: Direction{Keep: keep}}},
		})
	}
	return w
}

// keyValues are shard keys on both sides of every cut, and on it.
var keyValues = []any{nil, -1, 0, 9, 9.5, 10, 10.0, int64(10), 11, 20, "", "a", "m", "m\x00", "z", true, bson.MinKey{}, bson.MaxKey{}}

// document makes one; its shard key may be missing.
func (w *legWorld) document(id int) bson.D {
	d := bson.D{{Key: "_id", Value: id}, {Key: "n", Value: w.r.IntN(100)}}
	if w.r.IntN(8) > 0 {
		d = append(d, bson.E{Key: "k", Value: bson.D{{Key: "x", Value: 1}, {Key: "sub", Value: keyValues[w.r.IntN(len(keyValues))]}}})
	}
	return d
}

// event appends one to the log.
func (w *legWorld) event(op event.Op, id int, doc, change bson.Raw) {
	e := &event.Event{
		Seq: int64(len(w.log) + 1), Op: op, Database: "s", Collection: "c", ClusterTime: bson.Timestamp{T: uint32(len(w.log) + 1)}, //nolint:gosec // small
		Key: raw(w.t, bson.D{{Key: "_id", Value: id}}), Document: doc, Change: change,
	}
	w.log = append(w.log, e)
}

// step changes the source as applications do, with the events that come of it.
// Replacements may take a document to another target; updates do not.
func (w *legWorld) step() {
	id := w.r.IntN(30)
	old, there := w.source[id]
	switch op := w.r.IntN(6); {
	case !there:
		doc := raw(w.t, w.document(id))
		w.source[id] = doc
		w.event(event.Insert, id, doc, nil)
	case op == 0:
		delete(w.source, id)
		w.event(event.Delete, id, nil, nil)
	case op == 1:
		doc := raw(w.t, w.document(id))
		w.source[id] = doc
		w.event(event.Replace, id, doc, nil)
	default:
		change := raw(w.t, bson.D{
			{Key: "updatedFields", Value: bson.D{{Key: "n", Value: w.r.IntN(1000)}, {Key: "list", Value: bson.A{w.r.IntN(9)}}}},
			{Key: "removedFields", Value: bson.A{}}, {Key: "truncatedArrays", Value: bson.A{}},
		})
		img, err := NewImage(old)
		require.NoError(w.t, err)
		require.NoError(w.t, img.Apply(change, FoldOptions{}))
		doc, err := img.Raw()
		require.NoError(w.t, err)
		w.source[id] = bytes.Clone(doc)
		w.event(event.Update, id, nil, change)
	}
}

// apply gives a part of the log to a leg. One that crashes leaves nothing.
func (l *legTarget) apply(t *testing.T, part []*event.Event, crash bool) error {
	t.Helper()
	b := &batch{}
	for _, e := range part {
		b.items = append(b.items, item{event: e, pos: position{seq: e.Seq}})
	}
	docs, err := l.lane.group(b)
	if err != nil {
		return err
	}
	for _, d := range docs {
		if d.probe {
			d.old = l.docs[d.key]
			d.was = d.old
		}
	}
	if err := resolveAll(docs, FoldOptions{}); err != nil {
		return err
	}
	if crash {
		return nil
	}
	for _, d := range docs {
		l.deltas += d.deltas
		l.foreign += d.foreign
		if d.now == nil {
			delete(l.docs, d.key)
		} else {
			l.docs[d.key] = bytes.Clone(d.now)
		}
	}
	return nil
}

// TestLegsTogetherAreTheSource splits a source two, three and four ways while it
// is written to, with batches of any size and crashes: each target has exactly
// its part byte for byte, and each update had exactly one target.
func TestLegsTogetherAreTheSource(t *testing.T) {
	t.Parallel()

	for seed := range uint64(60) {
		cuts := [][]any{{10}, {10, "m"}, {9.5, 10, "m"}}[seed%3]
		w := newLegWorld(t, seed, cuts...)
		for range 400 {
			w.step()
		}
		for _, l := range w.legs {
			for rest := w.log; len(rest) > 0; {
				n := 1 + w.r.IntN(min(40, len(rest)))
				if w.r.IntN(4) == 0 {
					require.NoError(t, l.apply(t, rest[:n], true))
					continue
				}
				require.NoError(t, l.apply(t, rest[:n], false), "seed %d", seed)
				rest = rest[n:]
			}
		}
		held, foreign, deltas := 0, 0, w.legs[0].deltas
		for _, l := range w.legs {
			held += len(l.docs)
			foreign += l.foreign
			require.Equal(t, deltas, l.deltas)
		}
		require.Len(t, w.source, held, "seed %d", seed)
		require.Equal(t, (len(w.legs)-1)*deltas, foreign, "seed %d", seed)
		require.Positive(t, deltas)
		for id, doc := range w.source {
			key, err := keyOf("c", raw(t, bson.D{{Key: "_id", Value: id}}).Lookup("_id"))
			require.NoError(t, err)
			for i, l := range w.legs {
				mine, err := l.keep.Has("c", doc)
				require.NoError(t, err)
				if mine {
					require.Equal(t, doc, l.docs[key], "seed %d, document %d on target %d", seed, id, i)
				} else {
					require.NotContains(t, l.docs, key)
				}
			}
		}
	}
}

// TestLegsCountAnUpdateWithoutATarget: what no target has a document for shows in
// the sum, and only there.
func TestLegsCountAnUpdateWithoutATarget(t *testing.T) {
	t.Parallel()

	w := newLegWorld(t, 1, 10)
	w.event(event.Update, 7, nil, raw(t, bson.D{{Key: "updatedFields", Value: bson.D{{Key: "n", Value: 1}}}}))
	foreign := 0
	for _, l := range w.legs {
		require.NoError(t, l.apply(t, w.log, false))
		require.Equal(t, 1, l.deltas)
		foreign += l.foreign
	}
	require.Equal(t, 2, foreign, "one target should have had it")
}

// TestLegsStopAtAChangedShardKey: an update that brings a document into a range
// does not carry it, and is never passed over.
func TestLegsStopAtAChangedShardKey(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		change bson.D
		stops  bool
	}{
		"to the right":         {bson.D{{Key: "updatedFields", Value: bson.D{{Key: "k.sub", Value: 12}}}}, true},
		"stays on the left":    {bson.D{{Key: "updatedFields", Value: bson.D{{Key: "k.sub", Value: 9}}}}, false},
		"the whole, right":     {bson.D{{Key: "updatedFields", Value: bson.D{{Key: "k", Value: bson.D{{Key: "sub", Value: 10}}}}}}, true},
		"the whole, left":      {bson.D{{Key: "updatedFields", Value: bson.D{{Key: "k", Value: bson.D{{Key: "sub", Value: 1}}}}}}, false},
		"within it":            {bson.D{{Key: "updatedFields", Value: bson.D{{Key: "k.sub.deep", Value: 1}}}}, true},
		"taken out":            {bson.D{{Key: "removedFields", Value: bson.A{"k"}}}, true},
		"something beside":     {bson.D{{Key: "updatedFields", Value: bson.D{{Key: "k.subs", Value: 99}, {Key: "kk", Value: 1}}}}, false},
		"an array beside":      {bson.D{{Key: "truncatedArrays", Value: bson.A{bson.D{{Key: "field", Value: "k.x"}, {Key: "newSize", Value: 1}}}}}, false},
		"an array in its way":  {bson.D{{Key: "truncatedArrays", Value: bson.A{bson.D{{Key: "field", Value: "k"}, {Key: "newSize", Value: 1}}}}}, true},
		"something beside out": {bson.D{{Key: "removedFields", Value: bson.A{"k.x", "n"}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newLegWorld(t, 1, 10)
			w.event(event.Update, 7, nil, raw(t, c.change))
			err := w.legs[1].apply(t, w.log, false)
			if !c.stops {
				require.NoError(t, err)
				require.Equal(t, 1, w.legs[1].foreign)
				return
			}
			require.ErrorContains(t, err, "lane.shard_key_changed")
		})
	}
}

// TestLegsLetGoWhatLeaves: the target that has the document drops it when an
// update takes it elsewhere.
func TestLegsLetGoWhatLeaves(t *testing.T) {
	t.Parallel()

	w := newLegWorld(t, 1, 10)
	doc := raw(t, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: bson.D{{Key: "sub", Value: 3}}}})
	w.event(event.Insert, 1, doc, nil)
	require.NoError(t, w.legs[0].apply(t, w.log, false))
	require.Len(t, w.legs[0].docs, 1)
	w.event(event.Update, 1, nil, raw(t, bson.D{{Key: "updatedFields", Value: bson.D{{Key: "k.sub", Value: 30}}}}))
	require.NoError(t, w.legs[0].apply(t, w.log[1:], false))
	require.Empty(t, w.legs[0].docs)
}

// TestLegsHearTheirMarkers: a leg owns its own start and the switch's markers of
// the leg that leads, of its own source only, and skips every leg's labels.
func TestLegsHearTheirMarkers(t *testing.T) {
	t.Parallel()

	d := Direction{Migration: 8, Lead: 7, Group: []chunk.MigrationID{7, 8}, Source: chunk.Placement{ID: 3}}
	for _, c := range []struct {
		m    chunk.Marker
		owns bool
	}{
		{chunk.Marker{Kind: chunk.StartMarker, Migration: 8, Placement: 3}, true},
		{chunk.Marker{Kind: chunk.StartMarker, Migration: 7, Placement: 3}, false},
		{chunk.Marker{Kind: chunk.ValidateMarker, Migration: 8, Placement: 3}, true},
		{chunk.Marker{Kind: chunk.ValidateMarker, Migration: 7, Placement: 3}, false},
		{chunk.Marker{Kind: chunk.FinalMarker, Migration: 7, Placement: 3}, true},
		{chunk.Marker{Kind: chunk.DrainedMarker, Migration: 7, Placement: 4}, false},
		{chunk.Marker{Kind: chunk.FinalMarker, Migration: 8, Placement: 3}, false},
	} {
		require.Equal(t, c.owns, d.owns(&c.m), c.m.Key())
	}
	d.Attempt = 5
	require.True(t, d.begins(&chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: 5, Placement: 3}))
	require.False(t, d.begins(&chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: 4, Placement: 3}))
	for label, skipped := range map[chunk.MigrationID]bool{0: false, 6: false, 7: true, 8: true} {
		require.Equal(t, skipped, d.labels(label), fmt.Sprint(label))
	}
}
