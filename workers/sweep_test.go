package workers

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"drover/metadata"
)

// openIntents are the intents of runs that have not ended.
type openIntents struct {
	open   []metadata.Intent
	closed map[string]string
}

func (o *openIntents) OpenIntents(context.Context) ([]metadata.Intent, error) { return o.open, nil }

func (o *openIntents) CloseIntent(_ context.Context, run string, outcome json.RawMessage) error {
	o.closed[run] = string(outcome)
	return nil
}

// TestSweeperClosesWhatHasEnded, with how; never what runs, nor what cannot be asked for,
// which keeps nobody else from being closed.
func TestSweeperClosesWhatHasEnded(t *testing.T) {
	t.Parallel()

	ledger := &openIntents{closed: map[string]string{}}
	for _, run := range []string{"runs", "silent", "terminated"} {
		ledger.open = append(ledger.open, metadata.Intent{Run: run, WorkflowID: "rebalance/" + run})
	}
	s := sweeper{ledger: ledger, log: slog.New(slog.DiscardHandler), ended: func(_ context.Context, id, run string) (string, error) {
		require.Equal(t, "rebalance/"+run, id)
		return map[string]string{"terminated": "by ann"}[run], map[string]error{"silent": errors.New("no answer")}[run]
	}}
	require.ErrorContains(t, s.sweep(t.Context()), "no answer")
	require.Len(t, ledger.closed, 1)
	require.Contains(t, ledger.closed["terminated"], `"stopped":"by ann"`)
}

// TestSweeperLooksAgain until it is told to end.
func TestSweeperLooksAgain(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		looks := 0
		ledger := &openIntents{closed: map[string]string{}, open: []metadata.Intent{{Run: "r"}}}
		s := sweeper{ledger: ledger, log: slog.New(slog.DiscardHandler), ended: func(context.Context, string, string) (string, error) {
			if looks++; looks == 3 {
				cancel()
			}
			return "", nil
		}}
		s.Run(ctx)
		require.Equal(t, 3, looks)
	})
}
