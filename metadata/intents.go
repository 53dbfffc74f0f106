package metadata

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// FiguresLast is how old the figures of a plan may be when it is executed.
const FiguresLast = 5 * time.Minute

// Intent is a plan of several moves that one run carries out.
type Intent struct {
	Run         string          `json:"run"` // Temporal's
	WorkflowID  string          `json:"workflowID"`
	Kind        string          `json:"kind"`
	Subject     string          `json:"subject,omitempty"`
	Chunks      []string        `json:"chunks"`
	Emptied     []string        `json:"emptied"` // shards that it wants empty
	Filled      []string        `json:"filled"`  // shards that its moves lead to
	Plan        json.RawMessage `json:"plan"`
	RequestedBy string          `json:"requestedBy"`
	Reason      string          `json:"reason,omitempty"`
	FiguresAt   time.Time       `json:"figuresAt"`
	OpenedAt    time.Time       `json:"openedAt"`
	EndedAt     *time.Time      `json:"endedAt,omitempty"`
	Outcome     json.RawMessage `json:"outcome,omitempty"`
}

// intentColumns are what scanIntent reads.
const intentColumns = `run, workflow_id, kind, subject, chunks, emptied, filled, plan, requested_by, reason, figures_at, opened_at, ended_at, outcome`

// scanIntent reads intentColumns.
func scanIntent(row pgx.CollectableRow) (i Intent, err error) {
	var plan, outcome []byte
	err = row.Scan(&i.Run, &i.WorkflowID, &i.Kind, &i.Subject, &i.Chunks, &i.Emptied, &i.Filled, &plan, &i.RequestedBy, &i.Reason,
		&i.FiguresAt, &i.OpenedAt, &i.EndedAt, &outcome)
	i.Plan, i.Outcome = plan, outcome
	return i, err
}

// intentsLock is the advisory lock under which intents are compared.
const intentsLock = 7305818

// OpenIntent keeps an intent that begins and gives the time of that. The same run
// again is no error. Two intents fight when both name a chunk, or when one fills
// a shard that the other empties.
//
// Refusals: "rebalance.figures_old", "rebalance.fights".
func (s *Store) OpenIntent(ctx context.Context, i Intent) (opened time.Time, err error) {
	i.Chunks, i.Emptied, i.Filled = append([]string{}, i.Chunks...), append([]string{}, i.Emptied...), append([]string{}, i.Filled...)
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, int64(intentsLock)); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `select opened_at from intents where run = $1`, i.Run).Scan(&opened)
		if !noRows(err) {
			return err
		}
		if err := mayOpen(ctx, tx, i); err != nil {
			return err
		}
		const q = `insert into intents (run, workflow_id, kind, subject, chunks, emptied, filled, plan, requested_by, reason, figures_at)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) returning opened_at`
		return tx.QueryRow(ctx, q, i.Run, i.WorkflowID, i.Kind, i.Subject, i.Chunks, i.Emptied, i.Filled, string(i.Plan), i.RequestedBy,
			i.Reason, i.FiguresAt).Scan(&opened)
	})
	return opened, decode(err, "open intent %s", i.WorkflowID)
}

