package proxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

const (
	// cursorLife is how long a cursor may be unused.
	cursorLife = 10 * time.Minute
	// batchBytes bounds a batch that the proxy puts together.
	batchBytes = wire.MaxDocument
	// firstBatch is the size of a first batch of which nothing is said.
	firstBatch = 101
)

// cursor is a client's cursor. It has one stream for each chunk; with a single
// stream nothing is merged and batches are passed on as they come.
type cursor struct {
	id      int64
	rest    string // the namespace without the database
	session *session
	user    string
	txn     *txn

	mu       sync.Mutex
	made     time.Time
	lastUsed time.Time
	streams  []*stream
	order    *sortOrder // nil: any order
	left     int64      // documents that may still be given; negative: any number
	skip     int64
	single   bool // the first batch is all
}

// stream is one chunk's part of a cursor.
type stream struct {
	route *route
	entry *entry
	id    int64 // the shard's cursor, 0 when it has given everything
	coll  string
	docs  [][]byte // have come and were not given
	key   string   // of the first of docs, in the cursor's order
	asked bool     // key is valid
	bytes int64    // of docs, as they came: counted in cursors
}

// cursors is every open cursor.
type cursors struct {
	bytes atomic.Int64 // of the batches that wait in them
	mu    sync.Mutex
	all   map[int64]*cursor
}

// hold counts a batch that a stream keeps in place of the last one, unless there is no
// room for it.
func (p *Proxy) hold(s *stream, n int64) error {
	more := n - s.bytes
	if now := p.cursors.bytes.Add(more); more > 0 && now > p.cfg.CursorBytes {
		p.cursors.bytes.Add(-more)
		p.metrics.refused("cursor_memory")
		return refuse(codeMemoryLimit, "cursors over several chunks wait with more than %d MB in the proxy: read them to their end, or name the shard key", p.cfg.CursorBytes>>20)
	}
	s.bytes = n
	return nil
}

// newCursors makes an empty set.
func newCursors() *cursors { return &cursors{all: map[int64]*cursor{}} }

// add gives c an id and keeps it.
func (s *cursors) add(c *cursor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c.id == 0 || s.all[c.id] != nil {
		c.id = rand.Int64() //nolint:gosec // an id is checked against its session's user, it is no secret
	}
	c.lastUsed = time.Now()
	c.made = c.lastUsed
	s.all[c.id] = c
}

// get gives a user's cursor.
func (s *cursors) get(id int64, user string) *cursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[id]
	if c == nil || c.user != user {
		return nil
	}
	return c
}

// of gives the cursors of a session that nobody reads just now.
func (s *cursors) of(owner *session) []*cursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*cursor
	for _, c := range s.all {
		if c.session == owner && c.mu.TryLock() {
			out = append(out, c)
			c.mu.Unlock()
		}
	}
	return out
}

// remove forgets a cursor.
func (s *cursors) remove(c *cursor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c.id)
}

// idle takes out the cursors that were not used for long.
func (s *cursors) idle(now time.Time) []*cursor {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*cursor
	for id, c := range s.all {
		if !c.mu.TryLock() {
			continue
		}
		if now.Sub(c.lastUsed) > cursorLife {
			out = append(out, c)
			delete(s.all, id)
		}
		c.mu.Unlock()
	}
	return out
}

// closeCursor ends a cursor on its shards and forgets it.
func (p *Proxy) closeCursor(ctx context.Context, c *cursor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.closeStreams(ctx, c)
}

// closeStreams is closeCursor for a caller that holds c.mu, or alone knows c.
func (p *Proxy) closeStreams(ctx context.Context, c *cursor) {
	p.cursors.remove(c)
	for _, s := range c.streams {
		p.closeStream(ctx, c.session, s)
	}
}

