package replication

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
)

// side is one placement in memory with its captured log.
type side struct {
	t     *testing.T
	place chunk.Placement
	docs  map[docKey]bson.Raw
	log   *fakeLog
	clock uint32
}

func newSide(t *testing.T, id chunk.PlacementID, shard string) *side {
	s := &side{t: t, place: chunk.Placement{ID: id, Shard: shard, Database: fmt.Sprintf("app_0001_p%d", id)}, docs: map[docKey]bson.Raw{}, log: newFakeLog(1)}
	s.log.spread = event.ByDatabase
	return s
}

// tell puts a change of a document into the side's log.
func (s *side) tell(op event.Op, label chunk.MigrationID, collection string, doc, change bson.Raw) {
	s.clock++
	e := event.Event{
		Op: op, Label: label, Database: s.place.Database, Collection: collection, ClusterTime: bson.Timestamp{T: s.clock},
		Key: raw(s.t, bson.D{{Key: "_id", Value: doc.Lookup("_id")}}), Change: change,
	}
	if op == event.Insert || op == event.Replace {
		e.Document = doc
	}
	s.log.add(s.t, e)
}

// mark puts a marker into the log and gives its offset.
func (s *side) mark(m chunk.Marker) int64 {
	s.clock++
	s.log.add(s.t, event.Event{Op: event.Mark, Database: chunk.SystemDatabase, Marker: &m, ClusterTime: bson.Timestamp{T: s.clock}})
	return int64(len(s.log.parts[0].records) - 1)
}

// ids of the documents: several types, and numbers that are one _id.
func anyID(r *rand.Rand) any {
	switch n := r.IntN(24); {
	case n < 6:
		return int32(n) //nolint:gosec // small
	case n < 9:
		return int64(n - 6)
	case n < 12:
		return float64(n - 9)
	case n < 16:
		return fmt.Sprintf("s%d", n)
	case n < 19:
		return bson.D{{Key: "x", Value: n}, {Key: "y", Value: 1}}
	case n < 22:
		return bson.ObjectID{byte(n)}
	case n == 22:
		return nil
	default:
		return bson.Timestamp{T: 1}
	}
}

// act does what an application does, and what the change stream tells of it.
func (s *side) act(r *rand.Rand) {
	collection := []string{"c", "d"}[r.IntN(2)]
	id := anyID(r)
	fresh := func() bson.Raw { return raw(s.t, append(bson.D{{Key: "_id", Value: id}}, anyDocument(r, 3)...)) }
	doc := fresh()
	key, err := keyOf(collection, doc.Lookup("_id"))
	require.NoError(s.t, err)
	old, there := s.docs[key]
	switch op := r.IntN(8); {
	case !there:
		s.docs[key] = doc
		s.tell(event.Insert, 0, collection, doc, nil)
	case op == 0:
		delete(s.docs, key)
		s.tell(event.Delete, 0, collection, old, nil)
	case op == 1: // a replacement keeps the stored _id
		var d bson.D
		require.NoError(s.t, bson.Unmarshal(doc, &d))
		d[0].Value = old.Lookup("_id")
		s.docs[key] = raw(s.t, d)
		s.tell(event.Replace, 0, collection, s.docs[key], nil)
	default:
		var d bson.D
		require.NoError(s.t, bson.Unmarshal(old, &d))
		now, change := editDocument(r, d)
		if change == nil {
			return
		}
		s.docs[key] = raw(s.t, now)
		s.tell(event.Update, 0, collection, old, raw(s.t, change))
	}
}

// follower is a lane without its server: the lane's own reading, sorting, rules and
// folding, with a commit that is a moment in memory. What it keeps survives a death,
// nothing else does.
type follower struct {
	r        *rand.Rand
	from, to *side
	cfg      *Config
	begin    int64 // an offset at or before the marker that it starts at

	seq, offset, since int64 // the checkpoint
	applied, deaths    int
}

