package validation

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/internal/failure"
)

// suspect is a document that has to be read again.
type suspect struct {
	id        bson.RawValue
	last      *found    // how it differed when nothing touched it, nil when it did not or was busy
	firstSeen time.Time // of the difference
}

// run is one validation under way.
type run struct {
	*Validator
	result   Result
	suspects map[docKey]*suspect
	mark     Mark // the last one written, passed by the lane, in a watch once there is something to compare
	round    int
	started  time.Time
	done     []string  // collections that were compared
	kept     time.Time // the newest checkpoint
}

// Run compares all collections and returns what it found; differences are no
// error. An error means that the comparison did not finish: nothing is known.
func (v *Validator) Run(ctx context.Context, collections []string) (Result, error) {
	whole := *v
	whole.Settings = v.Settings.withDefaults()
	r := &run{
		Validator: &whole, suspects: map[docKey]*suspect{}, started: time.Now(), kept: time.Now(),
		result: Result{Collections: map[string]Counts{}, Kinds: map[Kind]int64{}},
	}
	var catalog []CatalogDifference
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.compare(ctx, collections) })
	g.Go(func() (err error) { // which costs some servers a look at all documents
		if v.Catalog == nil {
			return nil
		}
		if catalog, err = v.Catalog.CompareCatalog(ctx); err != nil {
			return fmt.Errorf("compare catalogs: %w", err)
		}
		return nil
	})
	err := g.Wait()
	r.result.Catalog, r.result.SecondsTaken = catalog, Seconds(time.Since(r.started).Seconds())
	return r.result, err
}

// compare compares the documents of all collections.
func (r *run) compare(ctx context.Context, collections []string) error {
	if err := r.newMark(ctx); err != nil {
		return err
	}
	r.result.First = r.mark
	if r.From != nil {
		if err := r.restore(r.From); err != nil {
			return err
		}
	}
	for _, name := range collections {
		if slices.Contains(r.done, name) {
			continue
		}
		if err := r.scan(ctx, name, r.From.leftOf(name)); err != nil {
			return err
		}
		r.done = append(r.done, name)
	}
	for r.unsettled() {
		if err := r.reread(ctx); err != nil {
			return err
		}
	}
	r.finish()
	return nil
}

// newMark writes a marker and waits for the capture and the lanes. Each is waited for a
// while, and then a newer one is written, which covers it. Lanes that pass none for long
// are too slow for any comparison.
func (r *run) newMark(ctx context.Context) error {
	return r.markBy(ctx, func(ctx context.Context) (Mark, bool, error) {
		m, late, err := r.writeMark(ctx)
		if err == nil {
			late, err = r.passMark(ctx, m)
		}
		return m, late, err
	})
}

// markBy tries to come to a new mark until it is not late.
func (r *run) markBy(ctx context.Context, try func(context.Context) (m Mark, late bool, err error)) error {
	began := time.Now()
	for tries := 1; ; tries++ {
		m, late, err := try(ctx)
		switch {
		case err == nil:
			r.mark = m
			return nil
		case !late:
			return err
		case time.Since(began) >= r.Settings.LanesPatience:
			return failure.New(failure.Transient, "validation.lanes_behind", "the lanes passed none of %d markers within %v: %w",
				tries, r.Settings.LanesPatience, err).
				WithHint("the validation begins again; drover migrate status says what holds the lanes, and whether they ever get through")
		}
	}
}

// writeMark writes one marker. What took too long may be tried again.
func (r *run) writeMark(ctx context.Context) (m Mark, late bool, err error) {
	if m, err = r.Markers.Write(ctx); err != nil {
		return m, failure.HasCode(err, Uncaptured), fmt.Errorf("write a validate marker: %w", err)
	}
	return m, false, nil
}

// passMark waits for the lanes to pass a marker. What took too long may be tried again
// with a newer one.
func (r *run) passMark(ctx context.Context, m Mark) (late bool, err error) {
	patient, cancel := context.WithTimeout(ctx, r.Settings.MarkerPatience)
	defer cancel()
	if err := r.Markers.Passed(patient, m); err != nil {
		return patient.Err() != nil && ctx.Err() == nil, fmt.Errorf("wait for the lanes to pass %s: %w", m.Marker.Key(), err)
	}
	return false, nil
}

