package proxy

import (
	"context"
)

// collMod changes the options of a collection, or of an index, on every chunk.
//
// Behaviour: validator, validationLevel, validationAction, and index with
// expireAfterSeconds, hidden or prepareUnique, as the shards' version takes them.
//
// Not supported: what would make it a view or a time series, as there are none.
func collMod(ctx context.Context, p *Proxy, q *request) error {
	if _, err := p.shapedCollection(ctx, q); err != nil {
		return err
	}
	return p.shape(ctx, q)
}
