package proxy

import (
	"context"
)

// drop takes a collection out of the catalog, and then from every chunk.
//
// Behaviour: one that is not there is ok, as mongod has it since 7.0.
//
// Not supported: dropping a database: drover db does.
func drop(ctx context.Context, p *Proxy, q *request) error {
	known, err := p.shaped(ctx, q)
	if err != nil {
		return err
	}
	if known == nil {
		q.build(func(dst []byte) []byte { return dst })
		return nil
	}
	return p.shape(ctx, q)
}
