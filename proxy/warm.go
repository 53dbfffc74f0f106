package proxy

import (
	"context"

	"drover/chunk"
	"drover/proxy/upstream"
)

// mostWarm bounds the connections that are made for requests that have not come yet.
const mostWarm = 32

// warm makes ready, while an attempt is being prepared, for what its publish will bring
// to each target at once: who was held would wait for the logins of connections that are
// made then, and for a look at where the shard is.
func (p *Proxy) warm(ctx context.Context, n chunk.Notice) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.MetadataTimeout, errMetadataTimeout)
	defer cancel()

	wanted := 0
	for _, id := range n.Chunks {
		if e := p.routing.entry(id); e != nil {
			wanted = max(wanted, e.route.Load().pool.Open())
		}
	}
	for _, id := range n.AllTargets() {
		at, err := p.ports.Places.Placement(ctx, id)
		var pool *upstream.Pool
		if err == nil {
			pool, err = p.pools.get(ctx, at.Shard)
		}
		if err != nil {
			p.log.DebugContext(ctx, "a target was not made ready", "attempt", n.Attempt, "placement", id, "error", err)
			continue
		}
		pool.Warm(min(wanted, mostWarm))
	}
}
