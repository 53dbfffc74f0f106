package proxy

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// getMore goes on with a cursor where it is.
//
// Behaviour: batchSize; a cursor of one chunk passes the shard's batches on, one of
// several is merged; it belongs to its session and user, and outlives switches of
// chunks that it is not on.
//
// Not supported: a cursor whose chunk has moved is gone (CursorNotFound, 43): its order
// cannot be continued exactly elsewhere. So is one of another proxy, and a merged one
// after an error, since documents that were taken for the failed batch would be skipped.
func getMore(ctx context.Context, p *Proxy, q *request) error {
	id, _ := wire.Element{Type: q.cmd.First.Type, Value: q.cmd.First.Value}.Number()
	c := p.cursors.get(id, q.client.user)
	if c == nil || c.session != q.session && c.session != nil {
		return refuse(codeCursorNotFound, "cursor id %d not found", id)
	}
	if string(q.option("collection").Text()) != c.rest {
		return refuse(codeUnauthorized, "cursor id %d does not belong to this collection", id)
	}
	if !c.mu.TryLock() {
		return refuse(codeCursorInUse, "cursor id %d is in use", id)
	}
	defer c.mu.Unlock()
	c.lastUsed = time.Now()
	if c.passed() {
		err := p.getMoreSingle(ctx, q, c)
		if errors.Is(err, errMoved) {
			p.closeStreams(ctx, c)
			err = errCursorMoved(id)
		}
		return err
	}
	err := p.getMoreMerged(ctx, q, c)
	if err != nil {
		// Documents that were taken for this batch are lost: going on would skip them.
		p.closeStreams(ctx, c)
	}
	if errors.Is(err, errMoved) {
		return errCursorMoved(id)
	}
	return err
}

// passed reports whether the cursor's batches are those of one shard.
func (c *cursor) passed() bool {
	return len(c.streams) == 1 && c.streams[0].route != nil && c.order == nil && c.left < 0 && c.skip == 0
}

// errCursorMoved ends a cursor one of whose chunks has moved.
func errCursorMoved(id int64) error {
	return refuse(codeCursorNotFound, "cursor id %d not found: its chunk has moved", id)
}

// more asks one stream for its next batch.
func (p *Proxy) more(ctx context.Context, q *request, s *stream, batchSize int64) (answer, error) {
	var extra []byte
	if batchSize > 0 {
		extra = bsoncore.AppendInt64Element(nil, "batchSize", batchSize)
	}
	return p.dispatch(ctx, q, &leg{
		entry: s.entry, access: reads, pinned: s.route,
		edit: edit{first: bsoncore.AppendInt64Element(nil, "getMore", s.id), drop: []string{"batchSize"}, extra: extra},
	})
}

// getMoreSingle passes a shard's batch on.
func (p *Proxy) getMoreSingle(ctx context.Context, q *request, c *cursor) error {
	s := c.streams[0]
	batchSize, err := q.number("batchSize", 0)
	if err != nil {
		return err
	}
	a, err := p.more(ctx, q, s, batchSize)
	if err != nil {
		return err
	}
	defer a.release()
	if !a.ok {
		if a.code == codeCursorNotFound {
			s.id = 0
			p.cursors.remove(c)
		}
		return q.pass(&a)
	}
	view, ok := cursorOf(a.raw)
	if !ok {
		return refuse(codeFailedToParse, "reply of %s has no cursor", s.route.Placement.Shard)
	}
	id := c.id
	if s.id = view.id; s.id == 0 {
		p.cursors.remove(c)
		id = 0
	}
	return q.passCursor(&a, id)
}

// getMoreMerged gives the next batch of several chunks.
func (p *Proxy) getMoreMerged(ctx context.Context, q *request, c *cursor) error {
	batchSize, err := q.number("batchSize", 0)
	if err != nil {
		return err
	}
	if batchSize <= 0 {
		batchSize = 1 << 31
	}
	return p.deliver(ctx, q, c, batchSize, "nextBatch")
}