func newFollower(r *rand.Rand, from, to *side, attempt chunk.AttemptID, begin int64, windows Windows) *follower {
	return &follower{r: r, from: from, to: to, begin: begin, offset: begin - 1, cfg: &Config{
		Windows:   windows,
		Direction: Direction{Migration: 7, Attempt: attempt, Source: from.place, Target: to.place, Partitions: 1, Spread: event.ByDatabase},
	}}
}

// run applies the log to its end, and dies now and then: before a commit, or behind
// it and before it knows. It begins anew a few records early, as readers may.
func (f *follower) run() error {
	for {
		err := f.life()
		if !errors.Is(err, errDied) {
			return err
		}
		f.deaths++
	}
}

// life is one owner's work from the checkpoint on.
func (f *follower) life() error {
	lane := &Lane{id: "m7/d0/p0", cfg: f.cfg, parked: parkedSet{}}
	counter := event.Resume(f.seq, f.since)
	begun := f.seq > 0
	b := &batch{}
	records := f.from.log.parts[0].records
	start := max(f.offset+1-int64(f.r.IntN(10)), min(f.begin, f.offset+1), 0)
	for offset := start; offset < int64(len(records)); offset++ {
		e := records[offset]
		next, err := counter.Accept(e)
		if err != nil {
			return err
		}
		if !next {
			continue
		}
		if begun = begun || e.Op == event.Mark && f.cfg.Direction.begins(e.Marker); !begun {
			continue
		}
		rec, err := lane.classify(e)
		if err != nil {
			return err
		}
		rec.pos = position{seq: e.Seq, offset: offset, since: counter.Since}
		b.add(rec)
		if b.marker != nil || f.r.IntN(6) == 0 || offset == int64(len(records))-1 {
			if err := f.commit(lane, b); err != nil {
				return err
			}
			b = &batch{}
		}
	}
	return nil
}

// commit applies a batch, or dies.
func (f *follower) commit(lane *Lane, b *batch) error {
	if b.pos.seq <= f.seq {
		return nil
	}
	docs, err := lane.group(b)
	if err != nil {
		return err
	}
	for _, d := range docs {
		if d.probe {
			d.old = f.to.docs[d.key]
			d.was = d.old
		}
	}
	if err := resolveAll(docs, FoldOptions{}); err != nil {
		return err
	}
	if f.r.IntN(5) == 0 {
		return errDied
	}
	for _, d := range docs {
		f.write(d)
	}
	f.seq, f.offset, f.since = b.pos.seq, b.pos.offset, b.pos.since
	f.applied += len(b.items)
	if f.r.IntN(5) == 0 {
		return errDied // the answer is lost
	}
	return nil
}

// write changes the target, whose change stream tells of it with the migration's
// label.
func (f *follower) write(d *document) {
	switch old := f.to.docs[d.key]; {
	case bytes.Equal(old, d.now) && (old == nil) == (d.now == nil):
	case d.now == nil:
		delete(f.to.docs, d.key)
		f.to.tell(event.Delete, 7, d.collection, old, nil)
	case old == nil:
		f.to.docs[d.key] = bytes.Clone(d.now)
		f.to.tell(event.Insert, 7, d.collection, d.now, nil)
	default:
		f.to.docs[d.key] = bytes.Clone(d.now)
		f.to.tell(event.Replace, 7, d.collection, d.now, nil)
	}
}

// fuzzyWindows are the windows of an import's slices, by a part of the key.
type fuzzyWindows [3]Window

// sliceOf gives the slice of a document.
func sliceOf(key docKey) int { return int(key[len(key)-1]) % 3 }

// Window implements [Windows].
func (w fuzzyWindows) Window(collection string, id bson.RawValue) (Window, bool) {
	key, err := keyOf(collection, id)
	return w[sliceOf(key)], err == nil
}

// move imports from one side to the other while it is written to, slice by slice,
// each at a moment of its own that is known only roughly.
func move(r *rand.Rand, from, to *side) (begin int64, w fuzzyWindows) {
	begin = from.mark(chunk.Marker{Kind: chunk.StartMarker, Migration: 7, Placement: from.place.ID})
	for n := range w {
		for range r.IntN(20) {
			from.act(r)
		}
		w[n].Lo = bson.Timestamp{T: from.clock}
		for range r.IntN(15) {
			from.act(r)
		}
		for key, doc := range from.docs {
			if sliceOf(key) == n {
				to.docs[key] = bytes.Clone(doc)
			}
		}
		for range r.IntN(15) {
			from.act(r)
		}
		w[n].Hi = bson.Timestamp{T: from.clock}
	}
	return begin, w
}

