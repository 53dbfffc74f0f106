package cdc

import (
	"context"
	"errors"
	"sync"
	"time"

	"drover/event"
)

// tailBytes is how much of the end of a partition is kept for its readers.
const tailBytes = 8 << 20

// tailLinger is how long an end is still read after its last reader has left.
const tailLinger = 10 * time.Second

// tails are the ends of captured logs that are being read: each once, for all
// readers of the process.
type tails struct {
	mu     sync.Mutex
	open   map[tailKey]*tail
	closed bool
	group  sync.WaitGroup
}

// tailKey names a partition.
type tailKey struct {
	shard     string
	partition int32
}

// tail is the end of one partition, as far as it is kept.
type tail struct {
	cancel context.CancelFunc
	refs   int       // under tails.mu
	left   time.Time // when refs became 0

	mu      sync.Mutex
	items   []held
	head    int
	first   int64 // offset of the oldest one that is kept
	next    int64
	bytes   int
	ended   bool
	changed chan struct{} // closed when something comes
}

// held is one record. Its event is shared: nobody changes it.
type held struct {
	event *event.Event
	size  int
}

// join gives the end of a partition, nil when it cannot be read.
func (l *Log) join(ctx context.Context, key tailKey) *tail {
	l.tails.mu.Lock()
	t, ok := l.tails.open[key]
	if ok {
		t.refs++
	}
	l.tails.mu.Unlock()
	if ok {
		return t
	}
	ends, err := l.EndOffsets(ctx, key.shard)
	if err != nil || int(key.partition) >= len(ends) {
		return nil
	}
	l.tails.mu.Lock()
	defer l.tails.mu.Unlock()
	if t, ok = l.tails.open[key]; ok { // another one was first
		t.refs++
		return t
	}
	if l.tails.closed {
		return nil
	}
	at := ends[key.partition]
	inner, cancel := context.WithCancel(context.Background())
	t = &tail{cancel: cancel, refs: 1, first: at, next: at, changed: make(chan struct{})}
	l.tails.open[key] = t
	l.tails.group.Go(func() { l.keep(inner, key, t) })
	return t
}

// heldFrom gives the offset of the oldest record that is in memory, -1 when none is.
func (l *Log) heldFrom(key tailKey) int64 {
	l.tails.mu.Lock()
	t, ok := l.tails.open[key]
	l.tails.mu.Unlock()
	if !ok {
		return -1
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || len(t.items) == t.head {
		return -1
	}
	return t.first
}

// leave ends one reader's use of a tail.
func (l *Log) leave(t *tail) {
	l.tails.mu.Lock()
	defer l.tails.mu.Unlock()
	if t.refs--; t.refs == 0 {
		t.left = time.Now()
	}
}

// keep reads the end of a partition until nobody wants it or it cannot be read:
// then each reader goes on by itself and meets the reason.
func (l *Log) keep(ctx context.Context, key tailKey, t *tail) {
	_ = l.raw(ctx, key.shard, key.partition, t.next, func(offset int64, size int, e *event.Event) error {
		if e != nil {
			t.add(offset, size, e)
			return nil
		}
		l.tails.mu.Lock()
		defer l.tails.mu.Unlock()
		if t.refs == 0 && time.Since(t.left) > tailLinger {
			delete(l.tails.open, key)
			return ErrStop
		}
		return nil
	})
	l.tails.mu.Lock()
	if l.tails.open[key] == t {
		delete(l.tails.open, key)
	}
	l.tails.mu.Unlock()
	t.end()
	t.cancel()
}

// close ends all tails and waits for them.
func (s *tails) close() {
	s.mu.Lock()
	s.closed = true
	for _, t := range s.open {
		t.cancel()
	}
	s.mu.Unlock()
	s.group.Wait()
}

// add takes the next record and drops old ones.
func (t *tail) add(offset int64, size int, e *event.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.items = append(t.items, held{e, size})
	t.next = offset + 1
	t.bytes += size
	for t.bytes > tailBytes && t.head < len(t.items)-1 {
		t.bytes -= t.items[t.head].size
		t.items[t.head] = held{}
		t.head++
		t.first++
	}
	if t.head > 1024 && t.head*2 > len(t.items) {
		t.items = append(t.items[:0], t.items[t.head:]...)
		t.head = 0
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// end says that no more comes.
func (t *tail) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	close(t.changed)
	t.changed = make(chan struct{})
}

// holds reports whether a reader at offset may go on here.
func (t *tail) holds(offset int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.ended && t.first <= offset && offset <= t.next
}

// tailBatch is how many records a reader takes at once.
const tailBatch = 256

// after gives records from offset on; ok is false when offset is not held any
// more. With none, changed tells when to look again.
func (t *tail) after(offset int64) (some []held, changed <-chan struct{}, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || offset < t.first || offset > t.next {
		return nil, nil, false
	}
	from := t.head + int(offset-t.first)
	return append([]held(nil), t.items[from:min(len(t.items), from+tailBatch)]...), t.changed, true
}

// errElsewhere ends one way of reading in favour of the other.
var errElsewhere = errors.New("read on elsewhere")

// read calls fn for what a tail holds from *next on, as [Log.Read] does.
func (t *tail) read(ctx context.Context, next *int64, fn func(int64, *event.Event) error) error {
	tick := time.NewTicker(idleTick)
	defer tick.Stop()
	for {
		some, changed, ok := t.after(*next)
		if !ok {
			return errElsewhere
		}
		for _, h := range some {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			at := *next
			*next++
			if err := fn(at, h.event); err != nil {
				return err
			}
		}
		if len(some) == tailBatch {
			continue
		}
		if err := fn(*next, nil); err != nil {
			return err
		}
		if len(some) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-tick.C:
		}
	}
}
