package validation

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/failure"
)

// mostGrowth is how many times as many documents as its settings say a slice may have.
const mostGrowth = 16

// grow makes slices larger while next to nothing changes in them, as each costs the
// time in which a marker goes through the log and all lanes; and smaller where much
// does, as that is to be read again. least is what the settings say.
func (r *run) grow(least int, s slice, changed int) {
	switch {
	case int64(changed)*100 <= s.source:
		r.Settings.Slice = min(2*r.Settings.Slice, mostGrowth*least)
	case int64(changed)*10 > s.source:
		r.Settings.Slice = max(r.Settings.Slice/2, least)
	}
}

// scan compares a collection for the first time, slice by slice. While a slice's
// marker goes through the log and the lanes, the next slice is read already. That read
// began behind the marker before, so that what changed since then counts for it too.
func (r *run) scan(ctx context.Context, name string) error {
	least := r.Settings.Slice
	defer func() { r.Settings.Slice = least }()
	cuts, err := r.placesOf(ctx, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	next := r.readAhead(ctx, name, cuts, bson.RawValue{})
	defer func() { cancel(); <-next.done }()
	before := NewTouched(r.Database, r.Settings.Suspects)
	for {
		<-next.done
		if next.err != nil {
			return fmt.Errorf("compare %s: %w", name, next.err)
		}
		s := next.slice
		if s.next.Type != 0 {
			next = r.readAhead(ctx, name, cuts, s.next)
		}
		touched, err := r.bracket(ctx)
		if err != nil {
			return err
		}
		r.grow(least, s, r.take(name, s, before, touched))
		r.report(ctx, name)
		if s.next.Type == 0 {
			return nil
		}
		before = touched
	}
}

// ahead is a slice that is read beside other work; done is closed when it is.
type ahead struct {
	done  chan struct{}
	slice slice
	err   error
}

// readAhead begins to read the slice behind an _id. All lanes have passed the newest
// marker.
func (r *run) readAhead(ctx context.Context, name string, cuts places, after bson.RawValue) *ahead {
	a := &ahead{done: make(chan struct{})}
	v, since := *r.Validator, r.mark.At // as they are now
	go func() {
		defer close(a.done)
		a.slice, a.err = v.readSlice(ctx, Read{Collection: name, Since: since}, cuts, after)
	}()
	return a
}

// readSlice compares the slice behind an _id. A server that gave it out of order
// is told the order.
func (v *Validator) readSlice(ctx context.Context, read Read, cuts places, after bson.RawValue) (s slice, err error) {
	if read.Until, read.Cuts, err = cuts.stretch(after, v.Settings.Slice); err != nil {
		return s, err
	}
	for {
		parked, err := v.parkedNow(ctx)
		if err != nil {
			return s, fmt.Errorf("list parked documents: %w", err)
		}
		s, err := v.compareSlice(ctx, read, after, parked)
		if read.Sort || !failure.HasCode(err, codeUnordered) {
			return s, err
		}
		read.Sort = true
	}
}

// take takes what was read of a slice into the result, and gives how many of its
// documents changed while it was.
func (r *run) take(name string, s slice, during ...*Touched) (changed int) {
	busy := map[docKey]bson.RawValue{}
	for _, t := range during {
		for key, id := range t.docs {
			if key.collection == name && s.holds(key.id) {
				busy[key] = id
			}
		}
	}
	for _, f := range s.differ {
		if _, touched := busy[f.key]; !touched {
			r.suspect(f.key, f.id, &f)
		}
	}
	for key, id := range busy {
		r.suspect(key, id, nil)
	}
	counts := r.result.Collections[name]
	counts.Source += s.source
	counts.Target += s.target
	r.result.Collections[name] = counts
	r.result.Documents += s.source
	r.result.Target += s.target
	r.result.Bytes += s.bytes
	return len(busy)
}
