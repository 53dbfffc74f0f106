package proxy

import (
	"context"
)

// listCollections shows the collections of a logical database, as its first
// chunk's placement has them: every chunk has the same.
//
// Behaviour: filter, nameOnly, authorizedCollections and cursor as the shard has them;
// nothing of a database that does not exist.
//
// Not supported: views and time series, which no database has; uuids are those of the
// first chunk.
func listCollections(ctx context.Context, p *Proxy, q *request) error {
	db, err := p.routing.database(ctx, q.cmd.DB)
	if err != nil {
		return err
	}
	if db == nil || len(db.entries) == 0 {
		emptyCursor(q, "$cmd.listCollections")
		return nil
	}
	return p.passRead(ctx, q, db.entries[0])
}
