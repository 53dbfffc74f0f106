package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// killCursors ends the cursors of the list that are the client's own.
//
// Behaviour: cursorsKilled and cursorsNotFound tell them apart; what the shards have
// open for them is ended too.
//
// Not supported: ending a getMore that runs: the cursor ends behind it; cursors of other
// proxies, and of other users, are not found.
func killCursors(ctx context.Context, p *Proxy, q *request) error {
	var killed, unknown []int64
	for w := wire.Walk(q.option("cursors").Document()); w.Next(); {
		id, _ := w.Number()
		c := p.cursors.get(id, q.client.user)
		if c == nil {
			unknown = append(unknown, id)
			continue
		}
		p.closeCursor(ctx, c)
		killed = append(killed, id)
	}
	q.build(func(dst []byte) []byte {
		for _, list := range []struct {
			name string
			ids  []int64
		}{{"cursorsKilled", killed}, {"cursorsNotFound", unknown}, {"cursorsAlive", nil}, {"cursorsUnknown", nil}} {
			var at int32
			at, dst = bsoncore.AppendArrayElementStart(dst, list.name)
			for i, id := range list.ids {
				dst = bsoncore.AppendInt64Element(dst, index(i), id)
			}
			dst, _ = bsoncore.AppendArrayEnd(dst, at)
		}
		return dst
	})
	return nil
}
