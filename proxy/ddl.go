package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/internal/failure"
	"drover/proxy/wire"
)

// Behaviour of create, drop, createIndexes, dropIndexes and collMod: the command
// is done on every chunk of the logical database, one DDL of it at a time, and
// then the catalog says so. While a chunk of the database is being moved, up to
// the end of the burn-in, it is refused with ConflictingOperationInProgress (117):
// both placements of a move must stay alike. A command that failed on some chunk
// says so and is repeated as it was. A collection made by create has _id as its
// shard key; shardCollection makes one with another.
//
// Not supported: views, time series, capped, clustered and encrypted collections;
// unique indexes that do not begin with the shard key (CannotCreateIndex, 67);
// renameCollection, dropDatabase, convertToCapped (databases are made and dropped
// with drover db); DDL in a transaction; collections that spring up by an insert.

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

// refusedOptions are options of create that no chunk can have.
var refusedOptions = []string{"viewOn", "pipeline", "timeseries", "capped", "clusteredIndex", "encryptedFields", "autoIndexId"}

// ddl answers the commands that change a collection's definition.
func ddl(ctx context.Context, p *Proxy, q *request) error {
	coll := string(q.cmd.Collection())
	if coll == "" {
		return refuse(codeInvalidNamespace, "%s needs the name of a collection", q.cmd.Name)
	}
	known, err := p.checkDDL(ctx, q, coll)
	if err != nil {
		return err
	}
	if !known && string(q.cmd.Name) == "drop" {
		q.build(func(dst []byte) []byte { return dst }) // as mongod has it since 7.0
		return nil
	}
	return p.change(ctx, q, CatalogChange{Database: string(q.cmd.DB), Collection: coll, ShardKey: "_id", Command: bareCommand(q.cmd.Body)})
}

// checkDDL refuses what no chunk should be told.
func (p *Proxy) checkDDL(ctx context.Context, q *request, coll string) (known bool, _ error) {
	db, c, err := p.place(ctx, q)
	if err != nil {
		return false, err
	}
	if db == nil {
		return false, refuse(codeNamespaceNotFound, "database %s does not exist (databases are made with drover db)", q.cmd.DB)
	}
	switch name := string(q.cmd.Name); {
	case name == "create" && c != nil:
		return true, refuse(codeNamespaceExists, "Collection %s.%s already exists.", q.cmd.DB, coll)
	case name == "create":
		if strings.HasPrefix(coll, "system.") || strings.Contains(coll, "$") || len(q.cmd.DB)+len(coll)+40 > 255 {
			return false, refuse(codeInvalidNamespace, "Invalid collection name: %s", coll)
		}
		for w := wire.Walk(q.cmd.Body); w.Next(); {
			if slices.Contains(refusedOptions, string(w.Key)) && (w.Type != bson.TypeBoolean || w.Truth()) {
				return false, refuse(codeNotSupported, "create with %s is not supported: it could not be moved", w.Key)
			}
		}
		return false, nil
	case name == "drop":
		return c != nil, nil
	case c == nil:
		return false, refuse(codeNamespaceNotFound, "ns does not exist: %s.%s", q.cmd.DB, coll)
	case name == "createIndexes":
		return true, checkIndexes(q.option("indexes"), c)
	default:
		return true, nil
	}
}

// checkIndexes refuses unique indexes that would be unique in each chunk only.
func checkIndexes(list wire.Element, c *collection) error {
	if list.Type != bson.TypeArray {
		return refuse(codeFailedToParse, "createIndexes needs an array indexes")
	}
	for w := wire.Walk(list.Document()); w.Next(); {
		unique, _ := wire.Find(w.Document(), "unique")
		key, _ := wire.Find(w.Document(), "key")
		if unique.Type == 0 || !unique.Truth() || beginsWith(key.Document(), c.keys()) {
			continue
		}
		return refuse(codeCannotCreateIndex, "cannot create unique index over %s: it must begin with the shard key %s, or it would be unique in each chunk only",
			key.RawValue(), c.shardKey)
	}
	return nil
}

// beginsWith reports whether an index's pattern begins with the fields, in their order.
func beginsWith(pattern bson.Raw, fields []string) bool {
	w := wire.Walk(pattern)
	for _, f := range fields {
		if !w.Next() || !w.Is(f) {
			return false
		}
	}
	return true
}

// shardCollection makes a collection that is placed by fields other than _id.
//
// Behaviour: {shardCollection: "db.collection", key: {field: 1 | "hashed", ...}}; of
// an existing collection, it answers ok when that is its key already. Whether values
// are hashed is the database's, whatever the key says.
//
// Not supported: changing the key of a collection; unique,
// numInitialChunks and presplitting: all collections of a database share its
// chunks.
func shardCollection(ctx context.Context, p *Proxy, q *request) error {
	database, coll, ok := strings.Cut(string(q.cmd.Collection()), ".")
	if !ok || coll == "" {
		return refuse(codeInvalidNamespace, "shardCollection needs \"database.collection\"")
	}
	field, refused := keyPattern(q.option("key"))
	if refused != nil {
		return refused
	}
	if u := q.option("unique"); u.Type != 0 && u.Truth() {
		return refuse(codeNotSupported, "shardCollection with unique is not supported: make a unique index")
	}
	db, c, err := p.routing.collection(ctx, []byte(database), []byte(coll))
	switch {
	case err != nil:
		return err
	case db == nil:
		return refuse(codeNamespaceNotFound, "database %s does not exist (databases are made with drover db)", database)
	case c != nil && c.shardKey != field:
		return refuse(codeAlreadyInitialized, "%s.%s is placed by %s, which never changes", database, coll, c.shardKey)
	case c == nil:
		create := document(func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "create", coll) })
		if err := p.change(ctx, q, CatalogChange{Database: database, Collection: coll, ShardKey: field, Command: create}); err != nil {
			return err
		}
		return nil
	}
	q.build(func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "collectionsharded", database+"."+coll)
	})
	return nil
}

// keyPattern reads the shard key of a shardCollection.
func keyPattern(e wire.Element) (string, *refusal) {
	var fields []string
	for w := wire.Walk(e.Document()); w.Next(); {
		if strings.Contains(string(w.Key), ",") {
			return "", refuse(codeBadValue, "the shard key's field %q has a comma in its name", w.Key)
		}
		fields = append(fields, string(w.Key))
	}
	if len(fields) == 0 {
		return "", refuse(codeFailedToParse, "shardCollection needs a key")
	}
	key := strings.Join(fields, ",")
	if err := chunk.CheckShardKey(key); err != nil {
		return "", refuse(codeBadValue, "%v", err)
	}
	return key, nil
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
