package proxy

import (
	"bytes"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// replyRoom is what the proxy adds to a reply at most, mostly: a large one is copied once.
const replyRoom = 256

// pass appends a shard's reply as the client gets it: without the shard's
// clock and election, under the logical database's name.
func (q *request) pass(a *answer) error {
	at, dst := bsoncore.AppendDocumentStart(slices.Grow(q.client.out, len(a.raw)+replyRoom))
	dst, err := q.appendPassed(dst, a)
	if err != nil {
		return err
	}
	q.client.out, _ = bsoncore.AppendDocumentEnd(dst, at)
	return nil
}

// appendPassed appends the elements of a reply that is passed on. A cursor is
// not for it.
func (q *request) appendPassed(dst []byte, a *answer) ([]byte, error) {
	q.failed = q.failed || !a.ok
	w := wire.Walk(a.raw)
	for w.Next() {
		switch string(w.Key) {
		case "$clusterTime", "operationTime", "electionId", "opTime", "$configTime", "$topologyTime", "recoveryToken":
		case "errmsg":
			dst = appendRenamed(dst, w.Element, a.route)
		case "writeErrors":
			dst = appendWriteErrors(dst, w.Document(), a.route, func(i int32) int32 { return i })
		case "writeConcernError":
			dst = appendWriteConcernError(dst, w.Document(), a.route)
		default:
			dst = append(dst, w.Raw...)
		}
	}
	if err := w.Err(); err != nil {
		return nil, refuse(codeFailedToParse, "reply of %s: %v", a.route.Placement.Shard, err)
	}
	if q.txn != nil && a.ok {
		dst = appendRecoveryToken(dst, q.txn)
	}
	return dst, nil
}

// appendRenamed appends a string element in which the physical database has the
// logical one's name. The bytes need not be valid UTF-8.
func appendRenamed(dst []byte, e wire.Element, r *route) []byte {
	text := e.Text()
	physical := []byte(r.Placement.Database)
	if text == nil || len(physical) == 0 || !bytes.Contains(text, physical) {
		return append(dst, e.Raw...)
	}
	renamed := bytes.ReplaceAll(text, physical, []byte(r.Chunk.Database))
	return bsoncore.AppendStringElement(dst, string(e.Key), string(renamed))
}

// appendWriteErrors appends writeErrors with each index as mapped.
func appendWriteErrors(dst []byte, errs bson.Raw, r *route, mapped func(int32) int32) []byte {
	at, dst := bsoncore.AppendArrayElementStart(dst, "writeErrors")
	n := 0
	for w := wire.Walk(errs); w.Next(); n++ {
		dst = appendWriteError(dst, n, w.Document(), r, mapped)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	return dst
}

// appendWriteError appends one write error as the n-th of an array.
func appendWriteError(dst []byte, n int, doc bson.Raw, r *route, mapped func(int32) int32) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, index(n))
	for w := wire.Walk(doc); w.Next(); {
		switch string(w.Key) {
		case "index":
			i, _ := w.Number()
			dst = bsoncore.AppendInt32Element(dst, "index", mapped(int32(i))) //nolint:gosec // a position in a batch
		case "errmsg":
			dst = appendRenamed(dst, w.Element, r)
		default:
			dst = append(dst, w.Raw...)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// appendWriteConcernError appends the error with a code that does not make a
// driver give up the proxy when it is the shard that changes its primary.
func appendWriteConcernError(dst []byte, doc bson.Raw, r *route) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, "writeConcernError")
	lost := false
	if e, ok := wire.Find(doc, "code"); ok {
		n, _ := e.Number()
		lost = status{code: code(n)}.lostPrimary() //nolint:gosec // codes are small
	}
	for w := wire.Walk(doc); w.Next(); {
		switch {
		case w.Is("code") && lost:
			dst = bsoncore.AppendInt32Element(dst, "code", int32(codeHostUnreachable))
		case w.Is("codeName") && lost:
			dst = bsoncore.AppendStringElement(dst, "codeName", codeNames[codeHostUnreachable])
		case w.Is("errmsg"):
			dst = appendRenamed(dst, w.Element, r)
		default:
			dst = append(dst, w.Raw...)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// cursorReply is the view of a reply's cursor.
type cursorReply struct {
	id    int64
	ns    []byte
	batch wire.Element // firstBatch or nextBatch
}

// cursorOf reads the cursor of a reply.
func cursorOf(raw bson.Raw) (c cursorReply, ok bool) {
	e, ok := wire.Find(raw, "cursor")
	if !ok {
		return c, false
	}
	for w := wire.Walk(e.Document()); w.Next(); {
		switch string(w.Key) {
		case "id":
			c.id, _ = w.Number()
		case "ns":
			c.ns = w.Text()
		case "firstBatch", "nextBatch":
			c.batch = w.Element
		}
	}
	return c, c.batch.Type == bson.TypeArray
}

// passCursor appends a reply whose cursor is known to the client as id. Its
// namespace loses the physical database's name.
func (q *request) passCursor(a *answer, id int64) error {
	at, dst := bsoncore.AppendDocumentStart(slices.Grow(q.client.out, len(a.raw)+replyRoom))
	w := wire.Walk(a.raw)
	for w.Next() {
		switch string(w.Key) {
		case "$clusterTime", "operationTime", "electionId", "opTime", "$configTime", "$topologyTime", "recoveryToken":
		case "cursor":
			dst = appendCursor(dst, w.Document(), a.route, id)
		default:
			dst = append(dst, w.Raw...)
		}
	}
	if err := w.Err(); err != nil {
		return refuse(codeFailedToParse, "reply of %s: %v", a.route.Placement.Shard, err)
	}
	if q.txn != nil {
		dst = appendRecoveryToken(dst, q.txn)
	}
	q.client.out, _ = bsoncore.AppendDocumentEnd(dst, at)
	return nil
}

// appendCursor appends the cursor element of a reply.
func appendCursor(dst []byte, doc bson.Raw, r *route, id int64) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, "cursor")
	for w := wire.Walk(doc); w.Next(); {
		switch string(w.Key) {
		case "id":
			dst = bsoncore.AppendInt64Element(dst, "id", id)
		case "ns":
			_, rest, _ := bytes.Cut(w.Text(), []byte{'.'})
			dst = appendNamespace(dst, r.Chunk.Database, string(rest))
		case "atClusterTime", "postBatchResumeToken":
		default:
			dst = append(dst, w.Raw...)
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// appendNamespace appends the ns element of a cursor.
func appendNamespace(dst []byte, database, rest string) []byte {
	return bsoncore.AppendStringElement(dst, "ns", database+"."+rest)
}