// requireSame wants both sides to be the same, byte for byte.
func requireSame(t *testing.T, seed uint64, what string, want, got *side) {
	t.Helper()
	keys := map[docKey]bool{}
	for _, s := range []*side{want, got} {
		for k := range s.docs {
			keys[k] = true
		}
	}
	for k := range keys {
		if !bytes.Equal(want.docs[k], got.docs[k]) {
			require.Equal(t, want.docs[k].String(), got.docs[k].String(), "seed %d, %s", seed, what)
			require.Equal(t, want.docs[k], got.docs[k], "seed %d, %s", seed, what)
		}
	}
}

// Whatever applications do to whatever documents, whenever slices are read and
// however often lanes die: the target is the source byte for byte when the source is
// left, the source is the target after a time of burn-in, and the target is the
// source again after a rollback and a further switch. No event is applied twice, and
// none of those that the lanes themselves have written.
func TestRandomHistoriesForwardAndBack(t *testing.T) {
	t.Parallel()
	deaths, applied := 0, 0
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 11))
		a, b := newSide(t, 2, "a"), newSide(t, 3, "b")
		for range 40 {
			a.act(r)
		}
		begin, windows := move(r, a, b)
		f := newFollower(r, a, b, 0, begin, windows)
		for range 8 {
			require.NoError(t, f.run(), "seed %d", seed)
			for range r.IntN(25) {
				a.act(r)
			}
		}
		a.mark(chunk.Marker{Kind: chunk.FinalMarker, Migration: 7, Attempt: 1, Placement: a.place.ID})
		require.NoError(t, f.run(), "seed %d", seed)
		requireSame(t, seed, "at the switch", a, b)
		deaths, applied = deaths+f.deaths, applied+f.applied

		from, to := b, a
		for attempt := chunk.AttemptID(1); attempt <= 3; attempt++ { // burn-in, rollback, and forth again
			open := from.mark(chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: attempt, Placement: from.place.ID})
			back := newFollower(r, from, to, attempt, open, nil)
			mine := 0
			for range 5 {
				before := len(from.log.parts[0].records)
				for range r.IntN(25) {
					from.act(r)
				}
				mine += len(from.log.parts[0].records) - before
				require.NoError(t, back.run(), "seed %d, direction %d", seed, attempt)
			}
			requireSame(t, seed, fmt.Sprintf("at the end of direction %d", attempt), from, to)
			require.Equal(t, mine, back.applied, "seed %d: each event once, and no other", seed)
			deaths, applied = deaths+back.deaths, applied+back.applied
			from, to = to, from
		}
	}
	t.Logf("%d events applied, %d deaths", applied, deaths)
	require.Greater(t, deaths, 1000)
}

// A lane that took its own label's events for an application's would see its own
// writes again: the histories must be able to tell.
func TestHistoriesNoticeAnEcho(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 12))
	a, b := newSide(t, 2, "a"), newSide(t, 3, "b")
	begin := a.mark(chunk.Marker{Kind: chunk.StartMarker, Migration: 7, Placement: 2})
	for range 60 {
		a.act(r)
	}
	require.NoError(t, newFollower(r, a, b, 0, begin, nil).run())
	requireSame(t, 1, "forth", a, b)
	echo := slices.ContainsFunc(b.log.parts[0].records, func(e *event.Event) bool { return e.Label == 7 })
	require.True(t, echo, "what lanes write is in the target's log")
	open := b.mark(chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: 1, Placement: 3})
	back := newFollower(r, b, a, 1, open, nil)
	b.act(r)
	require.NoError(t, back.run())
	require.Equal(t, 1, back.applied)
	requireSame(t, 1, "back", b, a)
}
