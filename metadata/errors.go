package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"drover/internal/failure"
)

// SQLSTATEs. Class DR is raised by the schema's own function refuse.
const (
	refusedInvalid      = "DR001"
	refusedLost         = "DR002"
	refusedTransient    = "DR003"
	undefinedTable      = "42P01"
	undefinedFunction   = "42883"
	integrityClass      = "23"
	invalidTextEncoding = "22021"
)

// constraintCodes names what the violation of a constraint means to a caller.
var constraintCodes = map[string]string{
	"migrations_one_unfinished":      "migration.overlapping",
	"migrations_two_sides":           "migration.same_shard",
	"attempts_one_open_of_migration": "attempt.open",
	"attempts_one_open_of_chunk":     "attempt.open",
	"placements_one_live":            "placement.two_live",
	"placements_live_is_routed":      "placement.not_routed",
	"routes_to_live":                 "route.not_live",
	"routes_token":                   "route.token",
	"chunks_not_empty":               "database.ranges",
	"chunks_lo":                      "database.ranges",
	"chunks_hi":                      "database.ranges",
	"chunks_no_gap_after":            "database.ranges",
	"chunks_no_gap_before":           "database.ranges",
	"databases_covered":              "database.ranges",
	"placements_database":            "adoption.taken",
	"slices_stored_has_object":       "slice.incomplete",
	"slices_window":                  "slice.window",
}

// refusalHints say what can be done about a refusal that the schema itself makes.
var refusalHints = map[string]string{
	"migration.overlapping": "`drover migrate list` shows the other move: wait for its end, or end it by `drover migrate complete` or `abort`",
}

// decode turns what the server refused into a failure; everything else is
// wrapped and stays transient.
func decode(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return fmt.Errorf("%s: %w", what, err)
	}
	switch {
	case e.Code == refusedInvalid:
		return refused(failure.Invalid, e, what)
	case e.Code == refusedLost:
		return refused(failure.Lost, e, what)
	case e.Code == refusedTransient:
		return refused(failure.Transient, e, what)
	case strings.HasPrefix(e.Code, integrityClass):
		code, known := constraintCodes[e.ConstraintName]
		if !known {
			code = "metadata.constraint"
		}
		kind := failure.Invalid
		if code == "attempt.open" { // lost a race with one that will end
			kind = failure.Transient
		}
		return hinted(failure.New(kind, code, "%s: %w", what, err))
	case e.Code == invalidTextEncoding:
		return failure.New(failure.Invalid, "metadata.text", "%s: %w", what, err)
	case e.Code == undefinedTable || e.Code == undefinedFunction:
		return failure.New(failure.Invalid, "metadata.schema_missing", "%s: %w", what, err).
			WithHint("the metadata's schema is missing or old: `drover dev up` or a starting worker applies it")
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// refused carries over what the schema's refuse raised.
func refused(kind failure.Kind, e *pgconn.PgError, what string) error {
	f := failure.New(kind, strings.ReplaceAll(e.Message, "-", "_"), "%s: %s", what, e.Detail)
	if e.Hint != "" {
		return f.WithHint("%s", e.Hint)
	}
	return hinted(f)
}

// hinted adds the advice that goes with a failure's code.
func hinted(f *failure.Error) error {
	if hint, ok := refusalHints[f.Code]; ok {
		return f.WithHint("%s", hint)
	}
	return f
}

// foundMark stands between the area and the state in the code of a lost
// compare-and-set.
const foundMark = ".is_"

// Found tells the state that a lost compare-and-set met, as it stands in its
// code: a caller whose own earlier call got no answer may recognise its work.
func Found(err error) (state string, ok bool) {
	e, ok := errors.AsType[*failure.Error](err)
	if !ok || e.Kind != failure.Lost {
		return "", false
	}
	_, state, ok = strings.Cut(e.Code, foundMark)
	return strings.ReplaceAll(state, "_", "-"), ok
}

// lostTo is the failure of a compare-and-set that met another state.
func lostTo(area, found, format string, args ...any) error {
	return failure.New(failure.Lost, area+foundMark+strings.ReplaceAll(found, "-", "_"), format, args...)
}

// noRows reports whether a query that promised a row gave none.
func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// plainText makes s fit for a text column, which takes neither NUL nor broken
// UTF-8; names of fields and errors of servers may have either.
func plainText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// plainJSON makes JSON fit for a jsonb column, which takes no NUL either.
func plainJSON(b []byte) []byte {
	return bytes.ReplaceAll(b, []byte(`\u0000`), []byte(`\ufffd`))
}
