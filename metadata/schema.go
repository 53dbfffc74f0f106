package metadata

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"drover/internal/failure"
)

//go:embed migrations/*.sql
var schemaFiles embed.FS

// schemaLock is the advisory lock under which the schema is changed.
const schemaLock = 7305816

// schemaStep is one numbered file of the schema. Steps only go forward: an older
// binary keeps working because a step adds and never renames within a release.
type schemaStep struct {
	version int
	name    string
	sql     string
	sum     string
}

// schemaSteps reads the embedded files in order; a gap in the numbers is a
// mistake of the build.
func schemaSteps() ([]schemaStep, error) {
	names, err := fs.Glob(schemaFiles, "migrations/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list schema steps: %w", err)
	}
	slices.Sort(names)
	steps := make([]schemaStep, 0, len(names))
	for i, name := range names {
		b, err := schemaFiles.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read schema step: %w", err)
		}
		base := strings.TrimPrefix(name, "migrations/")
		number, _, _ := strings.Cut(base, "_")
		v, err := strconv.Atoi(number)
		if err != nil || v != i+1 {
			return nil, fmt.Errorf("schema step %s is not number %d", base, i+1)
		}
		sum := sha256.Sum256(b)
		steps = append(steps, schemaStep{version: v, name: base, sql: string(b), sum: hex.EncodeToString(sum[:])})
	}
	return steps, nil
}

// Migrate brings the schema up to what this binary knows. Several may call it at
// once; each step is applied once, in a transaction of its own. It refuses a
// schema whose steps differ from the binary's ("metadata.schema_differs") and one
// that is newer ("metadata.schema_newer").
func (s *Store) Migrate(ctx context.Context) error {
	steps, err := schemaSteps()
	if err != nil {
		return err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return decode(err, "migrate metadata")
	}
	defer conn.Release()

	const table = `create table if not exists schema_versions (
		version    integer primary key,
		name       text not null,
		sum        text not null,
		applied_at timestamptz not null default clock_timestamp(),
		checked_at timestamptz not null default clock_timestamp())`
	for _, step := range steps {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(schemaLock)); err != nil {
				return fmt.Errorf("lock schema: %w", err)
			}
			if _, err := tx.Exec(ctx, table); err != nil {
				return fmt.Errorf("create schema_versions: %w", err)
			}
			return applyStep(ctx, tx, step)
		})
		if err != nil {
			return decode(err, "migrate metadata to %s", step.name)
		}
	}
	if err := checkNewest(ctx, conn.Conn(), len(steps)); err != nil {
		return err
	}
	// Connections made before had nothing to prepare.
	s.pool.Reset()
	return nil
}

// applyStep applies step unless it is there already.
func applyStep(ctx context.Context, tx pgx.Tx, step schemaStep) error {
	var sum string
	err := tx.QueryRow(ctx, `select sum from schema_versions where version = $1`, step.version).Scan(&sum)
	switch {
	case err == nil && sum == step.sum:
		return nil
	case err == nil:
		return failure.New(failure.Invalid, "metadata.schema_differs", "schema step %s was applied with other contents", step.name).
			WithHint("the metadata belongs to another build of drover; a development stack is emptied by `drover dev reset`")
	case !noRows(err):
		return fmt.Errorf("read schema_versions: %w", err)
	}
	// The simple protocol takes several statements at once.
	if _, err := tx.Exec(ctx, step.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	const done = `insert into schema_versions (version, name, sum) values ($1, $2, $3)`
	if _, err := tx.Exec(ctx, done, step.version, step.name, step.sum); err != nil {
		return fmt.Errorf("record schema step: %w", err)
	}
	return nil
}

// checkNewest refuses a schema that is ahead of this binary.
func checkNewest(ctx context.Context, conn *pgx.Conn, known int) error {
	var newest int
	if err := conn.QueryRow(ctx, `select max(version) from schema_versions`).Scan(&newest); err != nil {
		return decode(err, "read schema_versions")
	}
	if newest > known {
		return failure.New(failure.Invalid, "metadata.schema_newer", "the schema is at step %d, this binary knows %d", newest, known).
			WithHint("run a drover at least as new as the one that migrated the metadata")
	}
	return nil
}
