package metadata

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
)

// SliceState is the durable state of one slice of an import.
type SliceState string

// The states of a slice.
const (
	SlicePlanned SliceState = "planned"
	SliceStored  SliceState = "stored" // its object is complete
	SliceLoaded  SliceState = "loaded" // its object is on the target
)

// sliceSuccessors is the whole state machine of a slice. A slice that is read
// anew goes back to planned.
var sliceSuccessors = map[SliceState][]SliceState{
	SlicePlanned: {SliceStored},
	SliceStored:  {SliceLoaded, SlicePlanned},
	SliceLoaded:  {SlicePlanned},
}

// CanBecome reports whether a slice may go from s to q.
func (s SliceState) CanBecome(q SliceState) bool { return slices.Contains(sliceSuccessors[s], q) }

// Slice is a range of _id of one collection. Lo is in it and Hi is not; both are
// documents {_id: value}, nil where the range is open.
type Slice struct {
	Migration  chunk.MigrationID
	Collection string
	No         int
	Lo, Hi     bson.Raw
	State      SliceState
	TLo, THi   bson.Timestamp // window around the snapshot
	Docs       int64
	Bytes      int64
	Hash       []byte
	ObjectKey  string
	Manifest   json.RawMessage
}

// sliceColumns are what scanSlice reads.
const sliceColumns = `migration, collection, no, lo, hi, state, t_lo_sec, t_lo_inc, t_hi_sec, t_hi_inc, docs, bytes, hash, object_key, manifest`

// scanSlice reads sliceColumns.
func scanSlice(row pgx.CollectableRow) (s Slice, err error) {
	var lo, hi, manifest []byte
	err = row.Scan(&s.Migration, &s.Collection, &s.No, &lo, &hi, &s.State, &s.TLo.T, &s.TLo.I, &s.THi.T, &s.THi.I,
		&s.Docs, &s.Bytes, &s.Hash, &s.ObjectKey, &manifest)
	s.Lo, s.Hi, s.Manifest = lo, hi, manifest
	return s, err
}

// PlanSlices keeps the plan of one collection's import and gives it back. A plan
// that is there already stands: the caller's is not kept, and the one that is
// given back is the one to follow.
func (s *Store) PlanSlices(ctx context.Context, id chunk.MigrationID, collection string, plan []Slice) ([]Slice, error) {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		// One planner at a time, so that two plans never mix.
		if _, err := tx.Exec(ctx, `select from migrations where id = $1 for no key update`, int64(id)); err != nil {
			return err
		}
		var planned bool
		const there = `select exists (select from slices where migration = $1 and collection = $2)`
		if err := tx.QueryRow(ctx, there, int64(id), collection).Scan(&planned); err != nil || planned {
			return err
		}
		const q = `insert into slices (migration, collection, no, lo, hi) values ($1, $2, $3, $4, $5)`
		b := &pgx.Batch{}
		for no, sl := range plan {
			b.Queue(q, int64(id), collection, no, []byte(sl.Lo), []byte(sl.Hi))
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, decode(err, "plan slices of %s in migration %d", collection, id)
	}
	return s.slicesWhere(ctx, `migration = $1 and collection = $2`, int64(id), collection)
}

// Slices gives the slices of a migration by collection and number.
func (s *Store) Slices(ctx context.Context, id chunk.MigrationID) ([]Slice, error) {
	return s.slicesWhere(ctx, `migration = $1`, int64(id))
}

// slicesWhere reads the slices that a condition names.
func (s *Store) slicesWhere(ctx context.Context, where string, args ...any) ([]Slice, error) {
	rows, err := s.pool.Query(ctx, `select `+sliceColumns+` from slices where `+where+` order by collection, no`, args...)
	if err != nil {
		return nil, decode(err, "read slices")
	}
	all, err := pgx.CollectRows(rows, scanSlice)
	return all, decode(err, "read slices")
}

