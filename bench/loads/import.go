package loads

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/bulkimport"
	"drover/bulkimport/bulkimporttest"
	"drover/chunk"
)

// Imported is what one import came to.
type Imported struct {
	Order bulkimport.Order
	Store time.Duration
	Load  *Meter
	Whole float64 // documents per second, from the first read to the last insert
}

// ImportOnce copies the collection from one shard to another, as a move does, without
// giving way to anybody.
func ImportOnce(ctx context.Context, bucket bulkimport.Bucket, id int, from, to *mongo.Client, indexes []bson.D, limit time.Duration) (r Imported, err error) {
	c, err := Catalog(indexes)
	if err != nil {
		return r, err
	}
	start, err := Mark(ctx, from)
	if err != nil {
		return r, err
	}
	r.Load = &Meter{}
	done := 0.0
	imp := &bulkimport.Importer{
		Migration: chunk.MigrationID(id), Bucket: bucket, Slices: &bulkimporttest.Memory{},
		Source: bulkimport.Source{Client: from, Database: SourceDB, Start: start},
		Target: bulkimport.Target{Client: to, Database: TargetDB(id), KeepsEmptyTimestamps: true},
		Progress: func(_ context.Context, p bulkimport.Progress) {
			if p.Stage == bulkimport.Loading {
				r.Load.Note(time.Now(), float64(p.Documents))
			}
			done = float64(p.Documents)
		},
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = imp.Store(ctx, c)
	r.Store = time.Since(began)
	if err != nil && ctx.Err() == nil {
		return r, err
	}
	if err != nil {
		return r, fmt.Errorf("nothing could be loaded within %s: %w", limit, err)
	}
	res, err := imp.Load(ctx, Collection)
	if err != nil && ctx.Err() == nil {
		return r, err
	}
	r.Order = res.Orders[Collection]
	r.Whole = done / time.Since(began).Seconds()
	return r, nil
}

// TargetDB is where an import goes.
func TargetDB(id int) string { return fmt.Sprintf("bench_%04d_p2", id) }
