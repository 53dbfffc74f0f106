package proxy

import (
	"context"
)

// listCollections shows the collections of a logical database, as its first
// chunk's placement has them: every chunk has the same.
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

// listIndexes shows the indexes of a collection, as its first chunk's placement
// has them: every chunk has the same.
func listIndexes(ctx context.Context, p *Proxy, q *request) error {
	db, coll, err := p.place(ctx, q)
	if err != nil {
		return err
	}
	if coll == nil || len(db.entries) == 0 {
		return refuse(codeNamespaceNotFound, "ns does not exist: %s.%s", q.cmd.DB, q.cmd.Collection())
	}
	return p.passRead(ctx, q, db.entries[0])
}
