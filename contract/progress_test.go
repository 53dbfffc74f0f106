package contract_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
)

// A lane that has passed nothing yet is behind for ever, as far as it knows. Turned into
// milliseconds and back that once came out below zero: a gate that only looks passed it.
func TestLagThatIsNotKnown(t *testing.T) {
	t.Parallel()

	for lag, known := range map[time.Duration]bool{math.MaxInt64: false, 200 * time.Millisecond: true, 48 * time.Hour: true, 0: true} {
		b, err := json.Marshal(contract.LanesWord{LagMS: float64(lag.Microseconds()) / 1000})
		require.NoError(t, err)
		var w contract.LanesWord
		require.NoError(t, json.Unmarshal(b, &w))
		got, ok := w.Lag()
		require.Equal(t, known, ok, lag)
		if known {
			require.Equal(t, lag, got)
		}
		text := contract.Progress{LagMS: lag.Milliseconds()}.LagText()
		require.Equal(t, !known, text == "lag not known yet", text)
	}
}
