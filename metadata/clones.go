package metadata

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// CloneState is how far the making of a clone has come.
type CloneState string

// The states of a clone.
const (
	CloneLoading   CloneState = "loading"
	CloneReplaying CloneState = "replaying"
	CloneIndexing  CloneState = "indexing"
	CloneDone      CloneState = "done"
	CloneFailed    CloneState = "failed"  // its database is gone
	CloneDropped   CloneState = "dropped" // on an operator's word
)

// cloneSuccessors is the whole state machine of a clone.
var cloneSuccessors = map[CloneState][]CloneState{
	CloneLoading:   {CloneReplaying, CloneFailed},
	CloneReplaying: {CloneIndexing, CloneFailed},
	CloneIndexing:  {CloneDone, CloneFailed},
	CloneDone:      {CloneDropped},
	CloneFailed:    {},
	CloneDropped:   {},
}

// Open reports whether something is still read and written for the clone.
func (s CloneState) Open() bool {
	return s == CloneLoading || s == CloneReplaying || s == CloneIndexing
}

// Clone is a copy of a chunk as it was at some time, in a database of its own that
// no route leads to.
type Clone struct {
	ID          chunk.MigrationID `json:"id"`
	WorkflowID  string            `json:"workflowID"`
	Chunk       chunk.ID          `json:"chunk"`
	At          time.Time         `json:"at"`
	Base        chunk.MigrationID `json:"base"` // whose import it begins with
	KeepFrom    time.Time         `json:"keepFrom"`
	Shard       string            `json:"shard"`
	Database    string            `json:"database"`
	State       CloneState        `json:"state"`
	RequestedBy string            `json:"requestedBy,omitempty"`
	CreatedAt   time.Time         `json:"createdAt"`
}

// cloneSQL selects what scanClone reads.
const cloneSQL = `select id, workflow_id, chunk, at, base, keep_from, shard, database, state, requested_by, created_at from clones `

// scanClone reads a row of clones.
func scanClone(row pgx.CollectableRow) (c Clone, err error) {
	return c, row.Scan(&c.ID, &c.WorkflowID, &c.Chunk, &c.At, &c.Base, &c.KeepFrom, &c.Shard, &c.Database, &c.State, &c.RequestedBy, &c.CreatedAt)
}

// RegisterClone records a clone before anything of it is made; asked again by the
// same workflow it gives the one that is there. name gives its database.
func (s *Store) RegisterClone(ctx context.Context, c Clone, name func(chunk.MigrationID) string) (Clone, error) {
	const q = `insert into clones (workflow_id, chunk, at, base, keep_from, shard, requested_by) values ($1, $2, $3, $4, $5, $6, $7)
		on conflict (workflow_id) do nothing`
	if _, err := s.pool.Exec(ctx, q, c.WorkflowID, string(c.Chunk), c.At, int64(c.Base), c.KeepFrom, c.Shard, plainText(c.RequestedBy)); err != nil {
		return c, decode(err, "register a clone of %s", c.Chunk)
	}
	c, err := s.oneClone(ctx, `where workflow_id = $1`, c.WorkflowID)
	if err != nil || c.Database != "" {
		return c, err
	}
	c.Database = name(c.ID)
	_, err = s.pool.Exec(ctx, `update clones set database = $2 where id = $1 and database = ''`, int64(c.ID), c.Database)
	return c, decode(err, "name the database of clone %d", c.ID)
}

// Clone gives one clone.
func (s *Store) Clone(ctx context.Context, id chunk.MigrationID) (Clone, error) {
	return s.oneClone(ctx, `where id = $1`, int64(id))
}

// oneClone reads the clone that a condition names.
func (s *Store) oneClone(ctx context.Context, where string, arg any) (Clone, error) {
	rows, err := s.pool.Query(ctx, cloneSQL+where, arg)
	if err != nil {
		return Clone{}, decode(err, "read a clone")
	}
	c, err := pgx.CollectExactlyOneRow(rows, scanClone)
	if noRows(err) {
		return c, failure.New(failure.Invalid, "clone.unknown", "there is no clone %v", arg).WithHint("drover chunk clones lists them")
	}
	return c, decode(err, "read clone %v", arg)
}

// Clones gives every clone, newest first; open ones only where that is asked.
func (s *Store) Clones(ctx context.Context, open bool) ([]Clone, error) {
	rows, err := s.pool.Query(ctx, cloneSQL+`where not $1 or ended_at is null order by id desc`, open)
	if err != nil {
		return nil, decode(err, "list clones")
	}
	all, err := pgx.CollectRows(rows, scanClone)
	return all, decode(err, "list clones")
}

// SetCloneState takes a clone from one state to another; again is no error.
func (s *Store) SetCloneState(ctx context.Context, id chunk.MigrationID, from, to CloneState) error {
	allowed := false
	for _, next := range cloneSuccessors[from] {
		allowed = allowed || next == to
	}
	if !allowed {
		return failure.New(failure.Invalid, "clone.transition", "a clone cannot go from %s to %s", from, to)
	}
	tag, err := s.pool.Exec(ctx, `update clones set state = $3, ended_at = case when $4 then null else clock_timestamp() end
		where id = $1 and state in ($2, $3)`, int64(id), string(from), string(to), to.Open())
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Lost, "clone.moved_on", "clone %d is not %s", id, from)
	}
	return decode(err, "take clone %d from %s to %s", id, from, to)
}
