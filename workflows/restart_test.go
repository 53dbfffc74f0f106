package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
	"drover/internal/failure"
)

// What a comparison finds to differ is copied anew where the policy says so, with no
// lane beside it, a few times; what has begun is finished before any lane runs again.
func TestSlicesAreRestarted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failAt    string
		failCount int
		policy    string
		slices    int
		resume    bool
		restarts  int
		validated int
		attention bool
	}{
		"found by the validation":       {failAt: "ValidateChunk", failCount: 2, slices: 1, restarts: 2, validated: 3},
		"found by the verification":     {failAt: "VerifyChanges", failCount: 1, slices: 2, restarts: 1, validated: 2},
		"again and again":               {failAt: "ValidateChunk", slices: 1, restarts: 3, validated: 5, attention: true},
		"only definitions differ":       {failAt: "ValidateChunk", slices: 0, restarts: 1, validated: 3, attention: true},
		"another policy":                {failAt: "ValidateChunk", policy: contract.BlockOnMismatch, validated: 2, attention: true},
		"the restart fails, is resumed": {failAt: "RestartSlices", failCount: 1, slices: 1, resume: true, restarts: 2, validated: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.failAt, w.failCount, w.kind, w.differing = c.failAt, c.failCount, failure.Mismatch, c.slices
			w.codes = map[string]string{"ValidateChunk": "validation.mismatch"}
			if c.resume {
				w.failToo = "ValidateChunk"
			}
			env := newEnv(t, w)
			var refused, late error
			ask(env, time.Hour, contract.ResumeUpdate, &refused)
			end := contract.CompleteUpdate
			if c.attention {
				end = contract.AbortUpdate
			}
			ask(env, 2*time.Hour, end, &late)
			in := input
			in.OnMismatch = contract.RestartOnMismatch
			if c.policy != "" {
				in.OnMismatch = c.policy
			}
			start(env, in)
			err := env.GetWorkflowError()
			require.Equal(t, c.attention, err != nil, "%v", err)
			require.NoError(t, late)
			require.Equal(t, c.resume || c.attention, refused == nil, "it waits for a person")
			require.Equal(t, c.restarts, w.calls["RestartSlices"])
			require.Equal(t, c.validated, w.calls["ValidateChunk"])
			if c.resume {
				require.Equal(t, []int{1}, w.lanesAt, "no lane is started before it is done")
			}
			require.False(t, w.crowded, "no lane runs beside it")
		})
	}
}
