package proxy

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/proxy/wire"
)

// Behaviour: each chunk groups its own documents; groups whose _id compares equal
// become one. $sum and $count are added, $min and $max compared in BSON order
// with null counting as nothing, $avg is made of a sum and a count.
// A sum of ints that outgrows them on one chunk is a long, even if all of them fit.
//
// Not supported: any other accumulator; more than groupBytes of groups.

// groupBytes bounds the groups that are put together in memory, as mongod bounds
// those of one $group.
const groupBytes = 100 << 20

// accumulatorOp is what an accumulator does.
type accumulatorOp uint8

// The accumulators.
const (
	opSum accumulatorOp = iota
	opAvg
	opMin
	opMax
)

// accumulatorNames are the accumulators that parts can be put together of.
var accumulatorNames = map[string]accumulatorOp{"$sum": opSum, "$avg": opAvg, "$min": opMin, "$max": opMax, "$count": opSum}

// accumulator is one field of a $group.
type accumulator struct {
	name string
	op   accumulatorOp
	expr wire.Element
}

// one is the constant that counting adds up.
var one = wire.Element{Type: bson.TypeInt32, Value: []byte{1, 0, 0, 0}}

// groupPlan is a $group.
type groupPlan struct {
	id     []byte // the _id element
	hideID bool   // the result has no _id
	fields []accumulator
}

// planGroup reads a $group.
func planGroup(doc bson.Raw) (*groupPlan, error) {
	g := &groupPlan{}
	for w := wire.Walk(doc); w.Next(); {
		name := string(w.Key)
		if name == "_id" {
			g.id = w.Raw
			continue
		}
		a := wire.Walk(w.Document())
		if !a.Next() {
			return nil, refuse(codeFailedToParse, "the field '%s' must be an accumulator object", name)
		}
		op, ok := accumulatorNames[string(a.Key)]
		if !ok {
			return nil, errSeveralChunks("the accumulator " + string(a.Key))
		}
		f := accumulator{name: name, op: op, expr: a.Element}
		if a.Is("$count") {
			f.expr = one
		}
		if a.Next() {
			return nil, refuse(codeFailedToParse, "the field '%s' must specify one accumulator", name)
		}
		if strings.ContainsAny(name, ".$") {
			return nil, refuse(codeFailedToParse, "the field name '%s' cannot contain '.' or begin with '$'", name)
		}
		g.fields = append(g.fields, f)
	}
	if g.id == nil {
		return nil, refuse(codeFailedToParse, "a group specification must include an _id")
	}
	return g, nil
}

// shardStage gives the $group that each chunk runs. Its fields are named by
// their place: "v" and for the count of an average "c".
func (g *groupPlan) shardStage() []byte {
	apply := func(op string, e wire.Element) []byte {
		return document(func(dst []byte) []byte {
			return bsoncore.AppendValueElement(dst, op, bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value})
		})
	}
	return document(func(dst []byte) []byte {
		return bsoncore.AppendDocumentElement(dst, "$group", document(func(dst []byte) []byte {
			dst = append(dst, g.id...)
			for i, f := range g.fields {
				op := map[accumulatorOp]string{opSum: "$sum", opAvg: "$sum", opMin: "$min", opMax: "$max"}[f.op]
				dst = bsoncore.AppendDocumentElement(dst, "v"+index(i), apply(op, f.expr))
				if f.op == opAvg {
					dst = bsoncore.AppendDocumentElement(dst, "c"+index(i), countNumbers(f.expr))
				}
			}
			return dst
		}))
	})
}

// countNumbers gives {$sum: {$cond: [{$isNumber: [expr]}, 1, 0]}}.
func countNumbers(expr wire.Element) []byte {
	return document(func(dst []byte) []byte {
		return bsoncore.AppendDocumentElement(dst, "$sum", document(func(dst []byte) []byte {
			at, dst := bsoncore.AppendArrayElementStart(dst, "$cond")
			dst = bsoncore.AppendDocumentElement(dst, "0", document(func(dst []byte) []byte {
				at, dst := bsoncore.AppendArrayElementStart(dst, "$isNumber")
				dst = bsoncore.AppendValueElement(dst, "0", bsoncore.Value{Type: bsoncore.Type(expr.Type), Data: expr.Value})
				dst, _ = bsoncore.AppendArrayEnd(dst, at)
				return dst
			}))
			dst = bsoncore.AppendInt32Element(dst, "1", 1)
			dst = bsoncore.AppendInt32Element(dst, "2", 0)
			dst, _ = bsoncore.AppendArrayEnd(dst, at)
			return dst
		}))
	})
}

