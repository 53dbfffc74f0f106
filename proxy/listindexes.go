package proxy

import (
	"context"
)

// listIndexes shows the indexes of a collection, as its first chunk's placement
// has them: every chunk has the same.
//
// Behaviour: cursor as the shard has it; an unknown collection is NamespaceNotFound (26).
//
// Not supported: builds that are under way on other chunks.
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
