package proxy

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// refusedOptions are options of create that no chunk can have.
var refusedOptions = []string{"viewOn", "pipeline", "timeseries", "capped", "clusteredIndex", "encryptedFields", "autoIndexId"}

// create makes a collection on every chunk, with _id as its shard key; shardCollection
// makes one with another.
//
// Behaviour: validator, validationLevel, validationAction, collation and whatever else a
// server takes and a move carries; an existing collection is NamespaceExists (48).
//
// Not supported: views, time series, capped, clustered and encrypted collections
// (CommandNotSupported, 115); names that are too long for a placement (InvalidNamespace, 73).
func create(ctx context.Context, p *Proxy, q *request) error {
	known, err := p.shaped(ctx, q)
	if err != nil {
		return err
	}
	coll := string(q.cmd.Collection())
	if known != nil {
		return refuse(codeNamespaceExists, "Collection %s.%s already exists.", q.cmd.DB, coll)
	}
	if strings.HasPrefix(coll, "system.") || strings.Contains(coll, "$") || len(q.cmd.DB)+len(coll)+40 > 255 {
		return refuse(codeInvalidNamespace, "Invalid collection name: %s", coll)
	}
	for w := wire.Walk(q.cmd.Body); w.Next(); {
		if slices.Contains(refusedOptions, string(w.Key)) && (w.Type != bson.TypeBoolean || w.Truth()) {
			return refuse(codeNotSupported, "create with %s is not supported: it could not be moved", w.Key)
		}
	}
	return p.shape(ctx, q)
}
