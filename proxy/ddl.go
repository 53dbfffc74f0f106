package proxy

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/internal/failure"
	"drover/proxy/wire"
)

// What create, drop, createIndexes, dropIndexes, collMod and shardCollection have in
// common: the command is done on every chunk of the logical database, one DDL of it at a
// time, and then the catalog says so. While a chunk of the database is being moved, up to
// the end of the burn-in, it is refused with ConflictingOperationInProgress (117): both
// placements of a move must stay alike. A command that failed on some chunk says so and
// is repeated as it was. None is possible in a transaction.

// CatalogChange is one DDL of a logical database.
type CatalogChange struct {
	Database   string
	Collection string
	ShardKey   string   // of a collection that is created
	Command    bson.Raw // what each placement is told, without an envelope
}

// Catalog changes the collections of logical databases on all their chunks.
type Catalog interface {
	// Change does c everywhere and gives one placement's reply. An error of a
	// shard's stays a [mongo.ServerError]; a [failure.Error] says anything else.
	Change(ctx context.Context, c CatalogChange) (bson.Raw, error)
}

// The codes of failures that a client is told by a code of MongoDB's own.
const (
	CatalogMoving    = "catalog.moving"    // the change must wait for a move
	CatalogUnknown   = "catalog.unknown"   // there is no such collection
	CatalogUnchanged = "catalog.unchanged" // no chunk has the index
	CatalogExists    = "catalog.exists"    // the collection is there, defined otherwise
)

// shaped finds what a DDL is about; coll is nil where there is no such collection.
func (p *Proxy) shaped(ctx context.Context, q *request) (coll *collection, _ error) {
	db, coll, err := p.place(ctx, q)
	if err == nil && db == nil {
		err = refuse(codeNamespaceNotFound, "database %s does not exist (databases are made with drover db)", q.cmd.DB)
	}
	return coll, err
}

// shapedCollection is shaped for a DDL of a collection that must be there.
func (p *Proxy) shapedCollection(ctx context.Context, q *request) (*collection, error) {
	coll, err := p.shaped(ctx, q)
	if err == nil && coll == nil {
		err = refuse(codeNamespaceNotFound, "ns does not exist: %s.%s", q.cmd.DB, q.cmd.Collection())
	}
	return coll, err
}

// shape does the client's command everywhere.
func (p *Proxy) shape(ctx context.Context, q *request) error {
	return p.change(ctx, q, CatalogChange{
		Database: string(q.cmd.DB), Collection: string(q.cmd.Collection()), ShardKey: "_id", Command: bareCommand(q.cmd.Body),
	})
}

// bareCommand gives a command without what belongs to its sender.
func bareCommand(body bson.Raw) bson.Raw {
	return document(func(dst []byte) []byte {
		for w := wire.Walk(body); w.Next(); {
			switch string(w.Key) {
			case "lsid", "txnNumber", "comment", "writeConcern", "readConcern", "maxTimeMS", "commitQuorum",
				"apiVersion", "apiStrict", "apiDeprecationErrors":
			default:
				if len(w.Key) == 0 || w.Key[0] != '$' {
					dst = append(dst, w.Raw...)
				}
			}
		}
		return dst
	})
}

// change has the control plane do c and answers with a placement's reply.
func (p *Proxy) change(ctx context.Context, q *request, c CatalogChange) error {
	if p.ports.Catalog == nil {
		return refuse(codeNotSupported, "%s is not possible through this proxy: it has no control plane", q.cmd.Name)
	}
	if !q.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, q.deadline)
		defer cancel()
	}
	reply, err := p.ports.Catalog.Change(ctx, c)
	if err != nil {
		return p.catalogRefusal(ctx, err)
	}
	if err := p.routing.load(ctx); err != nil {
		p.log.WarnContext(ctx, "routes were not read", "error", err)
	}
	q.build(func(dst []byte) []byte {
		for w := wire.Walk(reply); w.Next(); {
			switch string(w.Key) {
			case "ok", "$clusterTime", "operationTime", "electionId", "opTime":
			case "ns":
				dst = bsoncore.AppendStringElement(dst, "ns", c.Database+"."+c.Collection)
			default:
				dst = append(dst, w.Raw...)
			}
		}
		return dst
	})
	return nil
}

// catalogRefusal gives what a client is told of a change that failed.
func (p *Proxy) catalogRefusal(ctx context.Context, err error) error {
	p.log.WarnContext(ctx, "catalog was not changed", "error", err)
	if f, ok := errors.AsType[*failure.Error](err); ok {
		msg := f.Error()
		if f.Hint != "" {
			msg = fmt.Sprintf("%s (%s)", msg, f.Hint)
		}
		switch {
		case f.Code == CatalogMoving:
			return refuse(codeConflicting, "%s", msg)
		case f.Code == CatalogUnknown:
			return refuse(codeNamespaceNotFound, "%s", msg)
		case f.Code == CatalogUnchanged:
			return refuse(codeIndexNotFound, "%s", msg)
		case f.Code == CatalogExists:
			return refuse(codeNamespaceExists, "%s", msg)
		case f.Kind == failure.Invalid:
			return refuse(codeNotSupported, "%s", msg)
		default:
			return refuse(codeHostUnreachable, "%s", msg)
		}
	}
	if ce, ok := errors.AsType[mongo.CommandError](err); ok {
		r := refuse(code(ce.Code), "%s", ce.Message)
		r.name = ce.Name
		return r
	}
	return err
}
