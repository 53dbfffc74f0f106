package shard

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Size gives how much a database holds, documents and indexes, as dbStats says it.
// A database that is not there holds nothing.
func (s *Set) Size(ctx context.Context, db string) (int64, error) {
	r, err := run(ctx, s.admin(), db, bson.D{{Key: "dbStats", Value: 1}})
	if err != nil {
		return 0, s.wrap(err, "read the size of %s", db)
	}
	return lookup(r, "dataSize") + lookup(r, "indexSize"), nil
}
