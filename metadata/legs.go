package metadata

import (
	"context"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// NewRange is one chunk that a split or merge makes: its range, and the shard it
// comes to.
type NewRange struct {
	Range chunk.Range
	Shard string
}

// ReshapeRequest asks for chunks that lie side by side to be replaced by others
// that hold the same keys.
type ReshapeRequest struct {
	Chunks      []chunk.ID
	Targets     []NewRange // in the order of the key space
	WorkflowID  string
	RequestedBy string
}

// RegisterReshape claims the chunks, plans the new ones with their placements,
// and gives the leg that leads; see [Store.Legs] for all of them. The new chunks
// get a part in the key space with the publish, and the old ones lose theirs with
// it. The same workflow asking again is given the same migration.
//
// Refusals: those of [Store.RegisterMigration] but for "migration.same_shard",
// and "migration.not_contiguous", "migration.not_covered".
func (s *Store) RegisterReshape(ctx context.Context, r ReshapeRequest) (Migration, error) {
	ids := make([]string, 0, len(r.Chunks))
	for _, id := range r.Chunks {
		ids = append(ids, string(id))
	}
	var los, his [][]byte
	var shards []string
	for _, t := range r.Targets {
		los, his, shards = append(los, []byte(t.Range.Lo)), append(his, []byte(t.Range.Hi)), append(shards, t.Shard)
	}
	var id chunk.MigrationID
	const q = `select register_reshape($1, $2, $3, $4, $5, $6)`
	err := s.pool.QueryRow(ctx, q, ids, los, his, shards, r.WorkflowID, plainText(r.RequestedBy)).Scan(&id)
	if err != nil {
		return Migration{}, decode(err, "register the reshaping of %v", r.Chunks)
	}
	return s.Migration(ctx, id)
}

// Legs gives every leg of the migration that a leg is of, the one that leads first.
func (s *Store) Legs(ctx context.Context, id chunk.MigrationID) ([]Migration, error) {
	rows, err := s.pool.Query(ctx, migrationSQL+`where m.lead = (select x.lead from migrations x where x.id = $1) order by m.id`, int64(id))
	if err != nil {
		return nil, decode(err, "read legs of migration %d", id)
	}
	all, err := pgx.CollectRows(rows, scanMigration)
	return all, decode(err, "read legs of migration %d", id)
}
