package proxy

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

// Behaviour: a filter is targeted by equality ($eq, or a plain value), $in and,
// in a range key space, $lt, $lte, $gt and $gte on the shard key, also inside
// $and; and by an $or all of whose branches are. Null means null, missing and
// undefined. Whatever is not understood goes to every chunk: that is always
// right.
//
// A shard key of several fields: see compound.go.
//
// Not supported: targeting by an embedded document that holds a dotted shard
// key, by $expr, or by strings under a collation.

// target is the part of a key space that a filter can match in.
type target struct {
	all    bool
	points []chunk.Key
	ranges []chunk.Range // Hi is included
}

// everywhere is the target of a filter that says nothing about the shard key.
var everywhere = target{all: true}

// targeting is what is needed to find a filter's target.
type targeting struct {
	space  chunk.KeySpace
	path   string   // of a key of one field
	fields []string // of all of them
	simple bool     // strings compare byte by byte
}

// of gives the filter's target.
func (t targeting) of(filter bson.Raw) target {
	if len(t.fields) > 1 {
		return t.compound(filter)
	}
	best := everywhere
	for w := wire.Walk(filter); w.Next(); {
		found := everywhere
		switch string(w.Key) {
		case "$and":
			found = t.and(w.Document())
		case "$or":
			found = t.or(w.Document())
		case t.path:
			found = t.condition(w.Element)
		}
		if best.all || !found.all && len(found.ranges) == 0 && len(found.points) < len(best.points) {
			best = found
		}
	}
	return best
}

// and gives the narrowest target of the branches: all of them must match.
func (t targeting) and(branches bson.Raw) target {
	best := everywhere
	for w := wire.Walk(branches); w.Next(); {
		if found := t.of(w.Document()); !found.all && (best.all || len(best.ranges) > 0) {
			best = found
		}
	}
	return best
}

// or gives the targets of the branches together.
func (t targeting) or(branches bson.Raw) target {
	var sum target
	for w := wire.Walk(branches); w.Next(); {
		found := t.of(w.Document())
		if found.all {
			return everywhere
		}
		sum.points = append(sum.points, found.points...)
		sum.ranges = append(sum.ranges, found.ranges...)
	}
	if len(sum.points)+len(sum.ranges) == 0 {
		return everywhere
	}
	return sum
}

// condition gives the target of what a filter wants of the shard key.
func (t targeting) condition(e wire.Element) target {
	if !operators(e) {
		return t.equal(e)
	}
	best := everywhere
	within := chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}
	bounded := false
	for w := wire.Walk(e.Document()); w.Next(); {
		switch string(w.Key) {
		case "$eq":
			return t.equal(w.Element)
		case "$in":
			best = t.in(w.Element)
		case "$gt", "$gte":
			if k, ok := t.bound(w.Element); ok && k > within.Lo {
				within.Lo, bounded = k, true
			}
		case "$lt", "$lte":
			if k, ok := t.bound(w.Element); ok && k < within.Hi {
				within.Hi, bounded = k, true
			}
		}
	}
	if best.all && bounded {
		return target{ranges: []chunk.Range{within}}
	}
	return best
}

// operators reports whether e is a document of query operators.
func operators(e wire.Element) bool {
	if e.Type != bson.TypeEmbeddedDocument {
		return false
	}
	w := wire.Walk(e.Document())
	return w.Next() && len(w.Key) > 0 && w.Key[0] == '$'
}

// equal gives the target of an equality.
func (t targeting) equal(e wire.Element) target {
	switch e.Type {
	case bson.TypeRegex, bson.TypeArray:
		return everywhere
	case bson.TypeString, bson.TypeSymbol, bson.TypeEmbeddedDocument:
		if !t.simple {
			return everywhere
		}
	case bson.TypeNull, bson.TypeUndefined:
		return t.points(bson.RawValue{Type: bson.TypeNull}, bson.RawValue{Type: bson.TypeUndefined})
	}
	return t.points(e.RawValue())
}

// points gives the target of some values.
func (t targeting) points(values ...bson.RawValue) target {
	var out target
	for _, v := range values {
		k, err := t.space.Point(v)
		if err != nil {
			return everywhere
		}
		out.points = append(out.points, k)
	}
	return out
}

