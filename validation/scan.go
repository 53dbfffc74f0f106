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

// inFlight is how many slices are read at once: while what is in one of them is looked at,
// the shards find what is in the other one.
const inFlight = 2

// stretch is a part of a collection.
type stretch struct {
	after, until bson.RawValue // zero: from the first one, to the last one
}

// ahead is a slice that is read beside other work; done is closed when it is.
type ahead struct {
	done   chan struct{}
	after  bson.RawValue
	until  bson.RawValue
	during []*Touched // what changed since its read began, as far as it was looked at
	slice  slice
	err    error
}

// scan compares what is left of a collection for the first time, slice by slice. While a slice's
// marker goes through the log and the lanes, the next ones are read already. Their reads
// began behind a marker before, so that what changed since then counts for them too.
func (r *run) scan(ctx context.Context, name string, left []stretch) error {
	least := r.Settings.Slice
	defer func() { r.Settings.Slice = least }()
	cuts, err := r.placesOf(ctx, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var reading []*ahead
	defer func() {
		cancel()
		for _, a := range reading {
			<-a.done
		}
	}()
	begin := func(left []stretch) []stretch {
		for len(left) > 0 && len(reading) < inFlight {
			var a *ahead
			a, left = r.readAhead(ctx, name, cuts, left)
			reading = append(reading, a)
		}
		return left
	}
	left = begin(left)
	for len(reading) > 0 {
		a := reading[0]
		if <-a.done; a.err != nil {
			return fmt.Errorf("compare %s: %w", name, a.err)
		}
		if !a.slice.next.Equal(a.until) {
			left = append([]stretch{{after: a.slice.next, until: a.until}}, left...)
		}
		reading = reading[1:]
		left = begin(left)
		touched, err := r.bracket(ctx)
		if err != nil {
			return err
		}
		for _, b := range reading {
			b.during = append(b.during, touched)
		}
		r.grow(least, a.slice, r.take(name, a.slice, append(a.during, touched)...))
		r.report(ctx, name)
		if err := r.keep(ctx, name, reading, left); err != nil {
			return err
		}
	}
	return nil
}

// readAhead begins to read the next slice of what is left of a collection, and gives what
// is left then. All lanes have passed the newest marker.
func (r *run) readAhead(ctx context.Context, name string, cuts places, left []stretch) (*ahead, []stretch) {
	first := left[0]
	a := &ahead{done: make(chan struct{}), after: first.after}
	read, err := cuts.within(name, first, r.Settings.Slice)
	if a.err = err; err != nil {
		close(a.done)
		return a, left
	}
	read.Since = r.mark.At
	if a.until = read.Until; a.until.Equal(first.until) {
		left = left[1:]
	} else {
		left[0].after = a.until
	}
	v := *r.Validator // as it is now
	go func() {
		defer close(a.done)
		a.slice, a.err = v.readSlice(ctx, read, first.after)
	}()
	return a, left
}

// readSlice compares the slice behind an _id. A server that gave it out of order, or
// left something out without having been told the order, is told it.
func (v *Validator) readSlice(ctx context.Context, read Read, after bson.RawValue) (slice, error) {
	for {
		parked, err := v.parkedNow(ctx)
		if err != nil {
			return slice{}, fmt.Errorf("list parked documents: %w", err)
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
