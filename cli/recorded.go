package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/starter"
)

// moveStatus asks the workflow of a chunk's move. When it does not answer (no
// worker, no Temporal, or it is too long ago) the metadata tells what it holds; when
// that does not answer, the workflow's word is shown without it.
func (a *app) moveStatus(cmd *cobra.Command, id chunk.ID) (out statusJSON, err error) {
	asked := a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
		if out.Status, err = s.Status(ctx, id); err != nil {
			return err
		}
		if blind := a.beside(ctx, &out); blind != nil {
			a.blind(blind)
		}
		return nil
	})
	if asked == nil {
		return out, nil
	}
	err = a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
		if out.Status, out.Progress, err = recorded(ctx, store, id); err != nil {
			return err
		}
		return out.keep(ctx, store)
	})
	if err != nil {
		if failure.HasCode(err, "migration.unknown") {
			return out, asked
		}
		return out, fmt.Errorf("%w; and the metadata: %w", asked, err)
	}
	_, _ = fmt.Fprintf(a.env.Stderr, "drover: the move's workflow does not answer; this is what the metadata holds (%s)\n", firstLine(asked))
	return out, nil
}

// blind says that the metadata could not be read for something that was shown.
func (a *app) blind(err error) {
	_, _ = fmt.Fprintf(a.env.Stderr, "drover: the metadata does not answer; this is the workflow's word, without progress and verification (%s)\n", firstLine(err))
}

// beside reads what the metadata holds of a move beside its workflow's word.
func (a *app) beside(ctx context.Context, out *statusJSON) error {
	if out.Migration == 0 {
		return nil // nothing is registered yet
	}
	store, err := a.openStore(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	m, err := store.Migration(ctx, out.Migration)
	if err != nil {
		return err
	}
	var p *contract.Progress
	if json.Unmarshal(m.Progress, &p) == nil && p != nil && !p.At.IsZero() { // else nothing was reported yet
		out.Progress = p
	}
	return out.keep(ctx, store)
}

// keep takes what only the metadata knows.
func (out *statusJSON) keep(ctx context.Context, store *metadata.Store) (err error) {
	if out.Verification, err = verification(ctx, store, out.Ref); err != nil {
		return err
	}
	out.Cleanups, err = cleanups(ctx, store, out.Ref)
	return err
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// recorded is the state of a chunk's newest move as its rows tell it.
func recorded(ctx context.Context, store *metadata.Store, id chunk.ID) (st contract.Status, p *contract.Progress, err error) {
	all, err := store.Migrations(ctx, metadata.MigrationFilter{Chunk: id, Limit: 1})
	if err != nil {
		return st, nil, err
	}
	if len(all) == 0 {
		return st, nil, failure.New(failure.Invalid, "migration.unknown", "chunk %s was never moved", id).WithHint("drover migrate list shows the moves; drover migrate start moves it")
	}
	m := all[0]
	st = contract.Status{
		Ref: contract.Ref{Migration: m.ID, Chunk: id}, Phase: m.Phase, Step: string(m.Phase), StepSince: m.PhaseAt, Expected: contract.Duration(m.Expected),
		Paused: m.Paused, Attention: m.Attention, Source: m.Source, Target: m.Target, Serving: m.Source,
	}
	attempts, err := store.Attempts(ctx, m.ID)
	if err != nil {
		return st, nil, err
	}
	for _, at := range attempts {
		r := contract.SwitchResult{Attempt: at.ID, Reason: at.Reason}
		switch at.State { //nolint:exhaustive // the others have not changed who serves
		case chunk.Published, chunk.Open, chunk.AttemptDone:
			r.Published, st.Serving = true, at.Target
		case chunk.AttemptAborted:
		default:
			st.WaitingFor = fmt.Sprintf("attempt %d, which is %s", at.ID, at.State)
			continue
		}
		st.Switches = append(st.Switches, r)
	}
	if len(m.Progress) > 0 && !m.Phase.Final() {
		p = &contract.Progress{}
		if err := json.Unmarshal(m.Progress, p); err != nil {
			return st, nil, fmt.Errorf("progress of migration %d: %w", m.ID, err)
		}
	}
	return st, p, nil
}