// in gives the target of $in.
func (t targeting) in(e wire.Element) target {
	if e.Type != bson.TypeArray {
		return everywhere
	}
	var sum target
	for w := wire.Walk(e.Document()); w.Next(); {
		one := t.equal(w.Element)
		if one.all {
			return everywhere
		}
		sum.points = append(sum.points, one.points...)
	}
	if len(sum.points) == 0 {
		return everywhere
	}
	return sum
}

// bound gives the point of a bound of a range. Only a key space in BSON order
// has ranges; null compares with more than itself.
func (t targeting) bound(e wire.Element) (chunk.Key, bool) {
	if t.space != chunk.Ranged || e.Type == bson.TypeNull || e.Type == bson.TypeUndefined ||
		e.Type == bson.TypeArray || e.Type == bson.TypeEmbeddedDocument ||
		(e.Type == bson.TypeString || e.Type == bson.TypeSymbol) && !t.simple {
		return "", false
	}
	k, err := t.space.Point(e.RawValue())
	return k, err == nil
}

// entries gives the chunks of d that a target lies in, in the order of the key
// space and each once.
func (d *database) targeted(t target) []*entry {
	if t.all {
		return d.entries
	}
	if len(t.points) == 1 && len(t.ranges) == 0 {
		if e := d.at(t.points[0]); e != nil {
			return e.alone
		}
		return d.entries
	}
	hit := make([]bool, len(d.entries))
	for _, k := range t.points {
		if i := d.place(k); i >= 0 {
			hit[i] = true
		}
	}
	for _, in := range t.ranges {
		for i, e := range d.entries {
			hit[i] = hit[i] || in.Lo < e.rng.Hi && e.rng.Lo <= in.Hi
		}
	}
	var out []*entry
	for i, e := range d.entries {
		if hit[i] {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return d.entries
	}
	return out
}

// fixed gives the value that a filter's equality gives path in the document that an
// upsert inserts: only a plain equality does, and one of text only where it compares
// byte by byte.
func (t targeting) fixed(filter bson.Raw, path string) (v bson.RawValue, ok bool) {
	v, ok = equality(filter, path)
	if ok && !t.simple && (v.Type == bson.TypeString || v.Type == bson.TypeSymbol || v.Type == bson.TypeEmbeddedDocument) {
		return bson.RawValue{}, false
	}
	return v, ok
}

// equality finds what a filter wants path to be equal to.
func equality(filter bson.Raw, path string) (v bson.RawValue, ok bool) {
	for w := wire.Walk(filter); w.Next(); {
		switch string(w.Key) {
		case "$and":
			for b := wire.Walk(w.Document()); b.Next(); {
				if v, ok := equality(b.Document(), path); ok {
					return v, true
				}
			}
		case path:
			e, found := w.Element, true
			if operators(e) {
				e, found = wire.Find(w.Document(), "$eq")
			}
			if found { // a pattern or an array matches more than what is equal
				if e.Type == bson.TypeRegex || e.Type == bson.TypeArray {
					return bson.RawValue{}, false
				}
				return e.RawValue(), true
			}
		}
	}
	return bson.RawValue{}, false
}

// targetOf gives the chunks of a filter on a collection. collation is the
// command's own, with a zero Type when it has none.
func targetOf(d *database, c *collection, filter bson.Raw, collation wire.Element) []*entry {
	t := targetingOf(d, c, collation)
	if len(t.fields) == 1 {
		// What most filters are.
		if v, ok := t.fixed(filter, t.path); ok && v.Type != bson.TypeNull && v.Type != bson.TypeUndefined {
			if k, err := t.space.Point(v); err == nil {
				if e := d.at(k); e != nil {
					return e.alone
				}
			}
		}
	}
	return d.targeted(t.of(filter))
}

// targetingOf gives what is needed to target a command on c.
func targetingOf(d *database, c *collection, collation wire.Element) targeting {
	simple := c.simple
	if collation.Type == bson.TypeEmbeddedDocument {
		locale, _ := wire.Find(collation.Document(), "locale")
		simple = string(locale.Text()) == "simple"
	}
	return targeting{space: d.space, path: c.shardKey, fields: c.keys(), simple: simple}
}
