package replication

import (
	"sync"
	"time"

	"drover/chunk"
	"drover/event"
)

// position is how far a lane has come in its partition.
type position struct {
	seq    int64
	offset int64
	since  int64
}

// record is what the reader of a partition hands to the applier.
type record struct {
	pos    position
	event  *event.Event  // of the placement's database; nil when only the position moves
	marker *chunk.Marker // of the migration; event is nil then
	wall   time.Time     // when the newest record of this was written on the source
	beats  bool          // a marker of any kind: a sample of the latency
	size   int
}

// queue holds the records that were read and not yet applied, bounded in bytes.
// One goroutine puts, one takes.
type queue struct {
	max int

	mu    sync.Mutex
	items []record
	head  int
	bytes int
	err   error // why no more will come

	ready chan struct{} // something to take
	space chan struct{} // something was taken
}

func newQueue(maxBytes int) *queue {
	return &queue{max: maxBytes, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// put adds a record, or waits until there is room. Records that only move the
// position are merged.
func (q *queue) put(done <-chan struct{}, r record) bool {
	for {
		q.mu.Lock()
		if last := len(q.items) - 1; last >= q.head && r.moves() && q.items[last].moves() {
			q.items[last] = r
			q.mu.Unlock()
			return true
		}
		if q.bytes+r.size <= q.max || q.head == len(q.items) {
			q.items = append(q.items, r)
			q.bytes += r.size
			q.mu.Unlock()
			signal(q.ready)
			return true
		}
		q.mu.Unlock()
		select {
		case <-q.space:
		case <-done:
			return false
		}
	}
}

// moves reports whether r only moves the position.
func (r *record) moves() bool { return r.event == nil && r.marker == nil }

// end says that no more comes, and why.
func (q *queue) end(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	signal(q.ready)
}

// peek gives the oldest record. With none, the error says why none will come,
// nil that some may.
func (q *queue) peek() (r record, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head < len(q.items) {
		return q.items[q.head], true, nil
	}
	return record{}, false, q.err
}

// take removes the oldest record.
func (q *queue) take() record {
	q.mu.Lock()
	r := q.items[q.head]
	q.items[q.head] = record{}
	q.head++
	q.bytes -= r.size
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	} else if q.head > 1024 && q.head*2 > len(q.items) {
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
	q.mu.Unlock()
	signal(q.space)
	return r
}

// oldest gives when the oldest waiting record was written on the source.
func (q *queue) oldest() (time.Time, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head < len(q.items) {
		return q.items[q.head].wall, true
	}
	return time.Time{}, false
}

// signal wakes whoever waits on c, or the next one who does.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
