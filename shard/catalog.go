package shard

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// Difference is one point in which two databases are not defined alike.
type Difference struct {
	Collection string `json:"collection"`
	Index      string `json:"index,omitempty"`
	Field      string `json:"field,omitempty"`
	What       string `json:"what"`
}

// String says it in one line.
func (d Difference) String() string {
	where := d.Collection
	if d.Index != "" {
		where += " index " + d.Index
	}
	if d.Field != "" {
		where += " " + d.Field
	}
	return where + ": " + d.What
}

// ignoredInSpecs are the fields of an index specification that two servers may
// write differently without meaning it.
var ignoredInSpecs = []string{"v", "ns", "background"}

// ignoredInOptions are the same of collection options.
var ignoredInOptions = []string{"uuid", "autoIndexId", "flags"}

// between says of the two sides of a comparison where something is.
type between struct{ a, b string }

// CompareCatalog compares the definitions of two databases: which collections there
// are, their whole options, and their indexes' whole specifications. Directions of
// keys that are equal numbers are equal; an index whose TTL is parked on one side
// equals the one it stands for. An empty result means alike.
func CompareCatalog(source, target []CollectionInfo) []Difference {
	return between{"on the source", "on the target"}.databases(source, target)
}

// CompareDefined compares a database with what the logical database's catalog says
// of it, as [CompareCatalog] does.
func CompareDefined(catalog []chunk.Collection, have []CollectionInfo) []Difference {
	return between{"on the shard", "in the catalog"}.databases(have, Definition(catalog))
}

// databases compares all collections.
func (n between) databases(source, target []CollectionInfo) []Difference {
	var out []Difference
	byName := map[string]CollectionInfo{}
	for _, t := range target {
		byName[t.Name] = t
	}
	for _, s := range source {
		t, ok := byName[s.Name]
		if !ok {
			out = append(out, Difference{Collection: s.Name, What: "missing " + n.b})
			continue
		}
		delete(byName, s.Name)
		out = append(out, n.collections(s, t)...)
	}
	for _, t := range target {
		if _, extra := byName[t.Name]; extra {
			out = append(out, Difference{Collection: t.Name, What: "only " + n.b})
		}
	}
	return out
}

// Followed gives what the catalog says of a collection that has become as now is: an
// expiry that is parked there stays what it was.
func Followed(known chunk.Collection, now CollectionInfo) chunk.Collection {
	was := map[string]bson.Raw{}
	for _, spec := range known.Indexes {
		was[indexName(spec)] = spec
	}
	known.Options, known.Indexes = now.Options, make([]bson.Raw, 0, len(now.Indexes))
	for _, spec := range now.Indexes {
		if old, ok := was[indexName(spec)]; ok && isParked(spec.Lookup("expireAfterSeconds")) {
			spec = reparked(spec, old.Lookup("expireAfterSeconds"))
		}
		known.Indexes = append(known.Indexes, spec)
	}
	return known
}

// reparked gives a specification with the expiry that it is to have when it is not
// parked any more.
func reparked(spec bson.Raw, seconds bson.RawValue) bson.Raw {
	var d bson.D
	for k, v := range ordered(spec) {
		if k == "expireAfterSeconds" && seconds.Type != 0 {
			v = seconds
		}
		d = append(d, bson.E{Key: k, Value: v})
	}
	out, err := bson.Marshal(d)
	if err != nil {
		return spec // it holds nothing but what it was read with
	}
	return out
}

// collections compares one collection on both sides.
func (n between) collections(s, t CollectionInfo) []Difference {
	var out []Difference
	for _, f := range n.fields(s.Options, t.Options, ignoredInOptions) {
		f.Collection = s.Name
		out = append(out, f)
	}
	byName := map[string]bson.Raw{}
	for _, x := range t.Indexes {
		byName[indexName(x)] = x
	}
	for _, x := range s.Indexes {
		name := indexName(x)
		y, ok := byName[name]
		if !ok {
			out = append(out, Difference{Collection: s.Name, Index: name, What: "missing " + n.b})
			continue
		}
		delete(byName, name)
		for _, f := range n.fields(x, y, ignoredInSpecs) {
			f.Collection, f.Index = s.Name, name
			out = append(out, f)
		}
	}
	for _, x := range t.Indexes {
		if _, extra := byName[indexName(x)]; extra {
			out = append(out, Difference{Collection: s.Name, Index: indexName(x), What: "only " + n.b})
		}
	}
	for _, name := range append(slices.Clone(s.Building), t.Building...) {
		out = append(out, Difference{Collection: s.Name, Index: name, What: "is being built"})
	}
	return out
}

