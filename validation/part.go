package validation

import (
	"context"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// Part is those documents of a side that one leg of a split or merge is about.
// The source is looked at through the target's range; the target, where other
// sources fill it too, without theirs: a document of it that nobody's range
// explains is still an extra one.
type Part struct {
	Side
	Keep *chunk.Keep
}

// Scan implements [Side]: limit counts what is kept.
func (p Part) Scan(ctx context.Context, r Read, after bson.RawValue, limit int) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		for left := limit; left > 0; {
			read, last := 0, bson.RawValue{}
			for doc, err := range p.Side.Scan(ctx, r, after, limit) {
				if err != nil {
					yield(nil, err)
					return
				}
				read++
				id := doc.Lookup("_id")
				last.Type, last.Value = id.Type, append(last.Value[:0], id.Value...)
				kept, err := p.Keep.Has(r.Collection, doc)
				if err != nil {
					yield(nil, err)
					return
				}
				if !kept {
					continue
				}
				if !yield(doc, nil) {
					return
				}
				if left--; left == 0 {
					return
				}
			}
			if read < limit {
				return
			}
			if !r.Sort {
				yield(nil, errCutOff)
				return
			}
			after = last
		}
	}
}

// Get implements [Side].
func (p Part) Get(ctx context.Context, r Read, ids []bson.RawValue) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		for doc, err := range p.Side.Get(ctx, r, ids) {
			if err == nil {
				var kept bool
				if kept, err = p.Keep.Has(r.Collection, doc); err == nil && !kept {
					continue
				}
			}
			if !yield(doc, err) || err != nil {
				return
			}
		}
	}
}
