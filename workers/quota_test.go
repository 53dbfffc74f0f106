package workers

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRaisedQuotasOnlyRaise: an override never lowers what a policy allows, makes no
// quota where there is none, and what this build does not know changes nothing.
func TestRaisedQuotasOnlyRaise(t *testing.T) {
	t.Parallel()

	policies := map[string][]byte{
		"raised": []byte(`{"ops_per_second": 10, "bytes_per_second": 100, "priority": "batch"}`),
		"higher": []byte(`{"ops_per_second": 99}`),
		"free":   []byte(`{"priority": "batch"}`),
		"newer":  []byte(`{"ops_per_second": 10}`),
	}
	raised := map[string][]byte{
		"raised": []byte(`{"ops_per_second": 20}`), "higher": []byte(`{"ops_per_second": 20}`), "free": []byte(`{"ops_per_second": 20}`),
		"newer": []byte(`{"ops_per_fortnight": 20}`), "without": []byte(`{"ops_per_second": 20}`),
	}
	got := raiseQuotas(policies, raised)
	require.Len(t, got, 4)
	for name, want := range map[string]string{
		"raised": `{"ops_per_second": 20, "bytes_per_second": 100, "priority": "batch"}`,
		"higher": `{"ops_per_second": 99}`, "free": `{"priority": "batch"}`, "newer": `{"ops_per_second": 10}`,
	} {
		require.JSONEq(t, want, string(got[name]), name)
	}
}
