// Package metadatatest checks that a [metadata.Store] keeps its promises, and
// gives other packages' tests an empty one.
package metadatatest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/testkit"
	"drover/metadata"
)

// patience bounds every wait for an event; no test depends on how long one takes.
const patience = time.Minute

// Open gives an empty store on the stack's Postgres, closed after the test.
func Open(t testing.TB) *metadata.Store {
	t.Helper()
	s, _ := OpenDSN(t)
	return s
}

// OpenDSN is Open that also tells where the store is.
func OpenDSN(t testing.TB) (*metadata.Store, string) {
	t.Helper()
	dsn := testkit.Postgres(t)
	s, err := metadata.Open(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.NoError(t, s.Migrate(t.Context()))
	return s, dsn
}

// Run checks the stores that open returns; each call must give an empty one and
// tell its DSN, so that a test can also do what no method would.
func Run(t *testing.T, open func(testing.TB) (*metadata.Store, string)) {
	t.Helper()

	for name, cases := range map[string]map[string]func(*testing.T, *fleet){
		"Databases": databaseCases,
		"Adoption":  adoptionCases,
		"Removal":   removalCases,
		"Overrides": overrideCases,
		"Moves":     moveCases,
		"Attempts":  attemptCases,
		"Publish":   publishCases,
		"Reshape":   reshapeCases,
		"Leases":    leaseCases,
		"Work":      workCases,
		"Gate":      gateCases,
		"Intents":   intentCases,
		"Pressure":  pressureCases,
		"Listening": listenCases,
		"Control":   controlCases,
		"Settings":  settingsCases,
		"Remedy":    remediationCases,
		"Figures":   figureCases,
		"Admission": admissionCases,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, check := range cases {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					check(t, newFleet(t, open))
				})
			}
		})
	}
}

// fleet is a store with three shards and an active database of four chunks:
// 1 and 3 on shard a, 2 and 4 on shard b.
type fleet struct {
	*metadata.Store
	dsn string
	raw *pgxpool.Pool // for what only an operator with psql would try
}

// newFleet fills an empty store.
func newFleet(t *testing.T, open func(testing.TB) (*metadata.Store, string)) *fleet {
	t.Helper()
	s, dsn := open(t)
	raw, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(raw.Close)
	f := &fleet{Store: s, dsn: dsn, raw: raw}
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, s.AddShard(t.Context(), chunk.Shard{Name: name, URI: "mongodb://" + name}))
	}
	_, err = s.CreateDatabase(t.Context(), flights, fourChunks)
	require.NoError(t, err)
	require.NoError(t, s.Activate(t.Context(), flights.Name))
	return f
}

// The database of a fleet.
var (
	flights = chunk.Database{
		Name: "flights", KeySpace: chunk.Hashed,
		Collections: []chunk.Collection{{Name: "legs", ShardKey: "origin"}, {Name: "airports", ShardKey: "_id"}},
	}
	fourChunks = []metadata.NewChunk{
		{Range: chunk.Range{Lo: chunk.KeyMin, Hi: "\x40"}, Shard: "a"},
		{Range: chunk.Range{Lo: "\x40", Hi: "\x80"}, Shard: "b"},
		{Range: chunk.Range{Lo: "\x80", Hi: "\xc0"}, Shard: "a"},
		{Range: chunk.Range{Lo: "\xc0", Hi: chunk.KeyMax}, Shard: "b"},
	}
)

// first is the chunk that most tests move, from shard a to shard c.
const first = chunk.ID("flights/0001")

// exec runs a statement as an operator would.
func (f *fleet) exec(t *testing.T, sql string, args ...any) error {
	t.Helper()
	_, err := f.raw.Exec(t.Context(), sql, args...)
	return err
}

// register begins a migration of the first chunk to shard c.
func (f *fleet) register(t *testing.T) metadata.Migration {
	t.Helper()
	m, err := f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: first, Target: "c", WorkflowID: "migrate/" + string(first)})
	require.NoError(t, err)
	return m
}

