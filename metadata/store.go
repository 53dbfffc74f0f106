package metadata

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"drover/internal/failure"
)

// Store is the chunk metadata of one fleet. It is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
}

// Sizes of the pool, unless the address says pool_max_conns or pool_min_conns:
// enough that bulk work never keeps the fence window waiting for a connection,
// and some always open, because a connect would take longer than a publish.
const (
	defaultMaxConns = 10
	defaultMinConns = 2
)

// connectTimeout bounds one try to connect, so that a server that drops packets
// does not hold up a watchdog.
const connectTimeout = 5 * time.Second

// Open connects to the database that dsn names (a URL or a list of settings as
// libpq takes them). It changes nothing there: see [Store.Migrate].
func Open(ctx context.Context, dsn string) (*Store, error) {
	s, err := OpenLazily(ctx, dsn)
	if err != nil {
		return nil, err
	}
	if err := s.Ping(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// OpenLazily is [Open] for who can begin without the metadata: it connects when
// it is first used.
func OpenLazily(ctx context.Context, dsn string) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, failure.New(failure.Invalid, "metadata.dsn", "read the address of the metadata: %w", err).
			WithHint("give a Postgres URL such as postgres://user:password@host:5432/drover")
	}
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	if _, ok := cfg.ConnConfig.RuntimeParams["application_name"]; !ok {
		cfg.ConnConfig.RuntimeParams["application_name"] = "drover"
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		cfg.MaxConns = defaultMaxConns
	}
	if !strings.Contains(dsn, "pool_min_conns") {
		cfg.MinConns = defaultMinConns
	}
	cfg.AfterConnect = prepareConnection
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open metadata: %w", err)
	}
	return &Store{pool: pool}, nil
}

// Close waits until every connection is given back and closes them.
func (s *Store) Close() { s.pool.Close() }

// Ping asks the server for an answer.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("reach metadata: %w", err)
	}
	return nil
}

// CheckWritable writes to the metadata and takes it back: a gate's proof that a
// publish could be made now. A server in recovery or with a full disk fails it.
func (s *Store) CheckWritable(ctx context.Context) error {
	const q = `update schema_versions set checked_at = clock_timestamp() where version = 1`
	tag, err := s.pool.Exec(ctx, q)
	if err != nil {
		return decode(err, "write to metadata")
	}
	if tag.RowsAffected() != 1 {
		return failure.New(failure.Invalid, "metadata.schema_missing", "the metadata has no schema").
			WithHint("run `drover dev up`, or start a worker: it applies the schema")
	}
	return nil
}

// hotStatements are prepared on every new connection, because the first use of
// a statement would cost the fence window a second round trip.
var hotStatements = []string{
	advanceAttemptSQL, publishSQL, settleSQL, attemptSQL, latestAttemptSQL, openAttemptsSQL, routeSQL, ackSQL,
	passAttemptSQL, lockGrantsSQL, unlockGrantsSQL,
}

// unflushed, in the FROM of a statement that is a transaction of its own, has the
// commit answered before it is on disk: for what is not missed when a crash forgets it.
const unflushed = `set_config('synchronous_commit', 'off', true)`

// prepareConnection makes a new connection of the pool ready.
func prepareConnection(ctx context.Context, conn *pgx.Conn) error {
	// Whatever the server's defaults are: an acknowledged commit must be on disk,
	// for a forgotten publish would open two placements (stronger settings are
	// kept); the schema's functions look again after each lock, which needs read
	// committed; and a process that died in a transaction must not go on holding
	// its locks.
	const settings = `select set_config('default_transaction_isolation', 'read committed', false),
		set_config('idle_in_transaction_session_timeout', '10s', false),
		case when current_setting('synchronous_commit') in ('off', 'local') then set_config('synchronous_commit', 'on', false) end`
	if _, err := conn.Exec(ctx, settings); err != nil {
		return fmt.Errorf("set up connection: %w", err)
	}
	for _, q := range hotStatements {
		_, err := conn.Prepare(ctx, q, q)
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == undefinedTable || e.Code == undefinedFunction) {
			return nil // before the first Migrate
		}
		if err != nil {
			return fmt.Errorf("prepare %q: %w", q, err)
		}
	}
	return nil
}

// inTx runs fn in one transaction.
func (s *Store) inTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, fn)
}

// keyed reads two columns into a map; what says for an error what is read.
func keyed[K comparable, V any](ctx context.Context, s *Store, what, q string, args ...any) (map[K]V, error) {
	rows, err := s.pool.Query(ctx, q, args...)
	if err != nil {
		return nil, decode(err, "%s", what)
	}
	out := map[K]V{}
	var key K
	var value V
	_, err = pgx.ForEachRow(rows, []any{&key, &value}, func() error {
		out[key] = value // pgx reads each into memory of its own
		return nil
	})
	return out, decode(err, "%s", what)
}

// Now gives the time by Postgres' clock.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var t time.Time
	if err := s.pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&t); err != nil {
		return t, decode(err, "ask metadata for the time")
	}
	return t, nil
}

// Durability is what the server says about how safe an acknowledged commit is.
type Durability struct {
	Replicas          int    // that stream from this server now
	SynchronousNames  string // synchronous_standby_names
	SynchronousCommit string // of Drover's connections
	Fsync             bool
	// Warning is empty when nothing speaks against relying on the server: else
	// a failover or a crash may forget a publish, which would open two placements.
	Warning string
}

// SynchronousStandby tells whether the metadata may be relied on over a failover.
func (s *Store) SynchronousStandby(ctx context.Context) (Durability, error) {
	const q = `select (select count(*) from pg_stat_replication), current_setting('synchronous_standby_names'),
		current_setting('synchronous_commit'), current_setting('fsync') = 'on'`
	var d Durability
	if err := s.pool.QueryRow(ctx, q).Scan(&d.Replicas, &d.SynchronousNames, &d.SynchronousCommit, &d.Fsync); err != nil {
		return d, decode(err, "ask metadata for its replicas")
	}
	switch {
	case !d.Fsync:
		d.Warning = "fsync is off: a crash of the metadata server may forget a publish"
	case d.Replicas > 0 && d.SynchronousNames == "":
		d.Warning = fmt.Sprintf("the metadata server has %d replicas but synchronous_standby_names is empty: a failover may forget a publish", d.Replicas)
	}
	return d, nil
}
