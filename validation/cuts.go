package validation

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// place is a cut with its key.
type place struct {
	Cut
	key chunk.Key
}

// places are cuts in the order of _id.
type places []place

// placesOf gives the cuts of a collection.
func (v *Validator) placesOf(ctx context.Context, collection string) (places, error) {
	if v.Cuts == nil {
		return nil, nil
	}
	cuts, err := v.Cuts.Cuts(ctx, collection)
	if err != nil {
		return nil, fmt.Errorf("cuts of %s: %w", collection, err)
	}
	out := make(places, 0, len(cuts))
	for _, c := range cuts {
		key, err := chunk.EncodeValue(c.At)
		if err != nil {
			return nil, fmt.Errorf("a cut of %s: %w", collection, err)
		}
		out = append(out, place{c, key})
	}
	slices.SortFunc(out, func(a, b place) int { return cmp.Compare(a.key, b.key) })
	return out, nil
}

// within gives where the next slice of a part of a collection ends: at the last cut up to
// which about most documents lie, the next one at least, or with the part where no cut is
// left in it; and the cuts before. The order is left out where fewer than most documents are to be
// expected, and some of what is asked comes in order without it.
func (p places) within(name string, part stretch, most int) (Read, error) {
	r := Read{Collection: name, Sort: true}
	lo, err := keyOr(part.after, chunk.KeyMin)
	if err != nil {
		return r, err
	}
	hi, err := keyOr(part.until, chunk.KeyMax)
	if err != nil {
		return r, err
	}
	sum := int64(0)
	for _, c := range p {
		if c.key <= lo {
			continue
		}
		if c.key > hi || sum+c.Documents > int64(most) && r.Until.Type != 0 {
			break
		}
		if r.Until.Type != 0 {
			r.Cuts = append(r.Cuts, r.Until)
		}
		r.Until = c.At
		sum += c.Documents
	}
	if r.Until.Type == 0 {
		r.Until = part.until
		return r, nil
	}
	r.Sort = sum >= int64(most) || !slices.ContainsFunc(append([]bson.RawValue{part.after, r.Until}, r.Cuts...), isOrdered)
	return r, nil
}
