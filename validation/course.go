package validation

import (
	"math"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// course is what is known of the documents at one point of a pipeline.
type course struct {
	stages   bson.A // as they are asked
	collated bool
	ordered  bool     // they come in an order that leaves nothing open
	distinct bool     // each has an _id that no other one has
	part     bool     // some of what has no such order were asked for; all are
	grouped  bool     // a $group made them: of values that compare equal it may have any
	counted  bool     // a $count made the one that there is
	sums     []string // their fields that the order of additions may change
}

// follow walks a pipeline; it reports whether what the pipeline gives can be compared.
func (c *course) follow(command bson.Raw) bool {
	pipeline, ok := command.Lookup("pipeline").ArrayOK()
	stages, err := pipeline.Values()
	if !ok || err != nil {
		return false
	}
	for _, s := range stages {
		stage, _ := s.DocumentOK()
		first, err := stage.IndexErr(0)
		if err != nil || c.counted || !c.step(first, s) {
			return false
		}
	}
	return true
}

// step goes through one stage.
func (c *course) step(stage bson.RawElement, whole bson.RawValue) bool {
	switch stage.Key() {
	case "$skip", "$limit":
		if c.part = c.part || !c.ordered; c.part {
			return true // left out: a part of any order may be other documents on each side
		}
	case "$match":
		if c.grouped && (len(c.sums) > 0 || tellsEqualApart(stage.Value(), 0)) {
			return false
		}
	case "$sort":
		return !c.part && c.sort(stage.Value())
	case "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", "$unwind":
		if c.grouped {
			return false
		}
		c.distinct = false
	case "$group":
		return !c.part && c.group(stage.Value())
	case "$count":
		c.counted = true
	default:
		return false
	}
	c.stages = append(c.stages, whole)
	return !c.part
}

// tellsEqualApart reports whether a filter may tell values that compare equal from each other.
func tellsEqualApart(filter bson.RawValue, depth int) bool {
	return within(filter, depth, func(e bson.RawElement) bool {
		return e.Key() == "$type" || e.Key() == "$expr" || e.Key() == "$jsonSchema" || tellsEqualApart(e.Value(), depth+1)
	})
}

// sort takes an order. One of groups is made whole by their _ids; one by sums is none, as
// two that are alike on one side may differ by a rounding on the other.
func (c *course) sort(by bson.RawValue) bool {
	doc, ok := by.DocumentOK()
	var keys bson.D
	if !ok || bson.Unmarshal(doc, &keys) != nil {
		return false
	}
	whole := c.distinct && !c.collated && !names(doc, c.sums...)
	if whole && c.grouped && !names(doc, "_id") {
		keys = append(keys, bson.E{Key: "_id", Value: 1})
	}
	c.ordered = whole && (c.grouped || names(doc, "_id"))
	c.stages = append(c.stages, bson.D{{Key: "$sort", Value: keys}})
	return true
}

// Fields that are asked for beside those of a group.
const (
	besidePrefix = "drover_"
	besideNumber = besidePrefix + "n" // how many documents are in the group
)

// besideScale names what was added up without signs for the sum of that number.
func besideScale(i int) string { return besidePrefix + strconv.Itoa(i) }

// group takes a $group of accumulators that are exact, or nearly: counts, sums of
// whole constants, what is least and most, behind an order what is first and last; and
// sums and averages, beside which their scale is asked for. What depends on the order
// otherwise ($addToSet, deviations) is not compared. Under a collation a group may be named by any of several values.
func (c *course) group(spec bson.RawValue) bool {
	doc, ok := spec.DocumentOK()
	fields, err := doc.Elements()
	if !ok || err != nil || c.grouped || c.collated {
		return false
	}
	var asked bson.D
	for _, f := range fields {
		asked = append(asked, bson.E{Key: f.Key(), Value: f.Value()})
		if f.Key() == "_id" {
			continue
		}
		by, _ := f.Value().DocumentOK()
		first, err := by.IndexErr(0)
		if err != nil || strings.HasPrefix(f.Key(), besidePrefix) {
			return false
		}
		switch op, of := first.Key(), first.Value(); {
		case op == "$count", op == "$min", op == "$max", op == "$sum" && isWhole(of):
		case (op == "$first" || op == "$last" || op == "$push") && c.ordered:
		case (op == "$sum" || op == "$avg") && isExpression(of):
			asked = append(asked, bson.E{Key: besideScale(len(c.sums)), Value: bson.D{{Key: op, Value: bson.D{{Key: "$cond", Value: bson.A{
				bson.D{{Key: "$isNumber", Value: of}}, bson.D{{Key: "$abs", Value: of}}, nil,
			}}}}}})
			c.sums = append(c.sums, f.Key())
		default:
			return false
		}
	}
	if len(c.sums) > 0 {
		asked = append(asked, bson.E{Key: besideNumber, Value: bson.D{{Key: "$sum", Value: 1}}})
	}
	c.stages = append(c.stages, bson.D{{Key: "$group", Value: asked}})
	c.grouped, c.distinct, c.ordered = true, true, false
	return true
}

// isWhole reports whether a value is a constant whole number.
func isWhole(v bson.RawValue) bool {
	f, ok := v.AsFloat64OK()
	return ok && f == math.Trunc(f) && math.Abs(f) <= 1<<31
}

// isExpression reports whether a value is computed from each document.
func isExpression(v bson.RawValue) bool {
	path, ok := v.StringValueOK()
	return ok && strings.HasPrefix(path, "$") || v.Type == bson.TypeEmbeddedDocument
}
