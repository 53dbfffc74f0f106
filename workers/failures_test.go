package workers

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"drover/internal/failure"
)

// TestWhatEndsWithoutAFaultGoesOnSoon: a lane that lives through a burn-in of days begins anew with each
// renewal of certificates, and waited longer each time, from about the tenth on 15 s.
func TestWhatEndsWithoutAFaultGoesOnSoon(t *testing.T) {
	t.Parallel()

	for code, delay := range map[string]time.Duration{
		"shard.renewed": time.Second, "worker.stopping": time.Second, "shard.unreachable": 0,
	} {
		e, ok := errors.AsType[*temporal.ApplicationError](toTemporal(t.Context(), failure.New(failure.Transient, code, "so it is")))
		require.True(t, ok)
		require.Equal(t, delay, e.NextRetryDelay(), code)
		require.False(t, e.NonRetryable(), code)
		require.Equal(t, code, e.Type())
	}
}
