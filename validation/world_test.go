package validation_test

import (
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"drover/chunk"
	"drover/event"
	"drover/validation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const database = "app_0001_p1"

// raw encodes a document that cannot fail to encode.
func raw(d bson.D) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return b
}

// keyOf encodes a document's _id.
func keyOf(doc bson.Raw) chunk.Key {
	k, err := chunk.EncodeValue(doc.Lookup("_id"))
	if err != nil {
		panic(err)
	}
	return k
}

// world is a source with its log, lanes that follow it, and a target, in memory.
type world struct {
	mu      sync.Mutex
	changed *sync.Cond
	source  store
	target  store
	log     []*event.Event
	applied int // events of log that the lanes have applied
	rounds  int64
	// apply is how a lane applies an event; a test may break it.
	apply func(target store, e *event.Event)
	// onWrite is called when a marker is written.
	onWrite func()
	parked  []validation.ParkedDocument
}

// store is the documents of the collections of one side.
type store map[string]map[chunk.Key]bson.Raw

// put writes a document.
func (s store) put(collection string, doc bson.Raw) {
	if s[collection] == nil {
		s[collection] = map[chunk.Key]bson.Raw{}
	}
	s[collection][keyOf(doc)] = doc
}

// newWorld gives a world in which lanes apply what they get.
func newWorld() *world {
	w := &world{source: store{}, target: store{}, apply: applyEvent}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// applyEvent does what an event says.
func applyEvent(target store, e *event.Event) {
	if e.Op == event.Delete {
		key, _ := chunk.EncodeValue(e.ID())
		delete(target[e.Collection], key)
		return
	}
	target.put(e.Collection, e.Document)
}

// both puts a document on both sides.
func (w *world) both(collection string, docs ...bson.Raw) {
	for _, doc := range docs {
		w.source.put(collection, doc)
		w.target.put(collection, doc)
	}
}

// write changes collection c of the source.
func (w *world) write(op event.Op, doc bson.Raw) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.log)-w.applied > 100 { // writers that are faster than the lanes for ever prove nothing
		w.changed.Wait()
	}
	e := &event.Event{
		Seq: int64(len(w.log) + 1), Op: op, Database: database, Collection: "c",
		Key: raw(bson.D{{Key: "_id", Value: doc.Lookup("_id")}}), Document: doc,
	}
	applyEvent(w.source, e)
	w.log = append(w.log, e)
	w.changed.Broadcast()
}

// lanes apply the log until ctx ends.
func (w *world) lanes(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.changed.Broadcast)
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for ctx.Err() == nil {
		if w.applied == len(w.log) {
			w.changed.Wait()
			continue
		}
		e := w.log[w.applied]
		if e.Op != event.Mark {
			w.apply(w.target, e)
		}
		w.applied++
		w.changed.Broadcast()
		w.mu.Unlock() // others get their turn
		w.mu.Lock()
	}
}

// Write implements [validation.Markers].
func (w *world) Write(context.Context) (validation.Mark, error) {
	if w.onWrite != nil {
		w.onWrite()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rounds++
	m := chunk.Marker{Kind: chunk.ValidateMarker, Migration: 7, Placement: 1, Round: w.rounds}
	w.log = append(w.log, &event.Event{Seq: int64(len(w.log) + 1), Op: event.Mark, Marker: &m, Database: chunk.SystemDatabase})
	w.changed.Broadcast()
	return validation.Mark{Marker: m, At: bson.Timestamp{T: 1, I: uint32(len(w.log))}}, nil
}

// Passed implements [validation.Markers].
func (w *world) Passed(ctx context.Context, m validation.Mark) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.applied < int(m.At.I) {
		if err := ctx.Err(); err != nil {
			return err
		}
		w.changed.Wait()
	}
	return nil
}

// Touched implements [validation.Log].
func (w *world) Touched(_ context.Context, from, to validation.Mark, set *validation.Touched) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.log[from.At.I:to.At.I] {
		if err := set.Add(e); err != nil {
			return err
		}
	}
	return nil
}

// Parked implements [validation.Parked].
func (w *world) Parked(context.Context) ([]validation.ParkedDocument, error) { return w.parked, nil }

// side reads one side of a world, document by document, not at one moment.
type side struct {
	w      *world
	store  store
	reads  int
	exact  bool                   // it gives nothing behind what is wanted
	lax    func(keys []chunk.Key) // it has another order unless it is told
	sorts  []bool                 // of its scans
	break_ func(docs []bson.Raw) []bson.Raw
}

// Scan implements [validation.Side].
func (s *side) Scan(ctx context.Context, r validation.Read, after bson.RawValue, limit int) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		at, end, open := chunk.KeyMin, chunk.KeyMax, true
		if after.Type != 0 {
			at, _ = chunk.EncodeValue(after)
			open = false
		}
		if s.exact && r.Until.Type != 0 {
			end, _ = chunk.EncodeValue(r.Until)
		}
		s.w.mu.Lock()
		var keys []chunk.Key
		for k := range s.store[r.Collection] {
			if (open || k > at) && k <= end {
				keys = append(keys, k)
			}
		}
		s.sorts = append(s.sorts, r.Sort)
		s.w.mu.Unlock()
		slices.Sort(keys)
		if s.lax != nil && !r.Sort && len(keys) > 0 {
			s.lax(keys)
		}
		var docs []bson.Raw
		for _, k := range keys[:min(len(keys), limit)] {
			s.w.mu.Lock()
			doc, ok := s.store[r.Collection][k]
			s.w.mu.Unlock()
			if ok {
				docs = append(docs, doc)
			}
		}
		if s.break_ != nil {
			docs = s.break_(docs)
		}
		for _, doc := range docs {
			if !yield(doc, ctx.Err()) {
				return
			}
		}
	}
}

// Get implements [validation.Side].
func (s *side) Get(_ context.Context, r validation.Read, ids []bson.RawValue) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		for _, id := range ids {
			k, _ := chunk.EncodeValue(id)
			s.w.mu.Lock()
			doc, ok := s.store[r.Collection][k]
			s.reads++
			s.w.mu.Unlock()
			if ok && !yield(doc, nil) {
				return
			}
		}
	}
}

// validator compares the sides of w.
func (w *world) validator() *validation.Validator {
	return &validation.Validator{
		Source: &side{w: w, store: w.source}, Target: &side{w: w, store: w.target}, Markers: w, Log: w, Parked: w, Database: database,
		Settings: validation.Settings{Slice: 10, Few: 3},
	}
}

// follow runs the lanes for the length of the test.
func (w *world) follow(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { w.lanes(ctx) })
	t.Cleanup(func() {
		cancel()
		w.mu.Lock()
		w.changed.Broadcast()
		w.mu.Unlock()
		group.Wait()
	})
}

// run validates the collections of w.
func (w *world) run(t *testing.T, v *validation.Validator, collections ...string) validation.Result {
	t.Helper()
	w.follow(t)
	result, err := v.Run(t.Context(), collections)
	require.NoError(t, err)
	return result
}

// random gives a deterministic source of numbers.
func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }
