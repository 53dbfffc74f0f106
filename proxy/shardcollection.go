package proxy

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/proxy/wire"
)

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
