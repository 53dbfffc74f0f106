package proxy

import (
	"context"
	"crypto/rand"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// endSessions forgets sessions that a client has done with, and ends their
// cursors and transactions.
//
// Behaviour: the user's own sessions of the list; unknown ones are no error.
//
// Not supported: ending what the shards remember of them: that goes by age.
func endSessions(ctx context.Context, p *Proxy, q *request) error {
	for w := wire.Walk(wire.Element{Type: q.cmd.First.Type, Value: q.cmd.First.Value}.Document()); w.Next(); {
		id, _ := wire.Find(w.Document(), "id")
		if len(id.Binary()) != 16 {
			continue
		}
		s := p.sessions.forget(id.Binary(), q.client.user)
		if s == nil {
			continue
		}
		for _, c := range p.cursors.of(s) {
			p.closeCursor(ctx, c)
		}
		s.mu.Lock()
		t := s.txn
		s.mu.Unlock()
		if t == nil {
			continue
		}
		t.mu.Lock()
		open := t.state == txnOpen && t.begun
		t.mu.Unlock()
		if open {
			p.endTransaction(ctx, t)
		}
	}
	q.build(func(dst []byte) []byte { return dst })
	return nil
}

// refreshSessions keeps the sessions of the list alive.
func refreshSessions(_ context.Context, p *Proxy, q *request) error {
	for w := wire.Walk(wire.Element{Type: q.cmd.First.Type, Value: q.cmd.First.Value}.Document()); w.Next(); {
		if id, _ := wire.Find(w.Document(), "id"); len(id.Binary()) == 16 {
			p.sessions.of(id.Binary(), q.client.user, q.start)
		}
	}
	q.build(func(dst []byte) []byte { return dst })
	return nil
}

// startSession makes an id, as drivers do by themselves.
func startSession(_ context.Context, _ *Proxy, q *request) error {
	var uuid [16]byte
	_, _ = rand.Read(uuid[:])                               // never fails
	uuid[6], uuid[8] = uuid[6]&0x0f|0x40, uuid[8]&0x3f|0x80 // a random UUID
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendDocumentElementStart(dst, "id")
		dst = bsoncore.AppendBinaryElement(dst, "id", bson.TypeBinaryUUID, uuid[:])
		dst, _ = bsoncore.AppendDocumentEnd(dst, at)
		return bsoncore.AppendInt32Element(dst, "timeoutMinutes", int32(sessionLife/time.Minute))
	})
	return nil
}
