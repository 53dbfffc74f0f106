package cdc

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// splitStage lets the server send an event that is larger than a document may be
// in parts. Servers have it since 6.0.9 and 7.0; it is asked for only once an
// event was too large, and from then on, because its resume tokens need it.
var splitStage = mongo.Pipeline{{{Key: "$changeStreamSplitLargeEvent", Value: bson.D{}}}}

// unknownStage is the code for a stage that a server does not have.
const unknownStage = 40324

// assembler puts the parts of an event together again.
type assembler struct {
	parts []bson.Raw
	of    int32
}

// pending reports whether parts are missing: until they have come, nothing may be
// saved.
func (a *assembler) pending() bool { return len(a.parts) > 0 }

// add takes what the stream gave; ok is false while parts are missing. The event
// has the fields of all parts; resume tokens and the parts' numbers are left out.
func (a *assembler) add(raw bson.Raw) (whole bson.Raw, ok bool, err error) {
	split, found := raw.Lookup("splitEvent").DocumentOK()
	if !found {
		if a.pending() {
			return nil, false, fmt.Errorf("part %d of %d of a large event is missing", len(a.parts)+1, a.of)
		}
		return raw, true, nil
	}
	n, _ := split.Lookup("fragment").AsInt64OK()
	of, _ := split.Lookup("of").AsInt64OK()
	if int(n) != len(a.parts)+1 || of < n || a.pending() && int32(of) != a.of { //nolint:gosec // small numbers
		return nil, false, fmt.Errorf("part %d of %d came after %d parts of %d of a large event", n, of, len(a.parts), a.of)
	}
	a.of = int32(of) //nolint:gosec // small numbers
	a.parts = append(a.parts, slices.Clone(raw))
	if n < of {
		return nil, false, nil
	}
	parts := a.parts
	a.parts = nil
	var fields bson.D
	for _, p := range parts {
		elements, err := p.Elements()
		if err != nil {
			return nil, false, fmt.Errorf("read a part of a large event: %w", err)
		}
		for _, e := range elements {
			if e.Key() != "_id" && e.Key() != "splitEvent" {
				fields = append(fields, bson.E{Key: e.Key(), Value: e.Value()})
			}
		}
	}
	whole, err = bson.Marshal(fields)
	return whole, err == nil, err
}
