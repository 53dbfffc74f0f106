package metadata_test

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"drover/internal/failure"
	"drover/internal/testkit"
	"drover/metadata"
	"drover/metadata/metadatatest"
)

func TestStore(t *testing.T) {
	t.Parallel()

	metadatatest.Run(t, metadatatest.OpenDSN)
}

func TestOpenRefusesABadAddress(t *testing.T) {
	t.Parallel()

	_, err := metadata.Open(t.Context(), "postgres://host:notaport/x")
	require.True(t, failure.HasCode(err, "metadata.dsn"), "%v", err)
	_, err = metadata.Open(t.Context(), "postgres://nobody@127.0.0.1:1/x?sslmode=disable")
	require.Error(t, err)
	require.True(t, failure.Is(err, failure.Transient), "a server that is down may come back: %v", err)
}

// Workers start at the same time on an empty database: each step is applied once.
func TestMigrateManyAtOnce(t *testing.T) {
	t.Parallel()

	dsn := testkit.Postgres(t)
	const workers = 5
	done := make(chan error, workers)
	for range workers {
		go func() {
			s, err := metadata.Open(t.Context(), dsn)
			if err == nil {
				err = s.Migrate(t.Context())
				s.Close()
			}
			done <- err
		}()
	}
	for range workers {
		require.NoError(t, <-done)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	files, err := os.ReadDir("migrations")
	require.NoError(t, err)
	var n, newest int
	require.NoError(t, conn.QueryRow(t.Context(), `select count(*), max(version) from schema_versions`).Scan(&n, &newest))
	require.Equal(t, len(files), n)
	require.Equal(t, n, newest)
	var kept int // a step that replaces such a function has to set it again
	require.NoError(t, conn.QueryRow(t.Context(), `select count(*) from pg_proc where 'plan_cache_mode=force_generic_plan' = any (proconfig)
		and proname in ('publish_attempt', 'advance_attempt', 'settle_attempt')`).Scan(&kept))
	require.Equal(t, 3, kept, "the fence window plans its statements anew")
}

func TestMigrateRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()

	s, dsn := metadatatest.OpenDSN(t)
	require.NoError(t, s.Migrate(t.Context()), "again changes nothing")
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	_, err = conn.Exec(t.Context(), `insert into schema_versions (version, name, sum) values (999, '0999_later.sql', '')`)
	require.NoError(t, err)
	require.True(t, failure.HasCode(s.Migrate(t.Context()), "metadata.schema_newer"))
	_, err = conn.Exec(t.Context(), `delete from schema_versions where version = 999; update schema_versions set sum = 'edited' where version = 2`)
	require.NoError(t, err)
	require.True(t, failure.HasCode(s.Migrate(t.Context()), "metadata.schema_differs"))
}

func TestStoreWithoutSchemaSaysSo(t *testing.T) {
	t.Parallel()

	s, err := metadata.Open(t.Context(), testkit.Postgres(t))
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Shards(t.Context())
	require.True(t, failure.HasCode(err, "metadata.schema_missing"), "%v", err)
}