// CompareCreated compares what a create command asks for with a collection that is
// there: what was asked must be so, and no validator or collation be there that was
// not. A server fills in the parts of a collation that were left open.
func CompareCreated(create bson.Raw, have CollectionInfo) []Difference {
	asked, is := fields(create), fields(have.Options)
	var out []Difference
	differs := func(option, what string) {
		out = append(out, Difference{Collection: have.Name, Field: option, What: what})
	}
	for _, k := range sortedKeys(asked, nil) {
		v := asked[k]
		switch {
		case k == "create" || k == "writeConcern" || slices.Contains(ignoredInOptions, k):
		case k == "collation":
			if !sameCollation(v, is[k]) {
				differs(k, fmt.Sprintf("%s was asked for, it is %s", v, is[k]))
			}
		case is[k].Type == 0 || !sameValue(v, is[k]):
			differs(k, fmt.Sprintf("%s was asked for, it is %s", v, is[k]))
		}
	}
	for _, k := range []string{"validator", "collation"} {
		if _, wanted := asked[k]; !wanted && is[k].Type != 0 {
			differs(k, fmt.Sprintf("it is %s, which was not asked for", is[k]))
		}
	}
	return out
}

// sameCollation reports whether a collation has what was asked; the simple one is
// none.
func sameCollation(asked, is bson.RawValue) bool {
	want, _ := asked.DocumentOK()
	have, some := is.DocumentOK()
	if locale, _ := want.Lookup("locale").StringValueOK(); locale == "simple" {
		return !some
	}
	for k, v := range ordered(want) {
		if w, err := have.LookupErr(k); err != nil || !sameValue(v, w) {
			return false
		}
	}
	return some
}

// fields compares two documents field by field; the order of the top-level fields
// does not count.
func (n between) fields(a, b bson.Raw, ignored []string) []Difference {
	var out []Difference
	left, right := fields(a), fields(b)
	for _, k := range sortedKeys(left, right) {
		if slices.Contains(ignored, k) {
			continue
		}
		x, inA := left[k]
		y, inB := right[k]
		switch {
		case !inB:
			out = append(out, Difference{Field: k, What: fmt.Sprintf("%s %s, absent %s", x, n.a, n.b)})
		case !inA:
			out = append(out, Difference{Field: k, What: fmt.Sprintf("absent %s, %s %s", n.a, y, n.b)})
		case k == "expireAfterSeconds" && (isParked(x) || isParked(y)):
		case k == "key" && !sameKey(x, y), k != "key" && !sameValue(x, y):
			out = append(out, Difference{Field: k, What: fmt.Sprintf("%s %s, %s %s", x, n.a, y, n.b)})
		}
	}
	return out
}

// fields gives the top-level fields of a document by name.
func fields(r bson.Raw) map[string]bson.RawValue {
	out := map[string]bson.RawValue{}
	if len(r) == 0 {
		return out
	}
	elements, err := r.Elements()
	if err != nil {
		return map[string]bson.RawValue{"(unreadable: " + err.Error() + ")": {Type: bson.TypeNull}}
	}
	for _, e := range elements {
		if no, ok := e.Value().BooleanOK(); ok && !no && slices.Contains(flags, e.Key()) {
			continue
		}
		out[e.Key()] = e.Value()
	}
	return out
}

// flags are options that a server leaves out where they are false.
var flags = []string{"unique", "sparse", "hidden", "prepareUnique"} //nolint:gochecknoglobals // a constant list

// sortedKeys gives the names that occur in either.
func sortedKeys(a, b map[string]bson.RawValue) []string {
	var keys []string
	for k := range a {
		keys = append(keys, k)
	}
	for k := range b {
		if _, both := a[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, strings.Compare)
	return keys
}

// isParked reports whether an expiry is that of a parked TTL index.
func isParked(v bson.RawValue) bool {
	n, ok := v.AsInt64OK()
	return ok && n == ParkedTTL
}

// sameKey compares key patterns: names and their order count, and directions by
// value whatever their numeric type.
func sameKey(a, b bson.RawValue) bool {
	x, okA := a.DocumentOK()
	y, okB := b.DocumentOK()
	if !okA || !okB {
		return sameValue(a, b)
	}
	left, errA := x.Elements()
	right, errB := y.Elements()
	if errA != nil || errB != nil {
		return false
	}
	return slices.EqualFunc(left, right, func(p, q bson.RawElement) bool {
		return p.Key() == q.Key() && sameValue(p.Value(), q.Value())
	})
}

// sameValue compares two values: numbers by value, anything else byte by byte.
func sameValue(a, b bson.RawValue) bool {
	if a.IsNumber() && b.IsNumber() {
		x, okA := number(a)
		y, okB := number(b)
		if okA && okB {
			return x == y
		}
	}
	return a.Type == b.Type && bytes.Equal(a.Value, b.Value)
}

// number gives a number's value where a float64 holds it exactly.
func number(v bson.RawValue) (float64, bool) {
	if d, ok := v.DoubleOK(); ok {
		return d, !math.IsNaN(d)
	}
	n, ok := v.AsInt64OK()
	f := float64(n)
	return f, ok && int64(f) == n
}
