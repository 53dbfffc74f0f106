package proxy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/proxy/wire"
)

// fence is what a shard itself says about a placement of its own. It informs:
// the grants decide.
type fence struct {
	fenced  bool
	forward *chunk.Route // where the chunk is served now, nil if the shard does not say
}

// readFence reads the fence document of r's placement on its own shard.
func (p *Proxy) readFence(ctx context.Context, r *route) (fence, error) {
	doc, err := p.lookUp(ctx, r, chunk.SystemDatabase, chunk.FencesCollection, document(func(dst []byte) []byte {
		return bsoncore.AppendInt64Element(dst, "_id", int64(r.Placement.ID))
	}))
	if err != nil || doc == nil {
		return fence{}, err
	}
	return fenceOf(doc, r)
}

// fenceOf reads what a fence document says. A placement that is gone is as good as
// fenced, for ever.
func fenceOf(doc bson.Raw, r *route) (fence, error) {
	state, _ := wire.Find(doc, "state")
	f := fence{fenced: slices.Contains([]string{"fenced", "gone"}, string(state.Text()))}
	e, ok := wire.Find(doc, "forward")
	if !ok || e.Document() == nil {
		return f, nil
	}
	var to struct {
		Shard     string            `bson:"shard"`
		Placement chunk.PlacementID `bson:"placement"`
		Database  string            `bson:"database"`
		Token     chunk.Token       `bson:"token"`
	}
	if err := bson.Unmarshal(e.Document(), &to); err != nil {
		return f, fmt.Errorf("forwarding address of %s: %w", r.Placement.Database, err)
	}
	f.forward = &chunk.Route{
		Chunk: r.Chunk, Token: to.Token,
		Placement: chunk.Placement{ID: to.Placement, Chunk: r.Chunk.ID, Shard: to.Shard, Database: to.Database, State: chunk.Live},
	}
	return f, nil
}

// forwarded follows the forwarding address of a chunk whose metadata cannot be
// read, as far as the shards know it.
func (p *Proxy) forwarded(ctx context.Context, e *entry) {
	f, err := p.readFence(ctx, e.route.Load())
	if err == nil && f.forward != nil {
		err = p.routing.set(ctx, e, *f.forward)
	}
	if err != nil && ctx.Err() == nil {
		p.log.WarnContext(ctx, "forwarding address was not followed", "chunk_id", e.id, "error", err)
	}
}

// lookUp reads one document from the shard of r with majority; nil when there is
// none.
func (p *Proxy) lookUp(ctx context.Context, r *route, database, collection string, filter []byte) (bson.Raw, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.ShardWait, errMetadataTimeout)
	defer cancel()
	conn, err := r.pool.Get(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it is
	}
	defer conn.Release()
	body := document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", collection)
		dst = bsoncore.AppendDocumentElement(dst, "filter", filter)
		dst = bsoncore.AppendInt32Element(dst, "limit", 1)
		dst = bsoncore.AppendBooleanElement(dst, "singleBatch", true)
		dst = bsoncore.AppendDocumentElement(dst, "readConcern", document(func(dst []byte) []byte {
			return bsoncore.AppendStringElement(dst, "level", "majority")
		}))
		dst = bsoncore.AppendInt64Element(dst, "maxTimeMS", time.Second.Milliseconds())
		return bsoncore.AppendStringElement(dst, "$db", database)
	})
	raw, err := conn.Command(ctx, body)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it is
	}
	a := answer{raw: raw, route: r, status: statusOf(raw)}
	if !a.ok {
		if a.lostPrimary() {
			r.pool.NotPrimary(conn)
		}
		return nil, a.asError()
	}
	view, _ := cursorOf(raw)
	w := wire.Walk(view.batch.Document())
	if !w.Next() {
		return nil, w.Err() //nolint:wrapcheck // says what it is
	}
	return w.Document(), nil
}
