package validation

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// decides reports whether both sides must answer a read alike where nothing changes:
// a find, a count, a distinct, and an aggregation that filters and then counts or groups,
// by what does not depend on the order in which documents come. The time of the server
// and chance decide nothing.
func decides(command bson.Raw) bool {
	name, _ := readOf(command)
	if slices.ContainsFunc([]string{"filter", "query", "projection", "pipeline", "let"}, func(field string) bool {
		v, err := command.LookupErr(field)
		return err == nil && wavers(v, 0)
	}) {
		return false
	}
	return name != "aggregate" || exactPipeline(command)
}

// wavers reports whether a value anywhere in it asks for chance or for the time.
func wavers(v bson.RawValue, depth int) bool {
	if depth > deepest {
		return true
	}
	if s, ok := v.StringValueOK(); ok {
		return s == "$$NOW" || s == "$$CLUSTER_TIME"
	}
	var inner bson.Raw
	switch v.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		inner = v.Value
	default:
		return false
	}
	elements, err := inner.Elements()
	return err != nil || slices.ContainsFunc(elements, func(e bson.RawElement) bool {
		return e.Key() == "$rand" || e.Key() == "$sampleRate" || e.Key() == "$where" || e.Key() == "$function" || wavers(e.Value(), depth+1)
	})
}

// exactPipeline reports whether an aggregation is a $count or an exact $group behind any
// number of $match. Under a collation a group may be named by any of several values.
func exactPipeline(command bson.Raw) bool {
	pipeline, ok := command.Lookup("pipeline").ArrayOK()
	stages, err := pipeline.Values()
	if _, collated := command.LookupErr("collation"); !ok || err != nil || collated == nil {
		return false
	}
	for n, s := range stages {
		stage, _ := s.DocumentOK()
		first, err := stage.IndexErr(0)
		if err != nil {
			return false
		}
		last := n == len(stages)-1
		switch first.Key() {
		case "$match":
			if last {
				return false
			}
		case "$count":
			if !last {
				return false
			}
		case "$group":
			if !last || !exactGroup(first.Value()) {
				return false
			}
		default:
			return false
		}
	}
	return len(stages) > 0
}

// exactGroup reports whether a $group only counts, and takes what is least and most: a
// sum of fractions depends on the order in which they are added.
func exactGroup(group bson.RawValue) bool {
	doc, ok := group.DocumentOK()
	fields, err := doc.Elements()
	if !ok || err != nil {
		return false
	}
	for _, f := range fields {
		if f.Key() == "_id" {
			continue
		}
		by, _ := f.Value().DocumentOK()
		first, err := by.IndexErr(0)
		if err != nil {
			return false
		}
		switch first.Key() {
		case "$count", "$min", "$max":
		case "$sum":
			if t := first.Value().Type; t != bson.TypeInt32 && t != bson.TypeInt64 {
				return false
			}
		default:
			return false
		}
	}
	return true
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
