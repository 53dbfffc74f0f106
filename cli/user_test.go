package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGrantsAreRead(t *testing.T) {
	t.Parallel()

	database, actions, err := parseGrant("shop:read,ddl")
	require.NoError(t, err)
	require.Equal(t, "shop", database)
	require.Equal(t, []string{"read", "ddl"}, actions)
	for _, bad := range []string{"", "shop", "shop:", ":read", "shop:reed", "shop:read,", "read"} {
		_, _, err := parseGrant(bad)
		require.Error(t, err, bad)
	}
}
