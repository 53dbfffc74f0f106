package replication

import (
	"context"
	"sync"
)

// hold is what pauses lanes.
type hold struct {
	mu sync.Mutex
	on chan struct{} // closed when the hold is over; nil: none
}

func newHold() *hold { return &hold{} }

// set begins or ends a hold.
func (h *hold) set(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case on && h.on == nil:
		h.on = make(chan struct{})
	case !on && h.on != nil:
		close(h.on)
		h.on = nil
	}
}

// held reports whether a hold is on.
func (h *hold) held() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on != nil
}

// wait returns when no hold is on.
func (h *hold) wait(ctx context.Context) error {
	for {
		h.mu.Lock()
		on := h.on
		h.mu.Unlock()
		if on == nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-on:
		}
	}
}
