package validation

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
)

// Offsets say for each partition of a captured log where to read on.
type Offsets []int64

// Trail is a captured log as the continuous verification reads it.
type Trail interface {
	// Until calls fn for the events from some offsets on, up to a marker in each
	// partition, or to the end as it is now when the marker is zero. fn ends it
	// early by false. It gives where to read on and whether it came to the end.
	Until(ctx context.Context, from Offsets, to Mark, fn func(*event.Event) (more bool, err error)) (next Offsets, reached bool, err error)
}

// WatchState is all that a verification needs to go on after a restart: every
// change before Offsets has been verified, the documents in Suspects aside.
type WatchState struct {
	Offsets  Offsets    `bson:"offsets"`
	Foreign  Offsets    `bson:"foreign,omitempty"` // in the target's log
	Suspects []Document `bson:"suspects"`          // at most Settings.Suspects
	Verified int64      `bson:"verified"`          // documents found the same
	Rounds   int64      `bson:"rounds"`

	Scan *Checkpoint `bson:"scan,omitempty"` // a validation is under way: there is nothing to go on from yet
}

// WatchReport is what one round has come to.
type WatchReport struct {
	Verified   int64      // documents found the same since the validation
	Rounds     int64      //
	Behind     bool       // changes before the last marker are still to be read
	Pending    int        // they differed once and are to be checked once more
	Hot        []Document // changed in each of the last rounds; at most Settings.Few
	TooHot     int        // how many more there are
	Mismatches []Mismatch // found in this round
	Equal      []Document // suspects found the same in this round, at most Settings.Reports
	Catalog    []CatalogDifference
	Mark       Mark // the round ended at it
}

// Watcher verifies what changes on the source after a validation, until its
// context ends. Each change makes its document a suspect; suspects are compared
// between two markers; one that changed meanwhile is met again in the log. Its
// memory does not grow with the chunk nor with the backlog.
type Watcher struct {
	*Validator
	Trail   Trail
	Foreign Trail                // of the target: changes that are not a replicator's; nil: not watched
	Every   func() time.Duration // between the beginnings of rounds at least; nil: 1 s
	// Done is called after each round; what it is given may be kept. The documents
	// that it gives back are compared again. Its error ends the watch.
	Done func(ctx context.Context, s WatchState, r WatchReport) (again []Document, err error)
}

// hotAfter is how many rounds in turn a document must have changed in to be left
// for the comparison under the fence.
const hotAfter = 3

// watch is a verification under way.
type watch struct {
	*run
	w       *Watcher
	state   WatchState
	streaks map[docKey]int // rounds in which a suspect changed, without a break
	recheck bool           // catalogs are to be compared
	catalog []CatalogDifference
}

// Watch goes on from a state until ctx ends or an error.
func (w *Watcher) Watch(ctx context.Context, s WatchState) error {
	whole := *w.Validator
	whole.Settings = w.Settings.withDefaults()
	o := &watch{
		w: w, state: s, streaks: map[docKey]int{},
		run: &run{Validator: &whole, suspects: map[docKey]*suspect{}, started: time.Now(), result: Result{Kinds: map[Kind]int64{}}},
	}
	for _, d := range s.Suspects {
		if err := o.remember(d.Collection, d.ID.Lookup("_id")); err != nil {
			return err
		}
	}
	if err := o.markBy(ctx, o.writeMark); err != nil {
		return err
	}
	for {
		begun := time.Now()
		behind, err := o.once(ctx)
		if err != nil {
			return err
		}
		if behind {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(w.every() - time.Since(begun)):
		}
	}
}

// every is how long after another a round begins at least.
func (w *Watcher) every() time.Duration {
	if w.Every == nil {
		return time.Second
	}
	return w.Every()
}

// once is one round: suspects from the log, compared up to the next marker. One
// without suspects is no work for the shards and the lanes.
func (o *watch) once(ctx context.Context) (behind bool, err error) {
	reached, err := o.fill(ctx)
	if err != nil {
		return false, err
	}
	r := WatchReport{Behind: !reached}
	if len(o.suspects) > 0 {
		err = o.compare(ctx, &r)
	} else {
		o.streaks = map[docKey]int{}
		err = o.markBy(ctx, o.writeMark)
	}
	if err != nil {
		return false, err
	}
	r.Mark = o.mark
	if err := o.compareCatalogs(ctx, &r); err != nil {
		return false, err
	}
	return !reached, o.report(ctx, r)
}

// compare compares the suspects between the last marker, once the lane has passed it,
// and the next one.
func (o *watch) compare(ctx context.Context, r *WatchReport) error {
	late, err := o.passMark(ctx, o.mark)
	if late { // a newer one covers it
		err = o.newMark(ctx)
	}
	if err != nil {
		return err
	}
	seen, err := o.compareSuspects(ctx)
	if err != nil {
		return err
	}
	from := o.mark
	if err := o.markBy(ctx, o.writeMark); err != nil {
		return err
	}
	touched := NewTouched(o.Database, len(o.suspects))
	touched.only = func(key docKey) bool { return o.suspects[key] != nil }
	if err := o.Log.Touched(ctx, from, o.mark, touched); err != nil {
		return fmt.Errorf("read the captured log from %s to %s: %w", from.Marker.Key(), o.mark.Marker.Key(), err)
	}
	o.recheck = o.recheck || touched.ddl != nil
	o.settle(seen, touched, r)
	return nil
}

