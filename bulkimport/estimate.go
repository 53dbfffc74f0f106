package bulkimport

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
)

// Estimate is what the import of a collection would be like.
type Estimate struct {
	Documents Documents
	Bytes     Bytes
	Indexes   Bytes // of the source's
	Slices    int
	Order     Order
	Sampled   Documents
	Stored    Bytes         // in S3
	Store     time.Duration // to read, sort, compress: all of it, by the reads that run at once
}

// sampleDocuments is how many documents an estimate reads.
const sampleDocuments = 5_000

// Estimate reads the beginning of a collection as the import would, and works out
// what all of it takes. It changes nothing.
func (s Source) Estimate(ctx context.Context, c chunk.Collection, asked map[string]Order, limits Limits) (e Estimate, err error) {
	known, err := s.inspect(ctx, c.Name)
	if err != nil {
		return e, err
	}
	is, err := s.size(ctx, known)
	if err != nil {
		return e, err
	}
	limits = limits.withDefaults()
	e.Documents, e.Bytes = is.documents, is.bytes
	for _, n := range is.indexes {
		e.Indexes += n
	}
	per := limits.perSlice(is)
	e.Slices = max(1, int((is.documents+per-1)/per))
	e.Order = (&Importer{Sort: asked}).order(c, is)
	began := time.Now()
	docs, err := s.sample(ctx, known)
	if err != nil || len(docs) == 0 {
		return e, err
	}
	r, err := buildRun(Slice{Collection: c.Name}, e.Order, snapshot{docs: docs})
	if err != nil {
		return e, err
	}
	took := time.Since(began)
	e.Sampled = Documents(len(docs))
	share := float64(e.Documents) / float64(e.Sampled)
	e.Store = time.Duration(float64(took) * share / usualReaders)
	e.Stored = Bytes(float64(len(r.content)) * share)
	return e, nil
}

// sample reads the first documents by _id, as the first slice would.
func (s Source) sample(ctx context.Context, c collection) (docs []bson.Raw, err error) {
	cmd, _ := c.find(nil, nil)
	cmd = append(cmd, bson.E{Key: "limit", Value: sampleDocuments})
	cursor, err := s.Client.Database(s.Database).RunCommandCursor(ctx, cmd, options.RunCmd().SetReadPreference(s.preference()))
	if err != nil {
		return nil, fmt.Errorf("sample %s.%s: %w", s.Database, c.name, err)
	}
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, fmt.Errorf("sample %s.%s: %w", s.Database, c.name, err)
	}
	return docs, nil
}
