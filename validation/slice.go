package validation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// slice is what one reading of a range of _id gave.
type slice struct {
	differ []found
	lo, hi chunk.Key     // what was compared: behind lo, up to hi and with it
	next   bson.RawValue // what the next slice begins behind, zero after the last one
	source int64
	target int64
	bytes  int64
}

// found is a document that differed.
type found struct {
	key            docKey
	id             bson.RawValue
	difference     Difference
	source, target string // hashes
}

// reading begins to read one side's share of a slice.
func (v *Validator) reading(ctx context.Context, side Side, name string, r Read, after bson.RawValue) *stream {
	inner, cancel := context.WithCancel(ctx)
	return newStream(inner, name, side.Scan(inner, r, after, v.Settings.Slice), after, v.Settings.Slice, cancel)
}

// compareSlice reads the next slice of a collection on both sides at once and merges
// them. The slice ends at r.Until, or where the side that has more documents reaches
// its limit.
func (v *Validator) compareSlice(ctx context.Context, r Read, after bson.RawValue, parked parkedImages) (slice, error) {
	out := slice{lo: chunk.KeyMin, hi: chunk.KeyMax, next: r.Until}
	source := v.reading(ctx, v.Source, "source", r, after)
	defer source.close()
	r.Since = bson.Timestamp{} // the lanes have passed it
	target := v.reading(ctx, v.Target, "target", r, after)
	defer target.close()
	for _, s := range []*stream{source, target} {
		if err := s.next(ctx); err != nil {
			return out, err
		}
	}
	for {
		ended, err := out.ended(source, target)
		if err != nil {
			return out, err
		}
		if ended {
			break
		}
		if err := out.step(ctx, r.Collection, source, target, parked); err != nil {
			return out, err
		}
	}
	for _, s := range []*stream{source, target} {
		if err := s.rest(ctx, r.Sort); err != nil {
			return out, err
		}
	}
	var err error
	if out.lo, err = keyOr(after, chunk.KeyMin); err != nil {
		return out, err
	}
	if out.hi, err = keyOr(out.next, chunk.KeyMax); err != nil {
		return out, err
	}
	out.unmatchedParked(r.Collection, parked)
	return out, nil
}

// keyOr gives the key of an _id, another one where there is none.
func keyOr(id bson.RawValue, other chunk.Key) (chunk.Key, error) {
	if id.Type == 0 {
		return other, nil
	}
	return chunk.EncodeValue(id)
}

// ended reports whether all that can be compared is, and settles where the slice
// ends: no document behind the last one of a side that stopped at its limit can
// be compared.
func (o *slice) ended(source, target *stream) (bool, error) {
	both := []*stream{source, target}
	for _, s := range both {
		if !s.full() {
			continue
		}
		more, err := isBehind(o.next, s.id)
		if err != nil {
			return false, err
		}
		if more || o.next.Type == 0 {
			o.next = s.id
		}
	}
	for _, s := range both {
		if s.doc == nil {
			continue
		}
		if behind, err := isBehind(s.id, o.next); err != nil || !behind {
			return false, err
		}
	}
	return true, nil
}

// isBehind reports whether an _id lies behind an end, if there is one.
func isBehind(id, end bson.RawValue) (bool, error) {
	if end.Type == 0 || id.Type == 0 {
		return false, nil
	}
	order, err := chunk.CompareValues(id, end)
	return order > 0, err
}

// step compares the lowest document of the two heads and takes it off.
func (o *slice) step(ctx context.Context, collection string, source, target *stream, parked parkedImages) error {
	order, err := inOrder(source, target)
	if err != nil {
		return err
	}
	var want, have bson.Raw
	id := target.id
	if order <= 0 {
		want, id = source.doc, source.id
		o.source++
		o.bytes += int64(len(want))
	}
	if order >= 0 {
		have = target.doc
		o.target++
	}
	if len(parked) > 0 || !bytes.Equal(want, have) {
		if err := o.note(docKey{collection: collection}, id, want, have, parked); err != nil {
			return err
		}
	}
	if order <= 0 {
		if err := source.next(ctx); err != nil {
			return err
		}
	}
	if order >= 0 {
		return target.next(ctx)
	}
	return nil
}

// inOrder compares the heads of two streams, of which one may have ended: the negative
// one is first.
func inOrder(source, target *stream) (int, error) {
	switch {
	case target.doc == nil:
		return -1, nil
	case source.doc == nil:
		return 1, nil
	default:
		return chunk.CompareValues(source.id, target.id)
	}
}

// note notes a document that differs, unless it is parked where the target has none.
func (o *slice) note(key docKey, id bson.RawValue, want, have bson.Raw, parked parkedImages) (err error) {
	if key.id, err = chunk.EncodeValue(id); err != nil {
		return err
	}
	if image, isParked := parked[key]; isParked {
		delete(parked, key)
		if have == nil {
			have = image
			o.target++
		}
	}
	o.compare(found{key: key, id: own(id)}, want, have)
	return nil
}

// compare notes a document that differs.
func (o *slice) compare(f found, want, have bson.Raw) {
	d, ok := Diff(want, have)
	if ok {
		return
	}
	f.difference, f.source, f.target = d, hash(want), hash(have)
	o.differ = append(o.differ, f)
}

// unmatchedParked finds the parked documents within the slice that the source
// does not have.
func (o *slice) unmatchedParked(collection string, parked parkedImages) {
	for key, image := range parked {
		if key.collection != collection || !o.holds(key.id) {
			continue
		}
		delete(parked, key)
		o.compare(found{key: key, id: image.Lookup("_id")}, nil, image)
	}
}

// holds reports whether an _id lies in what was compared.
func (o *slice) holds(id chunk.Key) bool {
	return o.lo < id && id <= o.hi
}

// hash gives the SHA-256 of a document's bytes, empty for none.
func hash(doc bson.Raw) string {
	if doc == nil {
		return ""
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:])
}

// parkedImages are the parked documents that were not met yet.
type parkedImages map[docKey]bson.Raw

// parkedNow asks for the parked documents.
func (v *Validator) parkedNow(ctx context.Context) (parkedImages, error) {
	images := parkedImages{}
	if v.Parked == nil {
		return images, nil
	}
	list, err := v.Parked.Parked(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		key, err := chunk.EncodeValue(p.Image.Lookup("_id"))
		if err != nil {
			return nil, err
		}
		images[docKey{p.Collection, key}] = p.Image
	}
	return images, nil
}
