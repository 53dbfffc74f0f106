package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
)

// A move that stopped at DDL goes on with the policy that its operator chooses, in
// both directions from then on; without a word, policies stay what they were.
func TestPolicyOnDDLReachesTheLanes(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		started, resumed string
		want             []string // of each start of the lanes
	}{
		"stop":              {"", "", []string{"", "", ""}},
		"stop by name":      {contract.StopOnDDL, "", []string{"", "", ""}},
		"follow":            {contract.FollowOnDDL, "", []string{contract.FollowOnDDL, contract.FollowOnDDL, contract.FollowOnDDL}},
		"follow from now":   {"", contract.FollowOnDDL, []string{"", contract.FollowOnDDL, contract.FollowOnDDL}},
		"no longer":         {contract.FollowOnDDL, contract.StopOnDDL, []string{contract.FollowOnDDL, "", ""}},
		"a word of nothing": {"", "perhaps", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newWorld()
			w.failAt, w.failCount = contract.ReplicateChanges.Name, 1
			env := newEnv(t, w)
			var refused, late error
			askWith(env, 2*time.Hour, contract.ResumeUpdate, contract.UpdateInput{By: "test", OnDDL: c.resumed}, &refused)
			end := contract.CompleteUpdate
			if c.want == nil {
				end = contract.AbortUpdate
			}
			ask(env, 3*time.Hour, end, &late)
			in := input
			in.OnDDL = c.started
			start(env, in)
			require.NoError(t, late)
			if c.want == nil {
				require.ErrorContains(t, refused, `onDDL is "perhaps"; want "stop" or "follow"`)
				return
			}
			require.NoError(t, refused)
			require.NoError(t, env.GetWorkflowError())
			require.Equal(t, target.ID, w.serving)
			var got []string
			for _, l := range w.lanes {
				got = append(got, l.OnDDL)
			}
			require.Equal(t, c.want, got, "the lanes that failed, those after them, and the reverse ones")
		})
	}
}
