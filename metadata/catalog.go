package metadata

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// LockCatalog waits until nobody else changes the collections of a database, and
// keeps others from it until unlock is called. A lock whose connection is lost is
// lost with it: the catalog's version still decides.
func (s *Store) LockCatalog(ctx context.Context, database string) (unlock func(), err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, decode(err, "lock catalog of %s", database)
	}
	const q = `select pg_advisory_lock(7305819, hashtext($1))`
	if _, err := conn.Exec(ctx, q, database); err != nil {
		conn.Release()
		return nil, decode(err, "lock catalog of %s", database)
	}
	return func() {
		// Not given back to the pool with the lock on it, whatever happens.
		if _, err := conn.Exec(context.WithoutCancel(ctx), `select pg_advisory_unlock(7305819, hashtext($1))`, database); err != nil {
			_ = conn.Conn().Close(context.WithoutCancel(ctx))
		}
		conn.Release()
	}, nil
}

// ChangeCatalog raises the catalog version of a database from the one given,
// writes the collections that DDL has changed, forgets those that it has dropped,
// and announces it. It gives the new version. Where another DDL was first it is
// lost: "catalog.changed"; while a chunk of the database is being moved it is
// refused: "catalog.moving".
func (s *Store) ChangeCatalog(ctx context.Context, database string, from int64, changed []chunk.Collection, dropped ...string) (int64, error) {
	return s.changeCatalog(ctx, database, from, func(tx pgx.Tx) error {
		const moving = `select c.id from migrations m join chunks c on c.id = m.chunk
			where c.database = $1 and m.phase not in ('done', 'aborted') limit 1`
		var id chunk.ID
		if err := tx.QueryRow(ctx, moving, database).Scan(&id); err == nil {
			return movingCatalog(database, id)
		} else if !noRows(err) {
			return err
		}
		if _, err := tx.Exec(ctx, `delete from collections where database = $1 and name = any($2)`, database, dropped); err != nil {
			return fmt.Errorf("forget collections: %w", err)
		}
		return insertCollections(ctx, tx, database, changed)
	})
}

// FollowCatalog is [Store.ChangeCatalog] for what the lanes of a move have
// followed: a chunk is being moved.
func (s *Store) FollowCatalog(ctx context.Context, database string, from int64, changed chunk.Collection) (int64, error) {
	return s.changeCatalog(ctx, database, from, func(tx pgx.Tx) error {
		return insertCollections(ctx, tx, database, []chunk.Collection{changed})
	})
}

// changeCatalog does a change in the transaction that raises the version and
// announces it.
func (s *Store) changeCatalog(ctx context.Context, database string, from int64, change func(pgx.Tx) error) (int64, error) {
	var version int64
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		const q = `update databases set catalog_version = catalog_version + 1
			where name = $1 and catalog_version = $2 returning catalog_version`
		err := tx.QueryRow(ctx, q, database, from).Scan(&version)
		if noRows(err) {
			db, _, err := readDatabase(ctx, tx, database)
			if err != nil {
				return err
			}
			return failure.New(failure.Lost, "catalog.changed", "catalog version of %s is %d, not %d", database, db.CatalogVersion, from)
		}
		if err != nil {
			return err
		}
		if err := change(tx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `select pg_notify('drover_routes', json_build_object('database', $1::text, 'chunk', '', 'token', 0)::text)`, database)
		return err
	})
	return version, decode(err, "change catalog of %s", database)
}

// movingCatalog is the failure of a DDL that must wait for a move.
func movingCatalog(database string, id chunk.ID) error {
	return failure.New(failure.Invalid, "catalog.moving", "chunk %s of database %s is being moved", id, database).
		WithHint("its collections cannot change before the move is done, burn-in included; `drover migrate list --unfinished` shows what is being moved")
}

// CheckCatalogStill refuses DDL of a database while a chunk of it is being moved:
// "catalog.moving".
func (s *Store) CheckCatalogStill(ctx context.Context, database string) error {
	open, err := s.Migrations(ctx, MigrationFilter{Database: database, Unfinished: true, Limit: 1})
	if err != nil {
		return err
	}
	if len(open) > 0 {
		return movingCatalog(database, open[0].Chunk.ID)
	}
	return nil
}
