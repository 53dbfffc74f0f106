package metadata

import (
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
