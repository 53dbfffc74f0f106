package metadata

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/jackc/pgx/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
)

// NewChunk is one chunk of a database that is being created.
type NewChunk struct {
	Range chunk.Range
	Shard string
	Own   string // name of the database that is adopted; "" makes one of Drover's naming
}

// databaseName is what a logical database may be called: with the chunk's number
// and the placement's id behind it, it must fit MongoDB's 63 bytes.
var databaseName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,37}$`)

// reservedNames cannot be logical databases.
var reservedNames = []string{"admin", "local", "config", chunk.SystemDatabase}

// CreateDatabase gives a database its chunks, placements and routes. Nobody is
// routed there before [Store.Activate]: the caller provisions the shards between
// the two. Asking again for the same database, before it is active, gives the
// same routes, so that a creation that died is taken up where it was.
//
// Refusals: "database.name", "database.ranges", "database.collections",
// "shard.unknown", "database.exists" (active), "database.differs" (being created
// otherwise).
func (s *Store) CreateDatabase(ctx context.Context, db chunk.Database, chunks []NewChunk) ([]chunk.Route, error) {
	if err := checkDatabase(db, chunks); err != nil {
		return nil, err
	}
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		const q = `insert into databases (name, key_space) values ($1, $2) on conflict (name) do nothing`
		tag, err := tx.Exec(ctx, q, db.Name, string(db.KeySpace))
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return s.sameDatabase(ctx, tx, db, chunks)
		}
		if err := insertCollections(ctx, tx, db.Name, db.Collections); err != nil {
			return err
		}
		return insertChunks(ctx, tx, db.Name, chunks)
	})
	if err != nil {
		return nil, decode(err, "create database %s", db.Name)
	}
	return s.routesOf(ctx, s.pool, db.Name)
}

// checkDatabase refuses what no retry can make right, before anything is written.
func checkDatabase(db chunk.Database, chunks []NewChunk) error {
	if !databaseName.MatchString(db.Name) || slices.Contains(reservedNames, db.Name) {
		return failure.New(failure.Invalid, "database.name", "%q cannot be the name of a logical database", db.Name).
			WithHint("use at most 38 letters, digits, '-' and '_', beginning with a letter; admin, local, config and %s are taken", chunk.SystemDatabase)
	}
	if db.KeySpace != chunk.Hashed && db.KeySpace != chunk.Ranged {
		return failure.New(failure.Invalid, "database.key_space", "key space %q is neither hashed nor range", db.KeySpace)
	}
	if len(db.Collections) == 0 {
		return failure.New(failure.Invalid, "database.collections", "database %s has no collections", db.Name)
	}
	names := map[string]bool{}
	for _, c := range db.Collections {
		if c.Name == "" || c.ShardKey == "" || names[c.Name] || plainText(c.Name) != c.Name {
			return failure.New(failure.Invalid, "database.collections", "collection %q of database %s is unnamed, named twice or without a shard key", c.Name, db.Name)
		}
		if err := chunk.CheckShardKey(c.ShardKey); err != nil {
			return failure.New(failure.Invalid, "database.collections", "collection %s of database %s: %w", c.Name, db.Name, err)
		}
		names[c.Name] = true
	}
	at := chunk.KeyMin
	for i, c := range chunks {
		if c.Range.Lo != at || c.Range.Hi <= c.Range.Lo {
			return failure.New(failure.Invalid, "database.ranges", "chunk %d of database %s begins at %q and not at %q, or is empty", i+1, db.Name, c.Range.Lo, at)
		}
		at = c.Range.Hi
	}
	if at != chunk.KeyMax {
		return failure.New(failure.Invalid, "database.ranges", "the chunks of database %s end at %q: they do not cover the key space", db.Name, at)
	}
	return nil
}

// insertCollections writes collections, replacing those of the same name.
func insertCollections(ctx context.Context, tx pgx.Tx, db string, all []chunk.Collection) error {
	const q = `insert into collections (database, name, shard_key, options, indexes) values ($1, $2, $3, $4, $5)
		on conflict (database, name) do update set
			shard_key = excluded.shard_key, options = excluded.options, indexes = excluded.indexes`
	for _, c := range all {
		indexes := make([][]byte, 0, len(c.Indexes))
		for _, ix := range c.Indexes {
			indexes = append(indexes, ix)
		}
		if _, err := tx.Exec(ctx, q, db, c.Name, c.ShardKey, []byte(c.Options), indexes); err != nil {
			return fmt.Errorf("collection %s: %w", c.Name, err)
		}
	}
	return nil
}

// insertChunks writes chunks with their first placements and routes.
func insertChunks(ctx context.Context, tx pgx.Tx, db string, chunks []NewChunk) error {
	const q = `with c as (
			insert into chunks (id, database, lo, hi) values ($1, $2, $3, $4) returning id
		), p as (
			insert into placements (chunk, shard, state, database) select c.id, $5, 'live', nullif($6, '') from c returning id, chunk
		) select p.id from p`
	for i, c := range chunks {
		id := chunk.NewID(db, i+1)
		var p chunk.PlacementID
		if err := tx.QueryRow(ctx, q, id, db, []byte(c.Range.Lo), []byte(c.Range.Hi), c.Shard, c.Own).Scan(&p); err != nil {
			return fmt.Errorf("chunk %s on shard %s: %w", id, c.Shard, err)
		}
		if _, err := tx.Exec(ctx, `insert into routes (chunk, placement, token) values ($1, $2, next_token())`, id, p); err != nil {
			return fmt.Errorf("route of chunk %s: %w", id, err)
		}
	}
	return nil
}

// sameDatabase lets a retry adopt what an earlier call has written, and refuses
// everything else.
func (s *Store) sameDatabase(ctx context.Context, tx pgx.Tx, db chunk.Database, chunks []NewChunk) error {
	have, active, err := readDatabase(ctx, tx, db.Name)
	if err != nil {
		return err
	}
	if active {
		return failure.New(failure.Invalid, "database.exists", "database %s exists", db.Name)
	}
	routes, err := s.routesOf(ctx, tx, db.Name)
	if err != nil {
		return err
	}
	same := have.KeySpace == db.KeySpace && len(have.Collections) == len(db.Collections) && len(routes) == len(chunks)
	if same {
		same = sameCollections(have.Collections, db.Collections)
	}
	for i := 0; same && i < len(chunks); i++ {
		same = routes[i].Chunk.Range == chunks[i].Range && routes[i].Placement.Shard == chunks[i].Shard && routes[i].Placement.OwnName() == chunks[i].Own
	}
	if !same {
		return failure.New(failure.Invalid, "database.differs", "database %s is being created with other collections, chunks or shards", db.Name).
			WithHint("repeat the first request to its end, or take another name")
	}
	return nil
}

// sameCollections compares by name, whatever the order.
func sameCollections(a, b []chunk.Collection) bool {
	byName := map[string]chunk.Collection{}
	for _, c := range a {
		byName[c.Name] = c
	}
	for _, c := range b {
		o, ok := byName[c.Name]
		if !ok || o.ShardKey != c.ShardKey || !bytes.Equal(o.Options, c.Options) {
			return false
		}
		if !slices.EqualFunc(o.Indexes, c.Indexes, func(x, y bson.Raw) bool { return bytes.Equal(x, y) }) {
			return false
		}
	}
	return true
}

// Activate shows a database to the proxies, once all its placements are
// provisioned. Activating an active one does nothing.
func (s *Store) Activate(ctx context.Context, name string) error {
	const q = `with d as (
			update databases set active = true where name = $1 and not active returning name
		) select exists (select from databases where name = $1),
			(select pg_notify('drover_routes', json_build_object('database', d.name, 'chunk', '', 'token', 0)::text) is null from d)`
	var known bool
	var told *bool
	if err := s.pool.QueryRow(ctx, q, name).Scan(&known, &told); err != nil {
		return decode(err, "activate database %s", name)
	}
	if !known {
		return unknownDatabase(name)
	}
	return nil
}

// ForgetDatabase removes a database that never became active, after the caller
// has removed what was provisioned. An active one is refused.
func (s *Store) ForgetDatabase(ctx context.Context, name string) error {
	const q = `with gone as (delete from databases where name = $1 and not active returning name)
		select exists (select from databases where name = $1), exists (select from gone)`
	var known, removed bool
	if err := s.pool.QueryRow(ctx, q, name).Scan(&known, &removed); err != nil {
		return decode(err, "forget database %s", name)
	}
	if known && !removed {
		return failure.New(failure.Invalid, "database.exists", "database %s is in use", name)
	}
	return nil
}

// Database gives one database, active or not, or "database.unknown".
func (s *Store) Database(ctx context.Context, name string) (chunk.Database, error) {
	db, _, err := readDatabase(ctx, s.pool, name)
	return db, decode(err, "read database %s", name)
}

// Databases gives the active databases by name.
func (s *Store) Databases(ctx context.Context) ([]chunk.Database, error) {
	return s.listDatabases(ctx, true)
}

// PendingDatabases gives the databases whose creation was never finished.
func (s *Store) PendingDatabases(ctx context.Context) ([]chunk.Database, error) {
	return s.listDatabases(ctx, false)
}

// listDatabases reads databases with their collections.
func (s *Store) listDatabases(ctx context.Context, active bool) ([]chunk.Database, error) {
	rows, err := s.pool.Query(ctx, `select name, key_space, catalog_version from databases where active = $1 order by name`, active)
	if err != nil {
		return nil, decode(err, "list databases")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (db chunk.Database, err error) {
		return db, row.Scan(&db.Name, &db.KeySpace, &db.CatalogVersion)
	})
	if err != nil {
		return nil, decode(err, "list databases")
	}
	for i := range all {
		if all[i].Collections, err = readCollections(ctx, s.pool, all[i].Name); err != nil {
			return nil, decode(err, "list databases")
		}
	}
	return all, nil
}

// Collections gives the collections of a database by name.
func (s *Store) Collections(ctx context.Context, database string) ([]chunk.Collection, error) {
	all, err := readCollections(ctx, s.pool, database)
	return all, decode(err, "list collections of %s", database)
}

// unknownDatabase is the failure of a name that nobody has.
func unknownDatabase(name string) error {
	return failure.New(failure.Invalid, "database.unknown", "there is no database %s", name).
		WithHint("`drover db list` shows the databases")
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readDatabase reads one database with its collections.
func readDatabase(ctx context.Context, q querier, name string) (db chunk.Database, active bool, err error) {
	const sql = `select name, key_space, catalog_version, active from databases where name = $1`
	err = q.QueryRow(ctx, sql, name).Scan(&db.Name, &db.KeySpace, &db.CatalogVersion, &active)
	if noRows(err) {
		return db, false, unknownDatabase(name)
	}
	if err != nil {
		return db, false, err
	}
	db.Collections, err = readCollections(ctx, q, name)
	return db, active, err
}

// readCollections reads the collections of a database by name.
func readCollections(ctx context.Context, q querier, database string) ([]chunk.Collection, error) {
	rows, err := q.Query(ctx, `select name, shard_key, options, indexes from collections where database = $1 order by name`, database)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c chunk.Collection, err error) {
		var options []byte
		var indexes [][]byte
		if err := row.Scan(&c.Name, &c.ShardKey, &options, &indexes); err != nil {
			return c, err
		}
		c.Options = options
		for _, ix := range indexes {
			c.Indexes = append(c.Indexes, ix)
		}
		return c, nil
	})
}
