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
// left in it; and the cuts before.
func (p places) within(part stretch, most int) (until bson.RawValue, before []bson.RawValue, err error) {
	lo, err := keyOr(part.after, chunk.KeyMin)
	if err != nil {
		return until, nil, err
	}
	hi, err := keyOr(part.until, chunk.KeyMax)
	if err != nil {
		return until, nil, err
	}
	sum := int64(0)
	for _, c := range p {
		if c.key <= lo {
			continue
		}
		if sum += c.Documents; c.key > hi || sum > int64(most) && until.Type != 0 {
			break
		}
		if until.Type != 0 {
			before = append(before, until)
		}
		until = c.At
	}
	if until.Type == 0 {
		until = part.until
	}
	return until, before, nil
}
