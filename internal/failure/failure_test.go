package failure

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKinds(t *testing.T) {
	t.Parallel()

	require.Equal(t, Transient, Kind(0), "what is not said may be tried again")
	for k, want := range map[Kind]struct {
		name      string
		retryable bool
	}{
		Transient: {"transient", true},
		Invalid:   {"invalid", false},
		Lost:      {"lost", false},
		Mismatch:  {"mismatch", false},
		Kind(9):   {"kind(9)", false},
	} {
		require.Equal(t, want.name, k.String())
		require.Equal(t, want.retryable, k.Retryable(), want.name)
	}
}

func TestErrorKeepsItsCause(t *testing.T) {
	t.Parallel()

	cause := errors.New("cause")
	e := New(Lost, "route.stale", "publish %s: %w", "c1", cause).WithHint("look at %s", "c1")
	require.EqualError(t, e, "route.stale: publish c1: cause")
	require.Equal(t, "look at c1", e.Hint)
	require.ErrorIs(t, e, cause)

	wrapped := fmt.Errorf("switch: %w", e)
	require.ErrorIs(t, wrapped, cause)
	require.True(t, Is(wrapped, Lost))
	require.False(t, Is(wrapped, Transient))
	require.True(t, HasCode(wrapped, "route.stale"))
	require.False(t, HasCode(wrapped, "route"))
}

func TestErrorsOfOthersAreTransient(t *testing.T) {
	t.Parallel()

	for _, k := range []Kind{Transient, Invalid, Lost, Mismatch} {
		require.False(t, Is(nil, k))
		require.Equal(t, k == Transient, Is(errors.New("x"), k))
	}
	require.False(t, HasCode(nil, ""))
	require.False(t, HasCode(errors.New("x"), ""))
}