// StoreSlice records that a planned slice's object is complete, with what the
// object holds. A slice that was larger than planned ends at sl.Hi, and rest,
// when not nil, is planned with the next number. It is lost ("slice.is_<state>")
// where another was first: its object is the one to load.
func (s *Store) StoreSlice(ctx context.Context, sl Slice, rest *Slice) error {
	const q = `update slices set state = 'stored', t_lo_sec = $4, t_lo_inc = $5, t_hi_sec = $6, t_hi_inc = $7,
			docs = $8, bytes = $9, hash = $10, object_key = $11, manifest = $12, hi = $13
		where migration = $1 and collection = $2 and no = $3 and state = 'planned'`
	const more = `insert into slices (migration, collection, no, lo, hi)
		select $1, $2, max(no) + 1, $3, $4 from slices where migration = $1 and collection = $2`
	var stored bool
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		// One at a time, so that two slices that are cut get different numbers.
		if _, err := tx.Exec(ctx, `select from migrations where id = $1 for no key update`, int64(sl.Migration)); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, q, int64(sl.Migration), sl.Collection, sl.No,
			int64(sl.TLo.T), int64(sl.TLo.I), int64(sl.THi.T), int64(sl.THi.I),
			sl.Docs, sl.Bytes, sl.Hash, sl.ObjectKey, orEmptyJSON(sl.Manifest), []byte(sl.Hi))
		if err != nil {
			return err
		}
		stored = tag.RowsAffected() == 1
		if !stored || rest == nil {
			return nil
		}
		_, err = tx.Exec(ctx, more, int64(sl.Migration), sl.Collection, []byte(rest.Lo), []byte(rest.Hi))
		return err
	})
	if err != nil {
		return decode(err, "store %s", sl.name())
	}
	if stored {
		return nil
	}
	return s.sliceLost(ctx, sl, SlicePlanned)
}

// LoadSlices records that all slices of a collection are on the target. It is
// refused ("slice.planned") while one is planned, and does nothing the second time.
func (s *Store) LoadSlices(ctx context.Context, id chunk.MigrationID, collection string) error {
	const q = `update slices set state = 'loaded' where migration = $1 and collection = $2 and state = 'stored'
		and not exists (select from slices where migration = $1 and collection = $2 and state = 'planned')`
	if _, err := s.pool.Exec(ctx, q, int64(id), collection); err != nil {
		return decode(err, "load slices of %s", collection)
	}
	left, err := s.slicesWhere(ctx, `migration = $1 and collection = $2 and state <> 'loaded'`, int64(id), collection)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return failure.New(failure.Invalid, "slice.planned", "%s is %s: the collection is not loaded", left[0].name(), left[0].State)
	}
	return nil
}

// SetSliceState moves a slice from one state to another: stored to loaded, or
// back to planned to be read anew. It is lost ("slice.is_<state>") where another
// state is found.
func (s *Store) SetSliceState(ctx context.Context, sl Slice, from, to SliceState) error {
	if !from.CanBecome(to) {
		return failure.New(failure.Invalid, "slice.transition", "%s cannot go from %s to %s", sl.name(), from, to)
	}
	const q = `update slices set state = $5 where migration = $1 and collection = $2 and no = $3 and state = $4`
	tag, err := s.pool.Exec(ctx, q, int64(sl.Migration), sl.Collection, sl.No, string(from), string(to))
	if err != nil {
		return decode(err, "set %s to %s", sl.name(), to)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	return s.sliceLost(ctx, sl, from)
}

// name says which slice it is.
func (sl Slice) name() string {
	return fmt.Sprintf("slice %s/%d of migration %d", sl.Collection, sl.No, sl.Migration)
}

// sliceLost is the failure of a compare-and-set of a slice.
func (s *Store) sliceLost(ctx context.Context, sl Slice, from SliceState) error {
	found, err := s.slicesWhere(ctx, `migration = $1 and collection = $2 and no = $3`, int64(sl.Migration), sl.Collection, sl.No)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return failure.New(failure.Invalid, "slice.unknown", "there is no %s", sl.name())
	}
	return lostTo("slice", string(found[0].State), "%s is %s, not %s", sl.name(), found[0].State, from)
}
