package validation

import (
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
func (v *Validator) reading(ctx context.Context, side Side, name string, r Read, after bson.RawValue, lo chunk.Key) *stream {
	inner, cancel := context.WithCancel(ctx)
	return newStream(inner, name, side.Scan(inner, r, after, v.Settings.Slice), lo, v.Settings.Slice, cancel)
}

// compareSlice reads the next slice of a collection on both sides at once and merges
// them. The slice ends at until, or where the side that has more documents reaches
// its limit.
func (v *Validator) compareSlice(ctx context.Context, r Read, after bson.RawValue, parked parkedImages) (slice, error) {
	out := slice{lo: chunk.KeyMin, hi: chunk.KeyMax}
	if after.Type != 0 {
		key, err := chunk.EncodeValue(after)
		if err != nil {
			return out, err
		}
		out.lo = key
	}
	if r.Until.Type != 0 {
		key, err := chunk.EncodeValue(r.Until)
		if err != nil {
			return out, err
		}
		out.hi, out.next = key, r.Until
	}
	source := v.reading(ctx, v.Source, "source", r, after, out.lo)
	defer source.close()
	target := v.reading(ctx, v.Target, "target", Read{Collection: r.Collection, Until: r.Until}, after, out.lo)
	defer target.close()
	for _, s := range []*stream{source, target} {
		if err := s.next(ctx); err != nil {
			return out, err
		}
	}
	for !out.ended(source, target) {
		if err := out.step(ctx, r.Collection, source, target, parked); err != nil {
			return out, err
		}
	}
	out.unmatchedParked(r.Collection, parked)
	return out, nil
}

// ended reports whether all that can be compared is, and settles where the slice
// ends: no document behind the last one of a side that stopped at its limit can
// be compared.
func (o *slice) ended(source, target *stream) bool {
	for _, s := range []*stream{source, target} {
		if s.full() && s.key < o.hi {
			o.hi, o.next = s.key, s.id
		}
	}
	behind := func(s *stream) bool { return s.doc == nil || s.key > o.hi }
	return behind(source) && behind(target)
}

// step compares the lowest document of the two heads and takes it off.
func (o *slice) step(ctx context.Context, collection string, source, target *stream, parked parkedImages) error {
	onSource := source.doc != nil && (target.doc == nil || source.key <= target.key)
	onTarget := target.doc != nil && (source.doc == nil || target.key <= source.key)
	f := found{key: docKey{collection: collection}}
	var have, want bson.Raw
	if onTarget {
		have, f.id, f.key.id = target.doc, target.id, target.key
	}
	if onSource {
		want, f.id, f.key.id = source.doc, source.id, source.key
		o.source++
		o.bytes += int64(len(want))
	}
	image, isParked := parked[f.key]
	if isParked {
		delete(parked, f.key)
	}
	if have == nil && isParked {
		have = image
	}
	if have != nil {
		o.target++
	}
	o.compare(f, want, have)
	if onSource {
		if err := source.next(ctx); err != nil {
			return err
		}
	}
	if onTarget {
		return target.next(ctx)
	}
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
