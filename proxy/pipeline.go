package proxy

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// perDocument are the stages that look at one document at a time: each chunk
// runs them on its own documents.
var perDocument = map[string]bool{
	"$match": true, "$project": true, "$addFields": true, "$set": true, "$unset": true, "$unwind": true,
	"$replaceRoot": true, "$replaceWith": true, "$redact": true,
}

// pipelinePlan is a pipeline cut into what the chunks run and what is made of
// their parts.
type pipelinePlan struct {
	prefix  [][]byte   // stages of single documents
	group   *groupPlan // nil: none
	sort    *sortOrder // nil: none
	sortDoc bson.Raw   // of the $sort stage
	skip    int64
	limit   int64 // negative: none
}

// planPipeline cuts a pipeline for several chunks.
func planPipeline(pipeline bson.Raw) (*pipelinePlan, error) {
	p := &pipelinePlan{limit: -1}
	sized := false // a $skip or $limit was seen
	for w := wire.Walk(pipeline); w.Next(); {
		stage := wire.Walk(w.Document())
		if !stage.Next() {
			return nil, errSeveralChunks("an empty stage")
		}
		name := string(stage.Key)
		ordered := p.sort != nil || sized
		switch {
		case perDocument[name] && p.group == nil && !ordered:
			p.prefix = append(p.prefix, w.Value)
		case name == "$sort" && !ordered:
			if err := p.orderBy(stage.Document()); err != nil {
				return nil, err
			}
		case name == "$skip", name == "$limit":
			if err := p.cut(name, stage.Element); err != nil {
				return nil, err
			}
			sized = true
		case p.group == nil && !ordered:
			if err := p.groupBy(name, stage.Element); err != nil {
				return nil, err
			}
		default:
			return nil, errSeveralChunks(name + " after $sort, $skip, $limit or $group")
		}
	}
	return p, nil
}

// errSeveralChunks refuses what only one chunk can run.
func errSeveralChunks(what string) *refusal {
	return refuse(codeNotSupported, "%s is not supported over several chunks: name the shard key in a first $match", what)
}

// orderBy takes a $sort.
func (p *pipelinePlan) orderBy(sort bson.Raw) error {
	o, err := parseSort(sort)
	if err != nil {
		return err
	}
	if o == nil {
		return errSeveralChunks("$sort without a field")
	}
	p.sort, p.sortDoc = o, sort
	return nil
}

// cut takes a $skip or $limit.
func (p *pipelinePlan) cut(name string, e wire.Element) error {
	n, ok := e.Number()
	if !ok || n < 0 || name == "$limit" && n == 0 {
		return refuse(codeBadValue, "invalid argument to %s stage", name)
	}
	switch {
	case name == "$skip":
		p.skip += n
		if p.limit >= 0 {
			p.limit = max(0, p.limit-n)
		}
	case p.limit < 0:
		p.limit = n
	default:
		p.limit = min(p.limit, n)
	}
	return nil
}

// groupBy takes $group and what stands for one.
func (p *pipelinePlan) groupBy(name string, e wire.Element) error {
	switch name {
	case "$group":
		g, err := planGroup(e.Document())
		p.group = g
		return err
	case "$count":
		if len(e.Text()) == 0 {
			return refuse(codeBadValue, "the count field must be a non-empty string")
		}
		p.group = &groupPlan{hideID: true, id: appendNull(nil, "_id"), fields: []accumulator{{name: string(e.Text()), op: opSum, expr: one}}}
		return nil
	case "$sortByCount":
		if !bytes.HasPrefix(e.Text(), []byte("$")) && !operators(e) {
			return refuse(codeBadValue, "the $sortByCount field must be a path beginning with $ or an expression")
		}
		id := bsoncore.AppendValueElement(nil, "_id", bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value})
		p.group = &groupPlan{id: id, fields: []accumulator{{name: "count", op: opSum, expr: one}}}
		return p.orderBy(document(func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "count", -1) }))
	default:
		return errSeveralChunks(name)
	}
}

// appendNull appends a null element.
func appendNull(dst []byte, name string) []byte { return bsoncore.AppendNullElement(dst, name) }

// appendShardPipeline appends the pipeline element that each chunk gets.
func (p *pipelinePlan) appendShardPipeline(dst []byte) []byte {
	at, dst := bsoncore.AppendArrayElementStart(dst, "pipeline")
	n := 0
	stage := func(doc []byte) {
		dst = bsoncore.AppendDocumentElement(dst, index(n), doc)
		n++
	}
	for _, s := range p.prefix {
		stage(s)
	}
	if p.group != nil {
		stage(p.group.shardStage())
	} else {
		if p.sort != nil {
			stage(document(func(dst []byte) []byte {
				return bsoncore.AppendDocumentElement(dst, "$sort", bsoncore.Document(p.sortDoc))
			}))
		}
		// A limit of zero is none: it came from a $skip past the $limit.
		if p.limit > 0 {
			stage(document(func(dst []byte) []byte {
				return bsoncore.AppendInt64Element(dst, "$limit", chunkLimit(p.skip, p.limit))
			}))
		}
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	return dst
}
