package replication

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"drover/chunk"
	"drover/event"
)

// batch is what one transaction applies: events on documents of the placement,
// in order, and where the lane stands after them.
type batch struct {
	items  []item
	bytes  int
	pos    position
	marker *chunk.Marker // the batch ends at it
	wall   time.Time     // of the newest record
	beats  bool          // the batch passes a marker
	ddl    *event.Event  // what comes after this batch, and is no part of it
	ddlPos position
}

// item is one event of a batch.
type item struct {
	event *event.Event
	pos   position
}

// prefix gives the first n items as a batch of its own.
func (b *batch) prefix(n int) *batch {
	p := &batch{items: b.items[:n], pos: b.items[n-1].pos, wall: b.items[n-1].event.Wall}
	for _, it := range p.items {
		p.bytes += it.size()
	}
	return p
}

// rest gives what [batch.prefix] leaves.
func (b *batch) rest(n int) *batch {
	r := *b
	r.items, r.bytes = b.items[n:], 0
	for _, it := range r.items {
		r.bytes += it.size()
	}
	return &r
}

// size is the event's share of a batch's bytes.
func (it item) size() int { return eventSize(it.event) }

// eventSize is what an event takes in memory, near enough.
func eventSize(e *event.Event) int {
	return 256 + len(e.Key) + len(e.Document) + len(e.Change) + len(e.Description)
}

// transaction reports whether a and b belong to one transaction of the source.
func transaction(a, b *event.Event) bool {
	return a != nil && b != nil && len(a.Session) > 0 && a.TxnNumber == b.TxnNumber && bytes.Equal(a.Session, b.Session)
}

// lingerInTransaction is how long a batch whose newest event belongs to a
// source transaction waits for the next event: the transaction's events come
// right after each other.
const lingerInTransaction = 2 * time.Millisecond

// collect takes what is in the queue, as far as one batch goes. It never waits
// for more, except within a source transaction.
func (l *Lane) collect(ctx context.Context) *batch {
	b := &batch{}
	lingered := false
	for {
		r, ok, _ := l.queue.peek()
		if !ok {
			if lingered || len(b.items) == 0 || len(b.items[len(b.items)-1].event.Session) == 0 {
				return b
			}
			lingered = true
			l.linger(ctx)
			continue
		}
		if l.full(b, &r) {
			return b
		}
		lingered = false
		b.add(l.queue.take())
		if b.marker != nil || b.ddl != nil {
			return b
		}
	}
}

// linger waits for a record, for a moment.
func (l *Lane) linger(ctx context.Context) {
	t := time.NewTimer(lingerInTransaction)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-l.queue.ready:
	}
}

// full reports whether r must wait for the next batch.
func (l *Lane) full(b *batch, r *record) bool {
	n := len(b.items)
	if n == 0 || r.event == nil {
		return false
	}
	docs, size := l.cfg.Limits.Docs, l.cfg.Limits.Bytes
	if transaction(b.items[n-1].event, r.event) {
		docs, size = l.cfg.Limits.TransactionDocs, l.cfg.Limits.TransactionBytes
	}
	return n >= docs || b.bytes+r.size > size
}

// add appends a record.
func (b *batch) add(r record) {
	if r.event != nil && !r.event.Op.OnDocument() {
		b.ddl, b.ddlPos = r.event, r.pos // its position is not the batch's
		return
	}
	b.pos, b.wall, b.marker = r.pos, r.wall, r.marker
	b.beats = b.beats || r.beats
	if r.event != nil {
		b.items = append(b.items, item{event: r.event, pos: r.pos})
		b.bytes += r.size
	}
}

// describe names an event without its contents.
func describe(e *event.Event) string {
	return fmt.Sprintf("%s of %s at seq %d", e.Op, e.Collection, e.Seq)
}
