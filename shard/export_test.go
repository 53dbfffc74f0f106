package shard

import (
	"context"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
)

// Clock gives what moves the clock by which former clients are judged. It is to be had before
// there are clients: their pools look at it.
func (c *Clients) Clock() (later func(time.Duration)) {
	var ahead atomic.Int64
	c.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	return func(d time.Duration) { ahead.Add(int64(d)) }
}

// Former gives the clients that others took over from and that are kept.
func (c *Clients) Former() (all []*mongo.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.former {
		all = append(all, o.client)
	}
	return all
}

// Pooled lets a former client's pool say something.
func (c *Clients) Pooled(m *mongo.Client, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.former {
		if o.client == m {
			o.use.note(&event.PoolEvent{Type: kind}, c.now())
		}
	}
}

// Admin gives the admin user's client as the set has it now.
func (s *Set) Admin() *mongo.Client { return s.admin() }

// NewFencer makes a fencer that has talked to nobody.
func (s *Set) NewFencer() *Fencer { return &Fencer{set: s, dialed: map[string]string{}} }

// Node gives a fencer's own clients of a member.
func (f *Fencer) Node(host string) (admin, data *mongo.Client, err error) {
	n, err := f.node(host, false)
	if err != nil {
		return nil, nil, err
	}
	return n.admin, n.data, nil
}

// LandedBetween probes a placement, writes, and probes again: whether each probe
// found that a change came before it.
func (s *Set) LandedBetween(ctx context.Context, p chunk.Placement, write func() error) (before, after bool, err error) {
	stream, err := s.watchQuiet(ctx, p)
	if err != nil {
		return false, false, err
	}
	defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }()
	if before, err = s.probeQuiet(ctx, stream, p.ID); err != nil {
		return before, false, err
	}
	if err := write(); err != nil {
		return before, false, err
	}
	after, err = s.probeQuiet(ctx, stream, p.ID)
	return before, after, err
}