// groups is the groups of several chunks as they are put together.
type groups struct {
	plan  *groupPlan
	byKey map[chunk.Key]*group
	all   []*group // as they came
	bytes int
}

// group is one group.
type group struct {
	id     bson.RawValue
	fields []groupField
}

// groupField is one field of a group.
type groupField struct {
	sum   total
	count total
	best  bson.RawValue // of $min and $max
	key   chunk.Key     // of best
}

// add takes one chunk's part of a group.
func (g *groups) add(doc bson.Raw) error {
	if g.bytes += len(doc); g.bytes > groupBytes {
		return refuse(codeMemoryLimit, "the groups of this pipeline need more than %d MB in the proxy: name the shard key in a first $match", groupBytes>>20)
	}
	id, ok := wire.Find(doc, "_id")
	if !ok {
		id = wire.Element{Type: bson.TypeNull}
	}
	key, err := chunk.EncodeValue(id.RawValue())
	if err != nil {
		return refuse(codeFailedToParse, "_id of a group: %v", err)
	}
	one := g.byKey[key]
	if one == nil {
		one = &group{id: id.RawValue(), fields: make([]groupField, len(g.plan.fields))}
		g.byKey[key] = one
		g.all = append(g.all, one)
	}
	for i := range one.fields {
		v, _ := wire.Find(doc, "v"+index(i))
		c, _ := wire.Find(doc, "c"+index(i))
		if err := one.fields[i].add(g.plan.fields[i].op, v.RawValue(), c.RawValue()); err != nil {
			return err
		}
	}
	return nil
}

// add takes one chunk's part of a field.
func (f *groupField) add(op accumulatorOp, v, c bson.RawValue) error {
	switch op {
	case opSum, opAvg:
		f.sum.add(v)
		f.count.add(c)
		return nil
	}
	if v.Type == bson.TypeNull || v.Type == bson.TypeUndefined || v.Type == 0 {
		return nil
	}
	k, err := chunk.EncodeValue(v)
	if err != nil {
		return refuse(codeFailedToParse, "value of a group: %v", err)
	}
	if f.best.Type == 0 || op == opMin && k < f.key || op == opMax && k > f.key {
		f.best, f.key = v, k
	}
	return nil
}

// value gives the field's result.
func (f *groupField) value(op accumulatorOp) bson.RawValue {
	switch {
	case op == opSum:
		return f.sum.value()
	case op == opAvg:
		return f.sum.over(&f.count)
	case f.best.Type == 0:
		return nullValue
	default:
		return f.best
	}
}

// document gives the group as the pipeline's result.
func (g *groups) document(one *group) []byte {
	return document(func(dst []byte) []byte {
		if !g.plan.hideID {
			dst = bsoncore.AppendValueElement(dst, "_id", bsoncore.Value{Type: bsoncore.Type(one.id.Type), Data: one.id.Value})
		}
		for i := range one.fields {
			f := g.plan.fields[i]
			v := one.fields[i].value(f.op)
			dst = bsoncore.AppendValueElement(dst, f.name, bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})
		}
		return dst
	})
}

// regroup reads everything that the chunks have grouped and gives the documents
// of the groups, in order if there is one.
func (p *Proxy) regroup(ctx context.Context, q *request, c *cursor, plan *pipelinePlan) ([][]byte, error) {
	g := &groups{plan: plan.group, byKey: map[chunk.Key]*group{}}
	m := merger{p: p, q: q, c: c}
	for _, s := range c.streams {
		for {
			for _, doc := range s.docs {
				if err := g.add(doc); err != nil {
					return nil, err
				}
			}
			if s.docs = nil; s.id == 0 {
				break
			}
			if err := m.ask(ctx, s); err != nil {
				return nil, err
			}
		}
	}
	docs := make([][]byte, len(g.all))
	for i, one := range g.all {
		docs[i] = g.document(one)
	}
	if plan.sort == nil {
		return docs, nil
	}
	return sortDocuments(docs, plan.sort)
}

// sortDocuments puts documents in order.
func sortDocuments(docs [][]byte, o *sortOrder) ([][]byte, error) {
	type keyedDoc struct {
		key string
		doc []byte
	}
	all := make([]keyedDoc, len(docs))
	for i, doc := range docs {
		k, err := o.key(doc)
		if err != nil {
			return nil, err
		}
		all[i] = keyedDoc{k, doc}
	}
	slices.SortStableFunc(all, func(a, b keyedDoc) int { return strings.Compare(a.key, b.key) })
	for i := range all {
		docs[i] = all[i].doc
	}
	return docs, nil
}
