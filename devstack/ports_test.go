package devstack_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/devstack"
)

// TestPortIsGivenOnce: the port of a server that is down for a moment was given to
// another one of the same process, and the server did not come back.
func TestPortIsGivenOnce(t *testing.T) {
	t.Parallel()

	seen := map[int]bool{}
	for range 600 {
		port, err := devstack.FreePort()
		require.NoError(t, err)
		require.False(t, seen[port])
		seen[port] = true
	}
}
