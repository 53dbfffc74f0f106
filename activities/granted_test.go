package activities

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
)

// Lanes that are refused although their role is there begin again, but not for ever; those whose
// role was dropped have ended, and what else ends lanes stays as it is.
func TestRefusedLanesBeginAgainWhereTheirRoleIs(t *testing.T) {
	t.Parallel()
	refused, down := failure.New(failure.Lost, "lane.refused", "no right"), errors.New("down")
	void := failure.New(failure.Lost, "grant.void", "gone")
	for name, tc := range map[string]struct {
		ends  []error         // of the lanes' runs, the last of all further ones
		takes []time.Duration // each run; a moment
		again error
		want  error
		runs  int
		asked int
	}{
		"once":             {ends: []error{refused, nil}, runs: 2, asked: 2},
		"for ever":         {ends: []error{refused}, want: refused, runs: 1 + mostGrants, asked: 2 * mostGrants},
		"after a long run": {ends: []error{refused, refused, refused, refused, refused, nil}, takes: []time.Duration{0, 0, 0, time.Hour}, runs: 6, asked: 10},
		"over":             {ends: []error{refused}, again: void, want: refused, runs: 1, asked: 1},
		"not granted":      {ends: []error{refused}, again: down, want: down, runs: 1, asked: 1},
		"something else":   {ends: []error{down}, want: down, runs: 1},
		"closed":           {ends: []error{nil}, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				runs, asked := 0, 0
				got := granting(t.Context(), func() ([]leg, error) {
					runs++
					if runs <= len(tc.takes) {
						time.Sleep(tc.takes[runs-1]) //nolint:forbidigo // the bubble's clock
					}
					return []leg{{}, {}}, tc.ends[min(runs, len(tc.ends))-1]
				}, func(leg) error { asked++; return tc.again })
				require.Equal(t, tc.want, got)
				require.Equal(t, tc.runs, runs)
				require.Equal(t, tc.asked, asked, "each leg has a role of its own")
			})
		})
	}
}
