package proxy

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
)

// sessionKey tells logical sessions apart: the same id of another user is
// another session.
type sessionKey struct {
	id   [16]byte
	user string
}

// session is one logical session of a client. It is remembered so that a retry
// of a write, and the next statement of a transaction, go where they belong.
type session struct {
	key    sessionKey
	digest [8]byte

	mu       sync.Mutex
	lastUsed time.Time
	txn      *txn
	write    written
	checked  []checkedRoute // former routes whose records were looked at
}

// written is a session's newest retryable write.
type written struct {
	number int64
	places []place
	reply  []byte // what the client was, or should have been, told; nil: not known
}

// place is where a part of a write ran, or may have run.
type place struct {
	chunk     chunk.ID
	placement chunk.PlacementID
	by        uint64 // the request that sent it there; a retry is another one
}

// upstreamSession gives the 16 bytes of the session id that stands for s on
// placement: it names the placement, and the same session always has the same.
func (s *session) upstreamSession(p chunk.PlacementID) (id [16]byte) {
	binary.BigEndian.PutUint64(id[:8], uint64(p)) //nolint:gosec // ids are positive
	copy(id[8:], s.digest[:])
	return id
}

// appendSession appends the lsid element.
func appendSession(dst []byte, id [16]byte) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, "lsid")
	dst = bsoncore.AppendBinaryElement(dst, "id", bson.TypeBinaryUUID, id[:])
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

const (
	// sessionLife is how long a server remembers an unused session.
	sessionLife = 30 * time.Minute
	// sessionShards is how many locks the sessions share.
	sessionShards = 16
	// maxSessions bounds the sessions of one lock; beyond it the ones unused
	// for longest go first.
	maxSessions = 5_000
	// leastSessionLife is kept even then.
	leastSessionLife = time.Minute
)

// sessions remembers logical sessions, bounded.
type sessions struct {
	shards [sessionShards]struct {
		mu  sync.Mutex
		all map[sessionKey]*session
	}
}

// newSessions makes an empty memory.
func newSessions() *sessions {
	s := &sessions{}
	for i := range s.shards {
		s.shards[i].all = map[sessionKey]*session{}
	}
	return s
}

// of gives the session of a client's id.
func (s *sessions) of(id []byte, user string, now time.Time) *session {
	key := sessionKey{id: [16]byte(id), user: user}
	shard := &s.shards[id[15]%sessionShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	found := shard.all[key]
	if found == nil {
		found = &session{key: key, lastUsed: now}
		sum := sha256.Sum256(append(append(make([]byte, 0, 64), id...), user...))
		copy(found.digest[:], sum[:8])
		shard.all[key] = found
	}
	found.mu.Lock()
	found.lastUsed = now
	found.mu.Unlock()
	return found
}

// forget drops a session that its client has ended.
func (s *sessions) forget(id []byte, user string) *session {
	key := sessionKey{id: [16]byte(id), user: user}
	shard := &s.shards[id[15]%sessionShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	found := shard.all[key]
	delete(shard.all, key)
	return found
}

// sweep drops sessions that were not used for long.
func (s *sessions) sweep(now time.Time) {
	for i := range s.shards {
		shard := &s.shards[i]
		shard.mu.Lock()
		life := sessionLife
		if len(shard.all) > maxSessions {
			life = leastSessionLife
		}
		for key, found := range shard.all {
			found.mu.Lock()
			if now.Sub(found.lastUsed) > life {
				delete(shard.all, key)
			}
			found.mu.Unlock()
		}
		shard.mu.Unlock()
	}
}

// transactions gives every session's newest transaction.
func (s *sessions) transactions() []*txn {
	var out []*txn
	for i := range s.shards {
		shard := &s.shards[i]
		shard.mu.Lock()
		for _, found := range shard.all {
			found.mu.Lock()
			if found.txn != nil {
				out = append(out, found.txn)
			}
			found.mu.Unlock()
		}
		shard.mu.Unlock()
	}
	return out
}

// begin notes that a part of the retryable write q is about to be sent to r. It
// reports whether an earlier try of the same write went to another placement of
// that chunk: then this part may have run there.
func (s *session) begin(q *request, r *route) (elsewhere bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.write.number != q.cmd.TxnNumber {
		s.write.number, s.write.reply = q.cmd.TxnNumber, nil
		s.write.places = s.write.places[:0]
	}
	noted := false
	for _, p := range s.write.places {
		if p.chunk != r.Chunk.ID {
			continue
		}
		if p.placement == r.Placement.ID {
			noted = noted || p.by == q.id
		} else if p.by != q.id {
			elsewhere = true
		}
	}
	if !elsewhere && !noted {
		s.write.places = append(s.write.places, place{chunk: r.Chunk.ID, placement: r.Placement.ID, by: q.id})
	}
	return elsewhere
}

// undo notes that the part that q sent to r did not run.
func (s *session) undo(q *request, r *route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.write.number != q.cmd.TxnNumber {
		return
	}
	for i, p := range s.write.places {
		if p.by == q.id && p.chunk == r.Chunk.ID && p.placement == r.Placement.ID {
			s.write.places = append(s.write.places[:i], s.write.places[i+1:]...)
			return
		}
	}
}

// keptReplyBytes bounds the reply that is remembered for a retry.
const keptReplyBytes = 512

// told remembers what the client of the retryable write q is told.
func (s *session) told(q *request, reply []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.write.number == q.cmd.TxnNumber && len(reply) <= keptReplyBytes {
		s.write.reply = append(s.write.reply[:0], reply...)
	}
}

// recall gives what was remembered about retryable write number.
func (s *session) recall(number int64) (reply []byte, places []place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.write.number != number {
		return nil, nil
	}
	return append([]byte(nil), s.write.reply...), append([]place(nil), s.write.places...)
}
