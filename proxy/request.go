package proxy

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// edit says how a command's body changes on its way to a shard. The zero value
// changes only the envelope.
type edit struct {
	first []byte   // the first element, nil: as it came
	drop  []string // elements that are left out
	extra []byte   // elements that are added
}

// drops reports whether the edit leaves key out.
func (e *edit) drops(key []byte) bool {
	for _, d := range e.drop {
		if d == string(key) {
			return true
		}
	}
	return false
}

// envelope is what the proxy puts around a command for one placement.
type envelope struct {
	route   *route
	session [16]byte
	hasLSID bool
	start   bool // startTransaction: the placement has not seen the transaction
	maxTime time.Duration
}

// envelopeRoom is what an envelope takes, mostly: a large command is copied once.
const envelopeRoom = 512

// appendBody appends q's command as the shard at env.route gets it. Everything
// that is not the envelope is copied as it is.
func (q *request) appendBody(dst []byte, env envelope, e *edit) []byte {
	at, dst := bsoncore.AppendDocumentStart(slices.Grow(dst, len(q.cmd.Body)+envelopeRoom))
	first := true
	for w := wire.Walk(q.cmd.Body); w.Next(); {
		if first {
			first = false
			if e.first != nil {
				dst = append(dst, e.first...)
			} else {
				dst = append(dst, w.Raw...)
			}
			continue
		}
		switch string(w.Key) {
		case "$db", "lsid", "$clusterTime", "$readPreference", "comment", "recoveryToken", "maxTimeMS",
			"startTransaction", "readConcern", "writeConcern":
			// Written anew below, or not for a shard.
		default:
			// What begins with a dollar is between a client and its router.
			if (len(w.Key) == 0 || w.Key[0] != '$') && !e.drops(w.Key) {
				dst = append(dst, w.Raw...)
			}
		}
	}
	dst = append(dst, e.extra...)
	return q.appendEnvelope(dst, at, env)
}