// closeStream ends one chunk's part of a cursor. A shard forgets a cursor by
// itself in time, so that an error is of no consequence.
func (p *Proxy) closeStream(ctx context.Context, owner *session, s *stream) {
	s.docs = nil
	_ = p.hold(s, 0) // less is always possible
	if s.id == 0 {
		return
	}
	id := s.id
	s.id = 0
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.ShardWait, errMetadataTimeout)
	defer cancel()
	conn, err := s.route.pool.Get(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	at, body := bsoncore.AppendDocumentStart(nil)
	body = bsoncore.AppendStringElement(body, "killCursors", s.coll)
	list, body := bsoncore.AppendArrayElementStart(body, "cursors")
	body = bsoncore.AppendInt64Element(body, "0", id)
	body, _ = bsoncore.AppendArrayEnd(body, list)
	if owner != nil {
		body = appendSession(body, owner.upstreamSession(s.route.Placement.ID))
	}
	body = bsoncore.AppendStringElement(body, "$db", s.route.Placement.Database)
	body, _ = bsoncore.AppendDocumentEnd(body, at)
	_, _ = conn.Command(ctx, body)
}

// begin gives the first batch of a merged cursor, or closes it.
func (p *Proxy) begin(ctx context.Context, q *request, c *cursor, batch int64) error {
	p.cursors.add(c)
	err := p.deliver(ctx, q, c, batch, "firstBatch")
	if err == nil {
		return nil
	}
	p.closeStreams(ctx, c)
	if errors.Is(err, errMoved) {
		return refuse(codeExceededTimeLimit, "a chunk moved while the first batch was read")
	}
	return err
}

// deliver appends a reply with the next documents of a merged cursor.
func (p *Proxy) deliver(ctx context.Context, q *request, c *cursor, batchSize int64, name string) error {
	m := merger{p: p, q: q, c: c}
	at, dst := bsoncore.AppendDocumentStart(slices.Grow(q.client.out, m.room(batchSize)))
	inner, dst := bsoncore.AppendDocumentElementStart(dst, "cursor")
	list, dst := bsoncore.AppendArrayElementStart(dst, name)
	dst, done, err := m.fill(ctx, dst, batchSize)
	if err != nil {
		return err
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, list)
	id := c.id
	if done || c.single {
		id = 0
		p.closeStreams(ctx, c)
	}
	dst = bsoncore.AppendInt64Element(dst, "id", id)
	dst = appendNamespace(dst, string(q.cmd.DB), c.rest)
	dst, _ = bsoncore.AppendDocumentEnd(dst, inner)
	dst = bsoncore.AppendDoubleElement(dst, "ok", 1)
	if q.txn != nil {
		dst = appendRecoveryToken(dst, q.txn)
	}
	q.client.out, _ = bsoncore.AppendDocumentEnd(dst, at)
	return nil
}

// open keeps what a shard has begun as a cursor of the client and passes the
// reply on. coll is what getMore must call the shard's cursor.
func (p *Proxy) open(q *request, a *answer, e *entry) error {
	view, ok := cursorOf(a.raw)
	if !ok {
		return refuse(codeFailedToParse, "reply of %s has no cursor", a.route.Placement.Shard)
	}
	if view.id == 0 {
		return q.passCursor(a, 0)
	}
	rest := restOf(view.ns)
	c := &cursor{rest: rest, session: q.session, user: q.client.user, txn: q.txn, left: -1}
	c.streams = []*stream{{route: a.route, entry: e, id: view.id, coll: rest}}
	p.cursors.add(c)
	return q.passCursor(a, c.id)
}

// restOf cuts the database off a namespace.
func restOf(ns []byte) string {
	for i, b := range ns {
		if b == '.' {
			return string(ns[i+1:])
		}
	}
	return string(ns)
}

// emptyCursor appends the reply of a read that finds nothing.
func emptyCursor(q *request, rest string) {
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendDocumentElementStart(dst, "cursor")
		list, dst := bsoncore.AppendArrayElementStart(dst, "firstBatch")
		dst, _ = bsoncore.AppendArrayEnd(dst, list)
		dst = bsoncore.AppendInt64Element(dst, "id", 0)
		dst = appendNamespace(dst, string(q.cmd.DB), rest)
		dst, _ = bsoncore.AppendDocumentEnd(dst, at)
		return dst
	})
}

// nullValue is what a missing field counts as.
var nullValue = bson.RawValue{Type: bson.TypeNull}
