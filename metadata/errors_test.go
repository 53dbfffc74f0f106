package metadata

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"drover/internal/failure"
)

// TestRefusalsAdvise: what the schema advises, else what is known of the code.
func TestRefusalsAdvise(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refusal pgconn.PgError
		hint    string
	}{
		"the schema's own":  {pgconn.PgError{Code: refusedInvalid, Message: "migration.overlapping", Hint: "wait for migration 7 or abort it"}, "wait for migration 7"},
		"a claim":           {pgconn.PgError{Code: refusedInvalid, Message: "migration.overlapping"}, "drover migrate list"},
		"a unique key":      {pgconn.PgError{Code: "23505", ConstraintName: "migrations_one_unfinished"}, "drover migrate list"},
		"nothing to advise": {pgconn.PgError{Code: refusedInvalid, Message: "migration.unknown"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, ok := errors.AsType[*failure.Error](decode(&c.refusal, "register"))
			require.True(t, ok)
			require.Contains(t, e.Hint, c.hint)
			require.Equal(t, c.hint == "", e.Hint == "")
		})
	}
}

// TestPlainJSON: one NUL in the error of a server, and no word of any move of the worker
// was kept.
func TestPlainJSON(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(map[string]string{"detail": "a\x00b"})
	require.NoError(t, err)
	require.JSONEq(t, `{"detail": "a\ufffdb"}`, string(plainJSON(b)))
	require.Nil(t, plainJSON(nil), "as it was stays as it was")
}