// bracket writes the marker that ends what was read since the last one, and
// gives what the source changed in between. The new marker begins the next
// bracket.
func (r *run) bracket(ctx context.Context) (*Touched, error) {
	from := r.mark
	if err := r.newMark(ctx); err != nil {
		return nil, err
	}
	set := NewTouched(r.Database, r.Settings.Suspects)
	if err := r.Log.Touched(ctx, from, r.mark, set); err != nil {
		return nil, fmt.Errorf("read the captured log from %s to %s: %w", from.Marker.Key(), r.mark.Marker.Key(), err)
	}
	if set.ddl != nil {
		return nil, failure.New(failure.Transient, "validation.ddl", "%s of %s.%s while it was validated", set.ddl.Op, set.ddl.Database, set.ddl.Collection).
			WithHint("validation begins again; it cannot finish while collections or indexes change")
	}
	if set.overflow {
		return nil, failure.New(failure.Transient, "validation.overflow", "more than %d documents changed while one slice was read", r.Settings.Suspects).
			WithHint("make slices smaller, or validate when fewer documents are written")
	}
	return set, nil
}

// suspect notes that a document has to be read again. Where there are too many,
// one that differed is a mismatch at once, and one that was busy stays busy.
func (r *run) suspect(key docKey, id bson.RawValue, f *found) {
	if len(r.suspects) >= r.Settings.Suspects && r.suspects[key] == nil {
		if f == nil {
			r.result.TooBusy++
			return
		}
		r.result.Unfinished++
		r.mismatch(*f, time.Now())
		return
	}
	s := &suspect{id: own(id), last: f} // of an event it is part of all that was read beside it
	if f != nil {
		s.firstSeen = time.Now()
	}
	r.suspects[key] = s
}

// pending counts the suspects that differed.
func (r *run) pending() int {
	n := 0
	for _, s := range r.suspects {
		if s.last != nil {
			n++
		}
	}
	return n
}

// unsettled reports whether another round is due: every suspect is read again at
// least once; then while a difference is to be checked once more, or more
// documents are busy than may be left for the fence.
func (r *run) unsettled() bool {
	if r.round >= r.Settings.Rounds {
		return false
	}
	pending := r.pending()
	return pending > 0 || r.round == 0 && len(r.suspects) > 0 || len(r.suspects)-pending > r.Settings.Few
}

// reread compares the suspects again, and nothing else.
func (r *run) reread(ctx context.Context) error {
	r.round++
	seen, err := r.compareSuspects(ctx)
	if err != nil {
		return err
	}
	touched, err := r.bracket(ctx)
	if err != nil {
		return err
	}
	for key, s := range r.suspects {
		f := seen[key]
		switch {
		case touched.has(key):
			s.last = nil
		case f == nil:
			delete(r.suspects, key)
		case s.last != nil:
			delete(r.suspects, key)
			r.mismatch(*f, s.firstSeen)
		default:
			s.last = f
			if s.firstSeen.IsZero() {
				s.firstSeen = time.Now()
			}
		}
	}
	r.report(ctx, "")
	return nil
}

// compareSuspects reads all suspects on both sides and gives those that differ.
func (r *run) compareSuspects(ctx context.Context) (map[docKey]*found, error) {
	byCollection := map[string][]bson.RawValue{}
	for key, s := range r.suspects {
		byCollection[key.collection] = append(byCollection[key.collection], s.id)
	}
	differ := map[docKey]*found{}
	for name, ids := range byCollection {
		list, err := r.compareIDs(ctx, name, r.mark.At, ids)
		if err != nil {
			return nil, err
		}
		r.result.Reread += int64(len(ids))
		for _, f := range list {
			differ[f.key] = &f
		}
	}
	return differ, nil
}

// mismatch counts a document that differs, and reports it if there is room.
func (r *run) mismatch(f found, firstSeen time.Time) {
	r.result.Mismatched++
	r.result.Kinds[f.difference.Kind]++
	if len(r.result.Mismatches) < r.Settings.Reports {
		r.result.Mismatches = append(r.result.Mismatches, f.report(firstSeen))
	}
}

