package proxy

import (
	"bytes"
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// distinct puts the chunks' values together, each once and in order.
//
// Behaviour: key, query, hint; values that compare equal are one.
//
// Not supported: a collation over several chunks.
func distinct(ctx context.Context, p *Proxy, q *request) error {
	db, coll, err := p.place(ctx, q)
	if err != nil {
		return err
	}
	if coll == nil {
		q.build(func(dst []byte) []byte {
			at, dst := bsoncore.AppendArrayElementStart(dst, "values")
			dst, _ = bsoncore.AppendArrayEnd(dst, at)
			return dst
		})
		return nil
	}
	filter, err := q.document("query")
	if err != nil {
		return err
	}
	entries := targetOf(db, coll, filter, q.option("collation"))
	p.fan(q, len(entries), pinned(entries))
	if err := q.bind(entries...); err != nil {
		return err
	}
	if len(entries) > 1 && (!coll.simple || q.option("collation").Type == bson.TypeEmbeddedDocument) {
		return refuse(codeNotSupported, "distinct under a collation is only supported on one chunk: name the shard key")
	}
	answers, err := p.gather(ctx, q, entries, edit{})
	if err != nil {
		return err
	}
	merged, err := distinctValues(answers)
	if err != nil {
		return err
	}
	size := 0
	for _, v := range merged {
		size += len(v.value.Value)
	}
	if size > wire.MaxDocument {
		return refuse(codeDistinctTooBig, "distinct too big, 16mb cap")
	}
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendArrayElementStart(dst, "values")
		for i, v := range merged {
			dst = bsoncore.AppendValueElement(dst, index(i), bsoncore.Value{Type: bsoncore.Type(v.value.Type), Data: v.value.Value})
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		return dst
	})
	return nil
}

// keyed is a value with its place in BSON order.
type keyed struct {
	key   []byte
	value bson.RawValue
}

// distinctValues merges the values of some answers.
func distinctValues(answers []answer) ([]keyed, error) {
	var all []keyed
	for i := range answers {
		list, _ := wire.Find(answers[i].raw, "values")
		for w := wire.Walk(list.Document()); w.Next(); {
			k, err := extreme([]bson.RawValue{w.RawValue()}, false)
			if err != nil {
				return nil, err
			}
			all = append(all, keyed{[]byte(k), w.RawValue()})
		}
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return bytes.Compare(a.key, b.key) })
	return slices.CompactFunc(all, func(a, b keyed) bool { return bytes.Equal(a.key, b.key) }), nil
}
