package metadata

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"drover/chunk"
)

// rehearsals is how many connections of the pool a rehearsal warms. The pool gives
// the ones first that were given back last, and a window uses no more at a time.
const rehearsals = 3

// errRehearsed takes a rehearsal back.
var errRehearsed = errors.New("rehearsed")

// Rehearse makes every change of a fence window up to open, and takes it back, on the
// connections that the window is going to use. A server's process plans a statement
// when it first meets it: tens of milliseconds, which nobody waits for now; the functions
// keep these plans (step 0030 of the schema). What the
// publish would be refused for is found before anything is taken from anybody, as the
// errors of [Store.AdvanceAttempt] and [Store.Publish].
//
// Before: the attempt is preparing. After: the same. If interrupted: run again.
func (s *Store) Rehearse(ctx context.Context, r PublishRequest) error {
	var warm []*pgxpool.Conn
	defer func() {
		for _, c := range warm {
			c.Release()
		}
	}()
	for len(warm) < rehearsals {
		if len(warm) > 0 && s.pool.Stat().IdleConns() == 0 {
			break // who holds some must not wait for more
		}
		c, err := s.acquire(ctx, len(warm) > 0)
		if err != nil {
			if len(warm) > 0 {
				break
			}
			return decode(err, "rehearse attempt %d", r.Attempt)
		}
		warm = append(warm, c) // held, so that the next one is another
		err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return rehearse(ctx, tx, r) })
		if !errors.Is(err, errRehearsed) {
			return decode(err, "rehearse attempt %d", r.Attempt)
		}
	}
	return nil
}

// acquire takes a connection of the pool; one that is not there at once is not waited
// for when it is only more.
func (s *Store) acquire(ctx context.Context, more bool) (*pgxpool.Conn, error) {
	if more {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
	}
	return s.pool.Acquire(ctx)
}

// rehearse makes the changes in a transaction and gives errRehearsed.
func rehearse(ctx context.Context, tx pgx.Tx, r PublishRequest) error {
	within := time.Minute // nobody sees this deadline
	advance := func(sql string, from, to chunk.AttemptState, within *time.Duration) error {
		_, err := tx.Exec(ctx, sql, int64(r.Attempt), string(from), string(to), within, "", int64(0), "")
		return err
	}
	if err := advance(advanceAttemptSQL, chunk.Preparing, chunk.Fencing, &within); err != nil {
		return err
	}
	if err := advance(passAttemptSQL, chunk.Fencing, chunk.Closing, nil); err != nil {
		return err
	}
	shards, epochs := r.leases()
	if _, err := tx.Exec(ctx, publishSQL, int64(r.Attempt), shards, epochs, r.CatalogVersion); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, attemptSQL, int64(r.Attempt)); err != nil {
		return err
	}
	if err := advance(passAttemptSQL, chunk.Published, chunk.Open, nil); err != nil {
		return err
	}
	return errRehearsed
}
