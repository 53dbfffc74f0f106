package activities

import (
	"context"
	"sync"
)

// shared does for all who ask at the same time, once, what each would do alone. What
// it answers was begun after the question, as if the caller had asked by itself: who
// asks while an answer is on its way gets the next one.
type shared[V any] struct {
	mu  sync.Mutex
	ask map[string]*subject[V]
}

// subject is what is asked about one thing.
type subject[V any] struct{ running, next *answer[V] }

// answer is one answer, for all who wait for it.
type answer[V any] struct {
	work   func(context.Context) (V, error)
	ctx    context.Context //nolint:containedctx // ends when nobody waits any more
	cancel context.CancelFunc
	wait   int
	done   chan struct{}
	value  V
	err    error
}

// do gives the answer of one who asks about something. Whose work it is that is done
// makes no difference: all have to ask the same.
func (t *shared[V]) do(ctx context.Context, about string, work func(context.Context) (V, error)) (V, error) {
	a := t.join(ctx, about, work)
	select {
	case <-a.done:
		t.leave(a)
		return a.value, a.err
	case <-ctx.Done():
		t.leave(a)
		var none V
		return none, context.Cause(ctx)
	}
}

// join makes the caller one who waits for the next answer, which begins at once where
// none is on its way.
func (t *shared[V]) join(ctx context.Context, about string, work func(context.Context) (V, error)) *answer[V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ask == nil {
		t.ask = map[string]*subject[V]{}
	}
	s := t.ask[about]
	if s == nil {
		s = &subject[V]{}
		t.ask[about] = s
	}
	if s.next == nil || s.next.ctx.Err() != nil {
		s.next = &answer[V]{work: work, done: make(chan struct{})}
		s.next.ctx, s.next.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	a := s.next
	a.wait++
	if s.running == nil {
		t.begin(about, s)
	}
	return a
}

// leave ends the work that nobody waits for.
func (t *shared[V]) leave(a *answer[V]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.wait--; a.wait == 0 {
		a.cancel()
	}
}

// begin lets the next answer of a subject be worked out, and the one after it then.
func (t *shared[V]) begin(about string, s *subject[V]) {
	a := s.next
	s.running, s.next = a, nil
	go func() {
		a.value, a.err = a.work(a.ctx)
		close(a.done)
		t.mu.Lock()
		defer t.mu.Unlock()
		s.running = nil
		if s.next == nil {
			delete(t.ask, about)
			return
		}
		t.begin(about, s)
	}()
}
