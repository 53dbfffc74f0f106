package validation

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// Probe is a read of an application as both sides are asked it, and how what they say
// is compared.
type Probe struct {
	Command    bson.D // bounded
	Name       string
	Collection string
	Ordered    bool     // the order leaves nothing open, and is compared
	Alike      bool     // of values that compare equal either side may give any
	Number     bool     // of values that a collation holds for equal too: only their number says something
	Sums       []string // fields of groups that the order of additions may change a little
}

// Bounds of a mirrored read.
const mirrorDocuments = 1_000

// probeOf makes a probe of a read where both sides must answer it alike as long as nothing
// changes: a find, a count, a distinct, and an aggregation that filters, and then orders, counts
// or groups by what does not depend on the order in which documents come. The time of the
// server, chance, and what a server made up for itself decide nothing. collated says that
// the collection has a collation of its own, which counts where a read names none.
func probeOf(command bson.Raw, collated bool) (p Probe, ok bool) {
	p.Name, p.Collection = readOf(command)
	for _, field := range []string{"filter", "query", "projection", "sort", "pipeline", "let"} {
		if v, err := command.LookupErr(field); err == nil && wavers(v, 0) {
			return p, false
		}
	}
	if locale, ok := command.Lookup("collation", "locale").StringValueOK(); ok {
		collated = locale != "simple"
	}
	var stages bson.A
	switch p.Name {
	case "find":
		sort, _ := command.Lookup("sort").DocumentOK()
		p.Ordered = !collated && names(sort, "_id") // several _ids may be alike under a collation
	case "distinct":
		p.Alike, p.Number = true, collated
	case "aggregate":
		c := course{collated: collated, distinct: true}
		if !c.follow(command) {
			return p, false
		}
		p.Ordered, p.Alike, p.Sums = c.ordered, c.grouped || c.counted, c.sums
		c.stages = append(c.stages, bson.D{{Key: "$limit", Value: mirrorDocuments + 1}})
		stages = c.stages
	}
	elements, err := command.Elements()
	if err != nil {
		return p, false
	}
	p.bound(elements, stages)
	return p, true
}

// passedOn are the fields of a read that say what is read, and not how.
var passedOn = []string{
	"find", "count", "distinct", "aggregate", "filter", "query", "key", "sort", "projection", "skip", "collation", "let", "hint", "min", "max",
}

// bound makes a command that asks for the same, of a few documents at most. A limit of a find
// that has no order is left out: all that it would choose from is compared.
func (p *Probe) bound(elements []bson.RawElement, stages bson.A) {
	whole := p.Name == "find" && !p.Ordered
	limit := int64(mirrorDocuments + 1)
	for _, e := range elements {
		switch n, _ := e.Value().AsInt64OK(); {
		case e.Key() == "limit" && !whole && n != 0:
			limit = min(limit, max(n, -n))
		case e.Key() == "skip" && whole:
		case e.Key() == "pipeline":
			p.Command = append(p.Command, bson.E{Key: e.Key(), Value: stages})
		case slices.Contains(passedOn, e.Key()):
			p.Command = append(p.Command, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	switch p.Name {
	case "find":
		p.Command = append(p.Command, bson.E{Key: "limit", Value: limit}, bson.E{Key: "singleBatch", Value: true}, bson.E{Key: "batchSize", Value: limit})
	case "aggregate":
		p.Command = append(p.Command, bson.E{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: mirrorDocuments + 2}}})
	case "count":
		if limit <= mirrorDocuments {
			p.Command = append(p.Command, bson.E{Key: "limit", Value: limit})
		}
	}
	p.Command = append(p.Command, bson.E{Key: "maxTimeMS", Value: mirrorTime.Milliseconds()})
}

// readOf gives a command's name and collection.
func readOf(command bson.Raw) (name, collection string) {
	first, err := command.IndexErr(0)
	if err != nil {
		return "", ""
	}
	collection, _ = first.Value().StringValueOK()
	return first.Key(), collection
}

// names reports whether a document has one of some fields.
func names(doc bson.Raw, fields ...string) bool {
	elements, _ := doc.Elements()
	return slices.ContainsFunc(elements, func(e bson.RawElement) bool { return slices.Contains(fields, e.Key()) })
}

// wavers reports whether a value anywhere in it asks for chance, for the time, or for
// where a server keeps a document.
func wavers(v bson.RawValue, depth int) bool {
	if s, ok := v.StringValueOK(); ok {
		return s == "$$NOW" || s == "$$CLUSTER_TIME"
	}
	return within(v, depth, func(e bson.RawElement) bool {
		switch e.Key() {
		case "$rand", "$sampleRate", "$where", "$function":
			return true
		case "$meta":
			kept, _ := e.Value().StringValueOK()
			return kept == "recordId" || kept == "indexKey"
		}
		return wavers(e.Value(), depth+1)
	})
}

// within reports whether one of a document's or array's elements is such a one; what is
// nested too deep is taken for it.
func within(v bson.RawValue, depth int, such func(bson.RawElement) bool) bool {
	if v.Type != bson.TypeEmbeddedDocument && v.Type != bson.TypeArray {
		return false
	}
	elements, err := bson.Raw(v.Value).Elements()
	return err != nil || depth > deepest || slices.ContainsFunc(elements, such)
}

// canonical wraps a value that stands for all that compare equal to it: of 1 and 1.0
// a server gives whichever it met first.
func canonical(v bson.RawValue) (bson.Raw, error) {
	key, err := chunk.EncodeValue(v)
	if err != nil {
		return nil, err
	}
	return bson.Marshal(bson.D{{Key: "v", Value: bson.Binary{Data: []byte(key)}}})
}
