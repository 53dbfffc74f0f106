package validation

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// Checkpoint is where a first reading stands: all but what is left was compared, the
// suspects aside. It stays right however much changes behind it: what does is for the
// verification, which begins at the first marker, and in the target's log where that
// stood before it.
type Checkpoint struct {
	First       Mark              `bson:"first"`
	Done        []string          `bson:"done"`       // collections that were compared
	Collection  string            `bson:"collection"` // the one that is being compared
	Left        []Stretch         `bson:"left"`       // what is left of it
	Suspects    []Document        `bson:"suspects"`
	Collections map[string]Counts `bson:"collections"`
	Bytes       int64             `bson:"bytes"`
	Foreign     Offsets           `bson:"foreign,omitempty"` // of the target's log when it began, for whoever keeps it
}

// Stretch is a part of a collection: behind one _id and up to another one, both as
// {_id: value}, none where it is open.
type Stretch struct {
	After bson.Raw `bson:"after,omitempty"`
	Until bson.Raw `bson:"until,omitempty"`
}

// mostKept is how many suspects a checkpoint may have.
const mostKept = 20_000

// keep gives a checkpoint, now and then. With too many suspects there is none until they
// are fewer: a run that is interrupted then begins where it stood before.
func (r *run) keep(ctx context.Context, collection string, reading []*ahead, left []stretch) error {
	if r.Keep == nil || time.Since(r.kept) < r.Settings.KeepEvery || len(r.suspects) > mostKept || r.result.Unfinished > 0 || r.result.TooBusy > 0 {
		return nil
	}
	c := Checkpoint{First: r.result.First, Done: r.done, Collection: collection, Collections: r.result.Collections, Bytes: r.result.Bytes}
	parts := make([]stretch, 0, len(reading)+len(left))
	for _, a := range reading {
		parts = append(parts, stretch{a.after, a.until})
	}
	for _, part := range append(parts, left...) {
		s, err := part.raw()
		if err != nil {
			return err
		}
		c.Left = append(c.Left, s)
	}
	for key, s := range r.suspects {
		c.Suspects = append(c.Suspects, documentOf(key, s.id))
	}
	r.kept = time.Now()
	if err := r.Keep(ctx, c); err != nil {
		return fmt.Errorf("keep where the validation stands: %w", err)
	}
	return nil
}

// restore goes on from a checkpoint.
func (r *run) restore(c *Checkpoint) error {
	r.result.First, r.result.Bytes, r.done = c.First, c.Bytes, slices.Clone(c.Done)
	for name, n := range c.Collections {
		r.result.Collections[name] = n
		r.result.Documents, r.result.Target = r.result.Documents+n.Source, r.result.Target+n.Target
	}
	for _, d := range c.Suspects {
		id := d.ID.Lookup("_id")
		key, err := chunk.EncodeValue(id)
		if err != nil {
			return fmt.Errorf("a suspect of %s: %w", d.Collection, err)
		}
		r.suspects[docKey{d.Collection, key}] = &suspect{id: id}
	}
	return nil
}

// leftOf gives what is to be compared of a collection.
func (c *Checkpoint) leftOf(collection string) []stretch {
	if c == nil || c.Collection != collection {
		return []stretch{{}}
	}
	left := make([]stretch, 0, len(c.Left))
	for _, s := range c.Left {
		left = append(left, stretch{s.After.Lookup("_id"), s.Until.Lookup("_id")})
	}
	return left
}

// raw gives a stretch as it is kept.
func (s stretch) raw() (out Stretch, err error) {
	for _, end := range []struct {
		id  bson.RawValue
		raw *bson.Raw
	}{{s.after, &out.After}, {s.until, &out.Until}} {
		if end.id.Type != 0 {
			if *end.raw, err = bson.Marshal(bson.D{{Key: "_id", Value: end.id}}); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}
