package proxy

import (
	"bytes"
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// explainCommand tells how a command would be run.
//
// Behaviour: find, aggregate, count, distinct, update, delete and findAndModify,
// in any verbosity, of the chunks that the command is targeted at. The reply has
// mongos' form: a stage SINGLE_SHARD or SHARD_MERGE over one plan for each chunk,
// which is named as a shard would be; counts of the execution are summed.
//
// Not supported: what an explained write to several chunks would do after the
// first; serverInfo and whatever else names a member of a shard is left out.
func explainCommand(ctx context.Context, p *Proxy, q *request) error {
	inner := wire.Element{Type: q.cmd.First.Type, Value: q.cmd.First.Value}.Document()
	var cmd wire.Command
	if inner == nil || wire.ParseCommand(inner, &cmd) != nil {
		return refuse(codeFailedToParse, "explain needs a document with a command")
	}
	cmd.DB = q.cmd.DB
	sub := *q
	sub.cmd, sub.sequences = &cmd, nil
	return p.explain(ctx, q, &sub)
}

// explainFilters names, for each command that is explained, where its filter is:
// a field, or a field of the first element of an array.
var explainFilters = map[string][]string{
	"find": {"filter"}, "count": {"query"}, "distinct": {"query"}, "findAndModify": {"query"}, "findandmodify": {"query"},
	"update": {"updates", "q"}, "delete": {"deletes", "q"}, "aggregate": nil,
}

// explain sends q, which explains what inner says.
func (p *Proxy) explain(ctx context.Context, q, inner *request) error {
	path, ok := explainFilters[string(inner.cmd.Name)]
	if !ok {
		return refuse(codeCommandNotFound, "Explain failed due to unknown command: %s", inner.cmd.Name)
	}
	db, coll, err := p.place(ctx, inner)
	if err != nil {
		return err
	}
	if coll == nil || len(db.entries) == 0 {
		return refuse(codeNamespaceNotFound, "ns does not exist: %s.%s", q.cmd.DB, inner.cmd.Collection())
	}
	filter := leadingMatch(inner.option("pipeline").Document())
	collation := inner.option("collation")
	if len(path) > 0 {
		e := inner.option(path[0])
		if len(path) > 1 {
			first, _ := wire.Find(e.Document(), "0")
			collation, _ = wire.Find(first.Document(), "collation")
			e, _ = wire.Find(first.Document(), path[1])
		}
		if filter = e.Document(); filter == nil {
			filter = emptyDocument
		}
	} else if err := checkPipeline(inner.option("pipeline").Document()); err != nil {
		return err
	}
	entries := targetOf(db, coll, filter, collation)
	answers, err := p.gather(ctx, q, entries, edit{})
	if err != nil {
		return err
	}
	q.build(func(dst []byte) []byte { return appendExplained(dst, answers) })
	return nil
}

// appendExplained appends the plans of some chunks as a mongos would show them.
func appendExplained(dst []byte, answers []answer) []byte {
	stage := "SHARD_MERGE"
	if len(answers) == 1 {
		stage = "SINGLE_SHARD"
	}
	dst = bsoncore.AppendDocumentElement(dst, "queryPlanner", document(func(dst []byte) []byte {
		dst = bsoncore.AppendInt32Element(dst, "mongosPlannerVersion", 1)
		return bsoncore.AppendDocumentElement(dst, "winningPlan", explainStage(stage, "queryPlanner", answers, nil))
	}))
	if _, executed := wire.Find(answers[0].raw, "executionStats"); !executed {
		return dst
	}
	var sums []byte
	for _, name := range []string{"nReturned", "totalKeysExamined", "totalDocsExamined", "executionTimeMillis"} {
		var sum int64
		for i := range answers {
			stats, _ := wire.Find(answers[i].raw, "executionStats")
			e, _ := wire.Find(stats.Document(), name)
			n, _ := e.Number()
			if sum += n; name == "executionTimeMillis" {
				sum = max(sum-n, n) // they ran at once
			}
		}
		sums = appendCount(sums, name, sum)
	}
	return bsoncore.AppendDocumentElement(dst, "executionStats", document(func(dst []byte) []byte {
		dst = append(dst, sums...)
		return bsoncore.AppendDocumentElement(dst, "executionStages", explainStage(stage, "executionStats", answers, sums))
	}))
}

// explainStage gives one stage over what the chunks say in one field. A chunk
// whose server explains a pipeline shows its stages instead.
func explainStage(stage, field string, answers []answer, sums []byte) []byte {
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "stage", stage)
		dst = append(dst, sums...)
		at, dst := bsoncore.AppendArrayElementStart(dst, "shards")
		for i := range answers {
			a := &answers[i]
			dst = bsoncore.AppendDocumentElement(dst, index(i), document(func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "shardName", string(a.route.Chunk.ID))
				if e, ok := wire.Find(a.raw, field); ok && e.Document() != nil {
					return appendExplainedFields(dst, e.Document(), a.route)
				}
				if e, ok := wire.Find(a.raw, "stages"); ok {
					dst = appendExplainedElement(dst, e, a.route)
				}
				return dst
			}))
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		return dst
	})
}

// appendExplainedFields appends the elements of a plan under the logical
// database's name, and without what names a member.
func appendExplainedFields(dst []byte, doc bson.Raw, r *route) []byte {
	for w := wire.Walk(doc); w.Next(); {
		if !w.Is("serverInfo") && !w.Is("host") {
			dst = appendExplainedElement(dst, w.Element, r)
		}
	}
	return dst
}

// appendExplainedElement is appendExplainedFields for one element.
func appendExplainedElement(dst []byte, e wire.Element, r *route) []byte {
	switch e.Type {
	case bson.TypeString:
		return appendRenamed(dst, e, r)
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		if !bytes.Contains(e.Value, []byte(r.Placement.Database)) && !bytes.Contains(e.Value, []byte("serverInfo\x00")) {
			return append(dst, e.Raw...)
		}
		doc := document(func(dst []byte) []byte { return appendExplainedFields(dst, e.Document(), r) })
		return bsoncore.AppendValueElement(dst, string(e.Key), bsoncore.Value{Type: bsoncore.Type(e.Type), Data: doc})
	default:
		return append(dst, e.Raw...)
	}
}