// switching brings a new migration to the point where it may switch.
func (f *fleet) switching(t *testing.T) metadata.Migration {
	t.Helper()
	m := f.register(t)
	f.walk(t, m.ID, chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating, chunk.Switching)
	require.NoError(t, f.SetPlacementState(t.Context(), m.Target.ID, chunk.Loading, chunk.Mirror))
	m, err := f.Migration(t.Context(), m.ID)
	require.NoError(t, err)
	return m
}

// walk takes a migration through phases.
func (f *fleet) walk(t *testing.T, id chunk.MigrationID, phases ...chunk.Phase) {
	t.Helper()
	for i := range len(phases) - 1 {
		require.NoError(t, f.SetPhase(t.Context(), id, phases[i], phases[i+1]))
	}
}

// closing opens an attempt with leases and takes it to the door of the publish.
func (f *fleet) closing(t *testing.T, m metadata.Migration) metadata.PublishRequest {
	t.Helper()
	r := f.preparing(t, m)
	f.advance(t, r.Attempt, chunk.Preparing, chunk.Fencing, time.Minute)
	f.advance(t, r.Attempt, chunk.Fencing, chunk.Closing, 0)
	return r
}

// preparing begins an attempt with its leases, and gives what its publish checks.
func (f *fleet) preparing(t *testing.T, m metadata.Migration) metadata.PublishRequest {
	t.Helper()
	latest, err := f.LatestAttempt(t.Context(), m.Chunk.ID)
	require.NoError(t, err)
	a, err := f.BeginAttempt(t.Context(), m.ID, fmt.Sprintf("try after %d", latest.ID), time.Minute)
	require.NoError(t, err)
	r := metadata.PublishRequest{Attempt: a.ID, CatalogVersion: 1}
	for _, shard := range []string{a.Source.Shard, a.Target.Shard} {
		l, err := f.AcquireLease(t.Context(), shard, "switch", metadata.SharedLease, time.Minute)
		require.NoError(t, err)
		r.Leases = append(r.Leases, l)
	}
	return r
}

// advance takes an attempt one state further.
func (f *fleet) advance(t *testing.T, id chunk.AttemptID, from, to chunk.AttemptState, deadline time.Duration) {
	t.Helper()
	a, err := f.AdvanceAttempt(t.Context(), id, from, to, metadata.AdvanceOptions{Deadline: deadline})
	require.NoError(t, err)
	require.Equal(t, to, a.State)
}

// switchOver runs a whole switch and gives its attempt.
func (f *fleet) switchOver(t *testing.T, m metadata.Migration) metadata.Attempt {
	t.Helper()
	r := f.closing(t, m)
	_, err := f.Publish(t.Context(), r)
	require.NoError(t, err)
	f.advance(t, r.Attempt, chunk.Published, chunk.Open, 0)
	f.advance(t, r.Attempt, chunk.Open, chunk.AttemptDone, 0)
	a, err := f.Attempt(t.Context(), r.Attempt)
	require.NoError(t, err)
	return a
}

// picture is everything that a refused step must leave as it was.
func (f *fleet) picture(t *testing.T) string {
	t.Helper()
	var out string
	const q = `select concat(
		(select json_agg(r order by r.chunk) from routes r), (select json_agg(p order by p.id) from placements p),
		(select json_agg(a order by a.id) from attempts a), (select json_agg(m order by m.id) from migrations m),
		(select json_agg(h order by h.token) from route_history h))`
	require.NoError(t, f.raw.QueryRow(t.Context(), q).Scan(&out))
	return out
}

// requireFailure checks kind and code of an error.
func requireFailure(t *testing.T, err error, kind failure.Kind, code string) {
	t.Helper()
	e, ok := errors.AsType[*failure.Error](err)
	require.True(t, ok, "not a failure: %v", err)
	require.Equal(t, code, e.Code, "%v", err)
	require.Equal(t, kind, e.Kind, "%v", err)
}
