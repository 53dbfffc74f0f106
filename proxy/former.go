package proxy

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drover/chunk"
)

// former is a route that a chunk, or a chunk with a part of its range, has had.
type former struct {
	chunk.Route
	left time.Time // when it ended
}

// placements remembers a chunk's former routes, newest first, for as long as a
// shard remembers the sessions that wrote there.
type placements struct {
	some atomic.Bool // there is one
	mu   sync.Mutex
	list []former
}

// add remembers f once.
func (p *placements) add(f former) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	at, known := slices.BinarySearchFunc(p.list, f, func(a, b former) int { return cmp.Compare(b.Token, a.Token) })
	if !known {
		p.list = slices.Insert(p.list, at, f)
	}
	p.list = slices.DeleteFunc(p.list, func(o former) bool { return now.Sub(o.left) > sessionLife })
	p.some.Store(len(p.list) > 0)
}

// all gives the remembered ones.
func (p *placements) all() []former {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

// remember gives e those of the former routes that served a part of its range.
// It is called before e takes a newer route: who goes by that one must know them.
func (e *entry) remember(database string, all []Former) {
	for _, f := range all {
		if f.Route.Chunk.Database == database && f.Route.Chunk.Range.Overlaps(e.rng) {
			e.past.add(former{Route: f.Route, left: f.Left})
		}
	}
}

// formerRoute gives f as a route that commands can be sent by.
func (t *routing) formerRoute(ctx context.Context, f former) (*route, error) {
	pool, err := t.pools.get(ctx, f.Placement.Shard)
	if err != nil {
		return nil, err
	}
	return &route{Route: f.Route, gate: t.gates.of(f.Placement.ID), pool: pool, comment: stamp(f.Route)}, nil
}
