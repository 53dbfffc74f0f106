package starter

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"drover/internal/failure"
)

// TestRefusalsSayWhatToDo: the hint of a refusal reaches who started the move.
func TestRefusalsSayWhatToDo(t *testing.T) {
	t.Parallel()
	refusal := func(details ...any) *failure.Error {
		err := temporal.NewApplicationErrorWithOptions("area.reason: no room", "area.reason", temporal.ApplicationErrorOptions{NonRetryable: true, Details: details})
		out, ok := errors.AsType[*failure.Error](refused(err))
		require.True(t, ok)
		require.EqualError(t, out, "area.reason: no room")
		return out
	}
	require.Equal(t, "nothing was changed; make some; then start the move again", refusal("invalid", "make some").Hint)
	for _, details := range [][]any{nil, {"invalid", ""}, {7}} {
		require.Equal(t, "nothing was changed; mend what it says and start the move again", refusal(details...).Hint)
	}
	other := errors.New("connection refused")
	require.Equal(t, other, refused(other))
}
