package proxy

import (
	"context"
)

// dropIndexes drops indexes on every chunk.
//
// Behaviour: index as a name, a key pattern, a list of names or '*', by the old name
// deleteIndexes too; IndexNotFound (27) where no chunk has it.
//
// Not supported: dropping the index of _id, as on any server.
func dropIndexes(ctx context.Context, p *Proxy, q *request) error {
	if _, err := p.shapedCollection(ctx, q); err != nil {
		return err
	}
	return p.shape(ctx, q)
}