// report gives a mismatch as it is reported.
func (f found) report(firstSeen time.Time) Mismatch {
	return Mismatch{
		Document: documentOf(f.key, f.id), Difference: f.difference, SourceHash: f.source, TargetHash: f.target,
		FirstSeen: firstSeen, Age: Seconds(time.Since(firstSeen).Seconds()),
	}
}

// documentOf names a document.
func documentOf(key docKey, id bson.RawValue) Document {
	raw, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
	if err != nil {
		panic(fmt.Sprintf("encode an _id that was read: %v", err))
	}
	return Document{Collection: key.collection, ID: raw}
}

// finish turns what is left into the result: a difference that could not be
// checked once more counts, a few busy documents are handed on.
func (r *run) finish() {
	var busy []docKey
	for key, s := range r.suspects {
		if s.last != nil {
			r.result.Unfinished++
			r.mismatch(*s.last, s.firstSeen)
			continue
		}
		busy = append(busy, key)
	}
	slices.SortFunc(busy, func(a, b docKey) int {
		return cmp.Or(cmp.Compare(a.collection, b.collection), cmp.Compare(a.id, b.id))
	})
	if len(busy) > r.Settings.Few {
		r.result.TooBusy += int64(len(busy))
		busy = nil
	}
	for _, key := range busy {
		r.result.Busy = append(r.result.Busy, documentOf(key, r.suspects[key].id))
	}
	r.result.Rounds = r.round + 1
}

// report tells how far the validation has come.
func (r *run) report(ctx context.Context, collection string) {
	if r.Progress == nil {
		return
	}
	pending := r.pending()
	r.Progress(ctx, Progress{
		Collection: collection, Round: r.round, Documents: r.result.Documents, Bytes: r.result.Bytes,
		Busy: len(r.suspects) - pending, Pending: pending, Mismatches: r.result.Mismatched,
	})
}

// idsAtOnce bounds the _ids in one query.
const idsAtOnce = 500

// CompareIDs compares some documents as they are now. It is for the fence, where
// nothing is written and the lane has passed the last event: each difference
// is a mismatch.
func (v *Validator) CompareIDs(ctx context.Context, collection string, ids []bson.RawValue) ([]Mismatch, error) {
	now := time.Now()
	list, err := v.compareIDs(ctx, collection, bson.Timestamp{}, ids)
	if err != nil {
		return nil, err
	}
	mismatches := make([]Mismatch, 0, len(list))
	for _, f := range list {
		mismatches = append(mismatches, f.report(now))
	}
	return mismatches, nil
}

// compareIDs reads documents by _id on both sides and gives those that differ.
func (v *Validator) compareIDs(ctx context.Context, collection string, since bson.Timestamp, ids []bson.RawValue) ([]found, error) {
	parked, err := v.parkedNow(ctx)
	if err != nil {
		return nil, fmt.Errorf("list parked documents: %w", err)
	}
	var differ slice
	for part := range slices.Chunk(ids, idsAtOnce) {
		source, err := gather(ctx, v.Source, Read{Collection: collection, Since: since}, part)
		if err != nil {
			return nil, fmt.Errorf("read %s on the source: %w", collection, err)
		}
		target, err := gather(ctx, v.Target, Read{Collection: collection}, part)
		if err != nil {
			return nil, fmt.Errorf("read %s on the target: %w", collection, err)
		}
		for _, id := range part {
			key, err := chunk.EncodeValue(id)
			if err != nil {
				return nil, fmt.Errorf("_id of %s: %w", collection, err)
			}
			have, ok := target[key]
			if image, isParked := parked[docKey{collection, key}]; !ok && isParked {
				have = image
			}
			differ.compare(found{key: docKey{collection, key}, id: id}, source[key], have)
		}
	}
	return differ.differ, nil
}

// gather reads documents by _id into memory.
func gather(ctx context.Context, side Side, r Read, ids []bson.RawValue) (map[chunk.Key]bson.Raw, error) {
	docs := make(map[chunk.Key]bson.Raw, len(ids))
	for doc, err := range side.Get(ctx, r, ids) {
		if err != nil {
			return nil, err
		}
		key, err := chunk.EncodeValue(doc.Lookup("_id"))
		if err != nil {
			return nil, err
		}
		docs[key] = bytes.Clone(doc)
	}
	return docs, nil
}