// appendEnvelope ends a body that began at: what every command for env.route has.
func (q *request) appendEnvelope(dst []byte, at int32, env envelope) []byte {
	if !q.cmd.Transaction || env.start {
		dst = appendReadConcern(dst, q.cmd.ReadConcern)
	}
	dst = appendWriteConcern(dst, q.cmd.WriteConcern)
	if env.hasLSID {
		dst = appendSession(dst, env.session)
	}
	if env.start {
		dst = bsoncore.AppendBooleanElement(dst, "startTransaction", true)
	}
	if env.maxTime > 0 {
		dst = bsoncore.AppendInt64Element(dst, "maxTimeMS", max(1, env.maxTime.Milliseconds()))
	}
	dst = appendComment(dst, env.route, q.cmd.Comment)
	dst = bsoncore.AppendStringElement(dst, "$db", env.route.Placement.Database)
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// appendComment appends the comment element: the proxy's stamp, and what the
// client said inside it. A client's own "drover" means nothing there.
func appendComment(dst []byte, r *route, comment bson.RawValue) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, "comment")
	dst = bsoncore.AppendDocumentElement(dst, "drover", r.comment)
	if comment.Type != 0 {
		dst = bsoncore.AppendValueElement(dst, "app", bsoncore.Value{Type: bsoncore.Type(comment.Type), Data: comment.Value})
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// appendReadConcern appends the readConcern element without times: those of one
// replica set mean nothing to another, and reads are served by primaries.
func appendReadConcern(dst []byte, rc bson.RawValue) []byte {
	doc := wire.Element{Type: rc.Type, Value: rc.Value}.Document()
	if doc == nil {
		return dst
	}
	level, ok := wire.Find(doc, "level")
	if !ok {
		return dst
	}
	at, dst := bsoncore.AppendDocumentElementStart(dst, "readConcern")
	dst = append(dst, level.Raw...)
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// appendWriteConcern appends the writeConcern element. Nothing goes to a shard
// unacknowledged: a refused write would be lost without a word.
func appendWriteConcern(dst []byte, wc bson.RawValue) []byte {
	doc := wire.Element{Type: wc.Type, Value: wc.Value}.Document()
	if doc == nil || unacknowledged(doc) {
		return dst
	}
	return bsoncore.AppendDocumentElement(dst, "writeConcern", bsoncore.Document(doc))
}

// unacknowledged reports whether a write concern is w: 0.
func unacknowledged(wc bson.Raw) bool {
	w, ok := wire.Find(wc, "w")
	if !ok {
		return false
	}
	n, isNumber := w.Number()
	return isNumber && n == 0
}

// checkReadConcern refuses reads at a cluster time: each shard has its own.
func (q *request) checkReadConcern() error {
	doc := wire.Element{Type: q.cmd.ReadConcern.Type, Value: q.cmd.ReadConcern.Value}.Document()
	if doc == nil {
		return nil
	}
	if _, at := wire.Find(doc, "atClusterTime"); at {
		r := refuse(codeInvalidOptions, "atClusterTime is not supported: shards do not share a clock")
		if q.cmd.Transaction {
			return r.labelled(labelTransient)
		}
		return r
	}
	level, _ := wire.Find(doc, "level")
	if string(level.Text()) == "snapshot" && !q.cmd.Transaction {
		return refuse(codeInvalidOptions, "readConcern snapshot is only supported in a transaction")
	}
	return nil
}

// errDeep refuses what is nested deeper than anything may look into it.
func errDeep() *refusal {
	return refuse(codeOverflow, "BSONObj exceeds maximum nested object depth: %d", wire.MaxDepth)
}

// sequence appends the documents of an array of the command, which travel beside
// the body or in it. Those of an insert may be nested however deeply: only their shard
// key is looked at here, and a shard tells the rest.
func (q *request) sequence(docs []bson.Raw, name string) ([]bson.Raw, error) {
	for _, s := range q.sequences {
		if string(s.Name) != name {
			continue
		}
		for rest := s.Docs; len(rest) > 0; {
			var doc []byte
			doc, rest = wire.NextDocument(rest)
			if name != "documents" && wire.Deep(doc) {
				return nil, errDeep()
			}
			docs = append(docs, doc)
		}
		return docs, nil
	}
	e, ok := wire.Find(q.cmd.Body, name)
	if !ok || e.Type != bson.TypeArray {
		return nil, refuse(codeFailedToParse, "%s needs an array %s", q.cmd.Name, name)
	}
	w := wire.Walk(e.Document())
	for w.Next() {
		if w.Type != bson.TypeEmbeddedDocument {
			return nil, refuse(codeTypeMismatch, "%s.%s is no document", name, w.Key)
		}
		docs = append(docs, w.Document())
	}
	if err := w.Err(); err != nil {
		return nil, refuse(codeFailedToParse, "%s: %v", name, err)
	}
	return docs, nil
}

// option gives an element of the command, with a zero Type when it is missing.
func (q *request) option(name string) wire.Element {
	e, _ := wire.Find(q.cmd.Body, name)
	return e
}

// document gives an option that is a document, {} when it is missing.
func (q *request) document(name string) (bson.Raw, error) {
	e := q.option(name)
	switch e.Type {
	case bson.TypeEmbeddedDocument:
		return e.Document(), nil
	case 0, bson.TypeNull:
		return emptyDocument, nil
	default:
		return nil, refuse(codeTypeMismatch, "%s.%s is no document", q.cmd.Name, name)
	}
}

// number gives an option that is a whole number, def when it is missing.
func (q *request) number(name string, def int64) (int64, error) {
	e := q.option(name)
	if e.Type == 0 || e.Type == bson.TypeNull {
		return def, nil
	}
	n, ok := e.Number()
	if !ok {
		return 0, refuse(codeTypeMismatch, "%s.%s is no whole number", q.cmd.Name, name)
	}
	return n, nil
}
