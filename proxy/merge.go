package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// merger gives the documents of a cursor's streams in order.
type merger struct {
	p *Proxy
	q *request
	c *cursor
}

// room guesses how much the next n documents take, so that a large batch is copied once:
// what has come of them, as far as it goes into a batch.
func (m *merger) room(n int64) int {
	var size, docs int64
	for _, s := range m.c.streams {
		for _, doc := range s.docs {
			size += int64(len(doc)) + elementRoom
		}
		docs += int64(len(s.docs))
	}
	if docs > n { // the ones that are not given are thought as large as the others
		size = size / docs * n
	}
	return int(min(size, batchBytes)) + replyRoom
}

// elementRoom is what an element of an array takes besides its document, at most.
const elementRoom = 8

// fill appends up to n documents as elements of an array. done says that there
// are no more.
func (m *merger) fill(ctx context.Context, dst []byte, n int64) (out []byte, done bool, err error) {
	start := len(dst)
	for i := 0; int64(i) < n; i++ {
		if m.c.left == 0 {
			return dst, true, nil
		}
		s, err := m.next(ctx)
		if err != nil {
			return dst, false, err
		}
		if s == nil {
			return dst, true, nil
		}
		doc := s.docs[0]
		// The first document always fits: a batch makes progress.
		if i > 0 && len(dst)-start+len(doc) > batchBytes {
			return dst, false, nil
		}
		s.docs, s.asked = s.docs[1:], false
		if m.c.skip > 0 {
			m.c.skip--
			i--
			continue
		}
		if m.c.left > 0 {
			m.c.left--
		}
		if m.c.order != nil {
			doc = m.c.order.strip(doc)
		}
		dst = bsoncore.AppendDocumentElement(dst, index(i), doc)
	}
	return dst, m.c.left == 0 || m.exhausted(), nil
}

// exhausted reports whether nothing is left, as far as is known without asking.
func (m *merger) exhausted() bool {
	for _, s := range m.c.streams {
		if len(s.docs) > 0 || s.id != 0 {
			return false
		}
	}
	return true
}

// next gives the stream whose first document comes next, nil at the end.
func (m *merger) next(ctx context.Context) (*stream, error) {
	var best *stream
	for _, s := range m.c.streams {
		if len(s.docs) == 0 && s.id != 0 {
			if err := m.ask(ctx, s); err != nil {
				return nil, err
			}
		}
		if len(s.docs) == 0 {
			continue
		}
		if m.c.order == nil {
			return s, nil
		}
		if !s.asked {
			key, err := m.c.order.key(s.docs[0])
			if err != nil {
				return nil, err
			}
			s.key, s.asked = key, true
		}
		if best == nil || s.key < best.key {
			best = s
		}
	}
	return best, nil
}

// ask gets a stream's next batch. A batch may be empty and not the last.
func (m *merger) ask(ctx context.Context, s *stream) error {
	batchSize, err := m.q.number("batchSize", 0)
	if err != nil {
		return err
	}
	for len(s.docs) == 0 && s.id != 0 {
		a, err := m.getMore(ctx, s, batchSize)
		if err != nil {
			return err
		}
		err = m.p.takeBatch(s, &a)
		a.release()
		if err != nil {
			return err
		}
	}
	return nil
}

// getMore asks for a stream's next batch, whatever command is being answered.
func (m *merger) getMore(ctx context.Context, s *stream, batchSize int64) (answer, error) {
	if string(m.q.cmd.Name) == "getMore" {
		return m.p.more(ctx, m.q, s, batchSize)
	}
	// A first batch that needs a second one of a shard: the client's command is
	// no getMore, so one is made that has only its envelope.
	at, body := bsoncore.AppendDocumentStart(nil)
	body = bsoncore.AppendInt64Element(body, "getMore", s.id)
	body = bsoncore.AppendStringElement(body, "collection", s.coll)
	body, _ = bsoncore.AppendDocumentEnd(body, at)
	cmd := *m.q.cmd
	// What the first command allowed itself, a getMore may not carry.
	cmd.Body, cmd.MaxTimeMS, cmd.ReadConcern, cmd.WriteConcern = body, 0, bson.RawValue{}, bson.RawValue{}
	sub := *m.q
	sub.cmd, sub.sequences = &cmd, nil
	cmd.Name = []byte("getMore")
	return m.p.more(ctx, &sub, s, batchSize)
}

// takeBatch keeps a copy of a batch's documents. An error of the shard's becomes the
// client's.
func (p *Proxy) takeBatch(s *stream, a *answer) error {
	if !a.ok {
		return a.asError()
	}
	view, ok := cursorOf(a.raw)
	if !ok {
		return refuse(codeFailedToParse, "reply of %s has no cursor", s.route.Placement.Shard)
	}
	s.id = view.id
	if err := p.hold(s, int64(len(view.batch.Value))); err != nil {
		return err
	}
	batch := append([]byte(nil), view.batch.Value...)
	w := wire.Walk(batch)
	for w.Next() {
		s.docs = append(s.docs, w.Document())
	}
	if err := w.Err(); err != nil {
		return refuse(codeFailedToParse, "batch of %s: %v", s.route.Placement.Shard, err)
	}
	return nil
}

// asError gives a shard's error reply as an error.
func (a *answer) asError() error {
	out := refuse(a.code, "%s failed on a shard", a.route.Chunk.ID)
	for w := wire.Walk(a.raw); w.Next(); {
		switch string(w.Key) {
		case "errmsg":
			out.msg = string(wire.Element{Type: w.Type, Value: appendRenamed(nil, w.Element, a.route)[1+len(w.Key)+1:]}.Text())
		case "errorLabels":
			for l := wire.Walk(w.Document()); l.Next(); {
				out.labels = append(out.labels, string(l.Text()))
			}
		case "codeName":
			out.name = string(w.Text())
		}
	}
	return out
}
