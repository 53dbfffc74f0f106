package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/metadata"
)

// TestStatusShowsWhatIsCleanedUp: how far a drop came that does not go on, step by step.
func TestStatusShowsWhatIsCleanedUp(t *testing.T) {
	t.Parallel()
	ledger := metadata.Cleanup{Placement: 7, BeganAt: time.Now().Add(-time.Hour), Done: []string{"mark", "grants"}}
	require.Contains(t, cleanupText(ledger), "of placement 7, begun 1h0m0s ago: mark, grants done")
	ledger.Done = nil
	require.Contains(t, cleanupText(ledger), "nothing is done")

	var out bytes.Buffer
	a := &app{env: Env{Stdout: &out}}
	require.NoError(t, a.printStatus(statusJSON{Cleanups: []string{"of placement 7"}}))
	require.Regexp(t, `clean-up +of placement 7`, out.String())
	out.Reset()
	a.output = "json"
	require.NoError(t, a.printStatus(statusJSON{Cleanups: []string{"of placement 7"}}))
	require.Regexp(t, `"cleanups": \[\s*"of placement 7"`, out.String())
}