// report tells what a round came to. What was found to differ stays a suspect in
// the state that is kept: a restart must not forget it.
func (o *watch) report(ctx context.Context, r WatchReport) error {
	o.state.Rounds++
	o.state.Suspects = nil
	for key, s := range o.suspects {
		o.state.Suspects = append(o.state.Suspects, documentOf(key, s.id))
	}
	for _, m := range r.Mismatches {
		o.state.Suspects = append(o.state.Suspects, m.Document)
	}
	r.Verified, r.Rounds, r.Pending = o.state.Verified, o.state.Rounds, len(o.suspects)
	if o.w.Done == nil {
		return nil
	}
	again, err := o.w.Done(ctx, o.state, r)
	if err != nil {
		return err
	}
	for _, d := range again {
		if err := o.remember(d.Collection, d.ID.Lookup("_id")); err != nil {
			return err
		}
	}
	return nil
}

// remember makes a document a suspect.
func (o *watch) remember(collection string, id bson.RawValue) error {
	key, err := chunk.EncodeValue(id)
	if err != nil {
		return fmt.Errorf("_id of %s: %w", collection, err)
	}
	at := docKey{collection, key}
	if o.suspects[at] == nil {
		o.suspects[at] = &suspect{id: cloneValue(id)}
	}
	return nil
}

// cloneValue gives a value that shares no memory with the event it came from.
func cloneValue(v bson.RawValue) bson.RawValue {
	return bson.RawValue{Type: v.Type, Value: slices.Clone(v.Value)}
}

// fill takes changes up to the last marker, as many as may be remembered.
func (o *watch) fill(ctx context.Context) (reached bool, err error) {
	take := func(database string, labelled bool) func(*event.Event) (bool, error) {
		return func(e *event.Event) (bool, error) {
			if e.Database != database || e.Op == event.Mark || !labelled && e.Label != 0 {
				return true, nil
			}
			if !e.Op.OnDocument() {
				o.recheck = true
				return true, nil
			}
			if err := o.remember(e.Collection, e.ID()); err != nil {
				return false, err
			}
			return len(o.suspects) < o.Settings.Suspects, nil
		}
	}
	next, reached, err := o.w.Trail.Until(ctx, o.state.Offsets, o.mark, take(o.Database, true))
	if err != nil {
		return false, fmt.Errorf("read the source's captured log: %w", err)
	}
	o.state.Offsets = next
	if o.w.Foreign == nil || len(o.suspects) >= o.Settings.Suspects {
		return reached && o.w.Foreign == nil, nil
	}
	next, all, err := o.w.Foreign.Until(ctx, o.state.Foreign, Mark{}, take(o.w.TargetDatabase, false))
	if err != nil {
		return false, fmt.Errorf("read the target's captured log: %w", err)
	}
	o.state.Foreign = next
	return reached && all, nil
}

// settle turns what one round saw into verdicts. A suspect that changed is met
// again in the log, behind the marker up to which suspects were taken.
func (o *watch) settle(seen map[docKey]*found, touched *Touched, r *WatchReport) {
	streaks := map[docKey]int{}
	for key, s := range o.suspects {
		f := seen[key]
		switch {
		case touched.has(key):
			delete(o.suspects, key)
			if streaks[key] = o.streaks[key] + 1; streaks[key] >= hotAfter {
				o.hot(documentOf(key, s.id), r)
			}
		case f == nil:
			delete(o.suspects, key)
			o.state.Verified++
			if len(r.Equal) < o.Settings.Reports {
				r.Equal = append(r.Equal, documentOf(key, s.id))
			}
		case s.last != nil:
			delete(o.suspects, key)
			r.Mismatches = append(r.Mismatches, f.report(s.firstSeen))
		default:
			s.last, s.firstSeen = f, time.Now()
		}
	}
	o.streaks = streaks
}

// hot notes a document that cannot be compared before the fence.
func (o *watch) hot(d Document, r *WatchReport) {
	if len(r.Hot) < o.Settings.Few {
		r.Hot = append(r.Hot, d)
		return
	}
	r.TooHot++
}

// compareCatalogs looks at options and indexes again after DDL, and goes on
// doing so while they differ: what follows on the target takes its time.
func (o *watch) compareCatalogs(ctx context.Context, r *WatchReport) error {
	if !o.recheck || o.Catalog == nil {
		return nil
	}
	diffs, err := o.Catalog.CompareCatalog(ctx)
	if err != nil {
		return fmt.Errorf("compare catalogs: %w", err)
	}
	o.recheck = len(diffs) > 0
	if len(diffs) > 0 && len(o.catalog) > 0 { // twice in turn
		r.Catalog = diffs
	}
	o.catalog = diffs
	return nil
}

// Collect gives the documents of a database that a log tells of between some
// offsets and its end. More than limit of them are an error: what is not
// compared is not known to be the same.
func Collect(ctx context.Context, t Trail, from Offsets, database string, limit int) ([]Document, error) {
	set := NewTouched(database, limit)
	_, _, err := t.Until(ctx, from, Mark{}, func(e *event.Event) (bool, error) { return true, set.Add(e) })
	if err != nil {
		return nil, err
	}
	if set.overflow {
		return nil, failure.New(failure.Mismatch, "validation.overflow", "more than %d documents changed since they were last compared", limit).
			WithHint("drover validate compares everything")
	}
	out := make([]Document, 0, len(set.docs))
	for key, id := range set.docs {
		out = append(out, documentOf(key, id))
	}
	return out, nil
}
