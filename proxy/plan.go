package proxy

import (
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/proxy/wire"
)

// refuseKey says why a value cannot be a shard key's.
func refuseKey(c *collection, err error) *refusal {
	if errors.Is(err, chunk.ErrArrayKey) {
		return refuse(codeShardKeyNotFound, "Shard key cannot contain array values or array descendants: %s", c.shardKey)
	}
	return refuse(codeFailedToParse, "shard key %s: %v", c.shardKey, err)
}

// at gives the statement the chunk of a point.
func (s statement) at(d *database, k chunk.Key) statement {
	e := d.at(k)
	if e == nil {
		s.err = refuse(codeHostUnreachable, "no chunk of %s holds this shard key", d.name)
		return s
	}
	s.entries = e.alone
	return s
}

// change is an update of documents by a filter, of whatever command.
type change struct {
	filter        bson.Raw
	update        wire.Element
	multi, upsert bool
	collation     wire.Element
}

// plan gives the chunks of a change, and refuses one that would move a document
// to another place of the key space. A replacement whose filter does not fix the
// shard key goes by the replacement's, which is then added to the filter.
func (u *change) plan(d *database, c *collection) ([]*entry, *refusal) {
	t := targetingOf(d, c, u.collation)
	var kept [4]bson.RawValue
	values := kept[:0] // of the shard key's fields; of type 0 where the filter does not fix them
	for _, field := range c.keys() {
		v, _ := t.fixed(u.filter, field) // else the zero value
		values = append(values, v)
	}
	var err *refusal
	if u.update.Type == bson.TypeEmbeddedDocument && !operators(u.update) {
		err = u.replace(d, c, values)
	} else {
		err = u.check(d, c, values)
	}
	if err != nil {
		return nil, err
	}
	fixed, null := true, false
	for _, v := range values {
		fixed = fixed && v.Type != 0
		null = null || v.Type == bson.TypeNull || v.Type == bson.TypeUndefined
	}
	if u.upsert && !fixed {
		return nil, refuse(codeShardKeyNotFound, "an upsert must have the shard key %s in its filter, as an equality", c.shardKey)
	}
	if fixed {
		k, err := d.space.TuplePoint(values...)
		if err != nil {
			return nil, refuseKey(c, err)
		}
		// Null stands for more than one point, unless a document is to be made of it.
		if e := d.at(k); e != nil && (u.upsert || !null) {
			return e.alone, nil
		}
	}
	return targetOf(d, c, u.filter, u.collation), nil
}

// replace fixes what the filter leaves open of the shard key by the replacement's
// own, and refuses one that would change it.
func (u *change) replace(d *database, c *collection, values []bson.RawValue) *refusal {
	_, id := wire.Find(u.update.Document(), "_id")
	for i, field := range c.keys() {
		if ofID(field) && !id {
			continue // the document keeps the one that it has
		}
		own, err := chunk.LookupPath(u.update.Document(), field)
		if err != nil {
			return refuseKey(c, err)
		}
		switch {
		case values[i].Type == 0:
			u.filter = withEquality(u.filter, field, own)
			values[i] = own
		case !same(d.space, own, values[i]):
			return refuse(codeImmutableField, "a replacement must keep the shard key %s", c.shardKey)
		}
	}
	return nil
}

// ofID reports whether a field is _id or lies in it: that no server lets change.
func ofID(field string) bool { return field == "_id" || strings.HasPrefix(field, "_id.") }

// same reports whether two values are one point.
func same(space chunk.KeySpace, a, b bson.RawValue) bool {
	x, errX := space.Point(a)
	y, errY := space.Point(b)
	return errX == nil && errY == nil && x == y
}

// withEquality gives filter with path required to have a value.
func withEquality(filter bson.Raw, path string, v bson.RawValue) bson.Raw {
	return document(func(dst []byte) []byte {
		at, dst := bsoncore.AppendArrayElementStart(dst, "$and")
		dst = bsoncore.AppendDocumentElement(dst, "0", bsoncore.Document(filter))
		dst = bsoncore.AppendDocumentElement(dst, "1", document(func(dst []byte) []byte {
			return bsoncore.AppendDocumentElement(dst, path, document(func(dst []byte) []byte {
				return bsoncore.AppendValueElement(dst, "$eq", bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})
			}))
		}))
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		return dst
	})
}

// check refuses an update that changes the shard key. An _id no server lets
// change.
func (u *change) check(d *database, c *collection, values []bson.RawValue) *refusal {
	for i, field := range c.keys() {
		if ofID(field) {
			continue
		}
		if r := u.checkField(d, c, field, values[i]); r != nil {
			return r
		}
	}
	return nil
}

// checkField is check for one field of the shard key. value is what the filter fixes
// it to, of type 0 where it does not.
func (u *change) checkField(d *database, c *collection, field string, value bson.RawValue) *refusal {
	refused := func() *refusal {
		return refuse(codeImmutableField, "an update must not change the shard key %s", c.shardKey)
	}
	switch u.update.Type {
	case bson.TypeArray:
		return checkUpdatePipeline(u.update.Document(), field, refused)
	case bson.TypeEmbeddedDocument:
	default:
		return nil // the shard says what is wrong with it
	}
	for op := wire.Walk(u.update.Document()); op.Next(); {
		name := string(op.Key)
		for w := wire.Walk(op.Document()); w.Next(); {
			if name == "$rename" && related(string(w.Text()), field) {
				return refused()
			}
			if !related(string(w.Key), field) || name == "$setOnInsert" && !u.upsert {
				continue
			}
			keeps := (name == "$set" || name == "$setOnInsert") && w.Is(field) && value.Type != 0 && same(d.space, w.RawValue(), value)
			if !keeps {
				return refused()
			}
		}
	}
	return nil
}

// checkUpdatePipeline refuses a pipeline that sets or takes out a field of the shard
// key, or of which that cannot be told.
func checkUpdatePipeline(pipeline bson.Raw, field string, refused func() *refusal) *refusal {
	for stage := wire.Walk(pipeline); stage.Next(); {
		w := wire.Walk(stage.Document())
		if !w.Next() {
			continue
		}
		switch string(w.Key) {
		case "$set", "$addFields":
			for f := wire.Walk(w.Document()); f.Next(); {
				if related(string(f.Key), field) {
					return refused()
				}
			}
		case "$unset":
			if related(string(w.Text()), field) {
				return refused()
			}
			for f := wire.Walk(w.Document()); f.Next(); {
				if related(string(f.Text()), field) {
					return refused()
				}
			}
		default:
			return refuse(codeNotSupported, "%s in an update is only supported where the shard key is _id: it might change %s", w.Key, field)
		}
	}
	return nil
}

// related reports whether a change at path a touches path b: they are equal, or
// one leads through the other. A positional part stands for any.
func related(a, b string) bool {
	if a == "" {
		return false
	}
	for moreA, moreB := true, true; moreA && moreB; {
		var x, y string
		x, a, moreA = strings.Cut(a, ".")
		y, b, moreB = strings.Cut(b, ".")
		if x != y && !strings.HasPrefix(x, "$") {
			return false
		}
	}
	return true
}
