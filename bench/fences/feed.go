package fences

import (
	"context"
	"sync"

	"drover/chunk"
	"drover/proxy"
)

// Feed is a proxy's line to a metadata in memory: it brings announcements, and
// nobody waits for what the proxy says.
type Feed struct {
	mu   sync.Mutex
	hear func(proxy.Announcement)
}

// Announce tells the proxy; one that does not listen hears nothing.
func (f *Feed) Announce(a proxy.Announcement) {
	f.mu.Lock()
	hear := f.hear
	f.mu.Unlock()
	if hear != nil {
		hear(a)
	}
}

// Listen implements [proxy.Feed].
func (f *Feed) Listen(ctx context.Context, deliver func(proxy.Announcement)) error {
	f.mu.Lock()
	f.hear = deliver
	f.mu.Unlock()
	deliver(proxy.Announcement{Resync: true})
	<-ctx.Done()
	return ctx.Err()
}

// Ack implements [proxy.Acks].
func (f *Feed) Ack(context.Context, chunk.Ack) error { return nil }

// Beat implements [proxy.Presence].
func (f *Feed) Beat(context.Context, proxy.Life) error { return nil }

// Leave implements [proxy.Presence].
func (f *Feed) Leave(context.Context, string, string) error { return nil }