// mayOpen refuses old figures, and an intent that fights an open one.
func mayOpen(ctx context.Context, tx pgx.Tx, i Intent) error {
	var age float64
	if err := tx.QueryRow(ctx, `select extract(epoch from clock_timestamp() - $1)::float8`, i.FiguresAt).Scan(&age); err != nil {
		return err
	}
	if old := time.Duration(age * float64(time.Second)); old > FiguresLast {
		return failure.New(failure.Invalid, "rebalance.figures_old", "the plan was made from figures that were read %s ago; at most %s are allowed",
			old.Round(time.Second), FiguresLast).WithHint("plan again: drover rebalance plan reads the fleet anew")
	}
	const q = `select ` + intentColumns + ` from intents where ended_at is null
		and (workflow_id = $1 or chunks && $2 or emptied && $3 or filled && $4) order by opened_at limit 1`
	rows, err := tx.Query(ctx, q, i.WorkflowID, i.Chunks, i.Filled, i.Emptied)
	if err != nil {
		return err
	}
	open, err := pgx.CollectExactlyOneRow(rows, scanIntent)
	if noRows(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return failure.New(failure.Invalid, "rebalance.fights", "it fights %s (%s %s, by %s since %s): %s", open.WorkflowID, open.Kind, open.Subject,
		open.RequestedBy, open.OpenedAt.UTC().Format(time.RFC3339), fightOver(i, open)).
		WithHint("wait for it, or stop it: drover rebalance stop %s", open.WorkflowID)
}

// fightOver says what two intents both want.
func fightOver(i, open Intent) string {
	both := func(a, b []string) string {
		var common []string
		for _, x := range a {
			for _, y := range b {
				if x == y {
					common = append(common, x)
				}
			}
		}
		return strings.Join(common, ", ")
	}
	if c := both(i.Chunks, open.Chunks); c != "" {
		return "both move " + c
	}
	if c := both(i.Filled, open.Emptied); c != "" {
		return "it fills " + c + ", which the other one empties"
	}
	if c := both(i.Emptied, open.Filled); c != "" {
		return "it empties " + c + ", which the other one fills"
	}
	return "it is the same intent"
}

// CloseIntent keeps what became of a run's intent. Asking again is no error.
func (s *Store) CloseIntent(ctx context.Context, run string, outcome json.RawMessage) error {
	const q = `update intents set ended_at = clock_timestamp(), outcome = $2 where run = $1 and ended_at is null`
	_, err := s.pool.Exec(ctx, q, run, string(outcome))
	return decode(err, "close intent of run %s", run)
}

// Intents gives the newest intents, those that are open first.
func (s *Store) Intents(ctx context.Context, limit int) ([]Intent, error) {
	rows, err := s.pool.Query(ctx, `select `+intentColumns+` from intents order by ended_at is not null, opened_at desc limit $1`, limit)
	if err != nil {
		return nil, decode(err, "list intents")
	}
	all, err := pgx.CollectRows(rows, scanIntent)
	return all, decode(err, "list intents")
}

// OpenIntents gives the intents that have not ended, the newest first.
func (s *Store) OpenIntents(ctx context.Context) ([]Intent, error) {
	rows, err := s.pool.Query(ctx, `select `+intentColumns+` from intents where ended_at is null order by opened_at desc`)
	if err != nil {
		return nil, decode(err, "read open intents")
	}
	all, err := pgx.CollectRows(rows, scanIntent)
	return all, decode(err, "read open intents")
}

// IntentClaims gives what open intents hold, each with the workflow of its intent:
// their chunks, the shards that they empty, and those that they fill.
func (s *Store) IntentClaims(ctx context.Context) (chunks map[chunk.ID]string, emptied, filled map[string]string, err error) {
	all, err := s.OpenIntents(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	chunks, emptied, filled = map[chunk.ID]string{}, map[string]string{}, map[string]string{}
	for _, i := range all {
		for _, c := range i.Chunks {
			chunks[chunk.ID(c)] = i.WorkflowID
		}
		for _, x := range i.Emptied {
			emptied[x] = i.WorkflowID
		}
		for _, x := range i.Filled {
			filled[x] = i.WorkflowID
		}
	}
	return chunks, emptied, filled, nil
}

// ChunkMove is how far the newest move of a chunk has come.
type ChunkMove struct {
	Chunk     chunk.ID
	Phase     chunk.Phase
	Attention string
}

// MovesSince gives the newest move of each of some chunks that was registered
// after a time; chunks without one are left out.
func (s *Store) MovesSince(ctx context.Context, chunks []string, since time.Time) ([]ChunkMove, error) {
	const q = `select distinct on (chunk) chunk, phase, needs_attention from migrations
		where id = lead and chunk = any($1) and created_at >= $2 order by chunk, id desc`
	rows, err := s.pool.Query(ctx, q, append([]string{}, chunks...), since)
	if err != nil {
		return nil, decode(err, "read moves")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m ChunkMove, err error) {
		return m, row.Scan(&m.Chunk, &m.Phase, &m.Attention)
	})
	return all, decode(err, "read moves")
}
