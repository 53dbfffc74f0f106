package activities

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
)

// TestPointsThatDivideNothing: a boundary outside of the chunk, at its end, or given
// twice ends the move before anything is made, and says what can be given instead.
func TestPointsThatDivideNothing(t *testing.T) {
	t.Parallel()
	halves := chunk.Hashed.Split(2)
	quarters := chunk.Hashed.Split(4)
	routes := []chunk.Route{{Chunk: chunk.Chunk{ID: "app/0001", Range: halves[0]}}}
	point := func(k chunk.Key) string { return hex.EncodeToString([]byte(k)) }
	in := contract.RegisterInput{}
	in.Chunk, in.To = "app/0001", "shard-b"
	for name, tc := range map[string]struct {
		at   []string
		code string
	}{
		"outside":      {[]string{point(quarters[3].Lo)}, "migration.not_divisible"},
		"at the end":   {[]string{point(halves[0].Hi)}, "migration.not_divisible"},
		"at the start": {[]string{point(halves[0].Lo)}, "migration.not_divisible"},
		"twice":        {[]string{point(quarters[1].Lo), point(quarters[1].Lo)}, "migration.not_divisible"},
		"unreadable":   {[]string{"x"}, "migration.bad_input"},
		"within":       {[]string{point(quarters[1].Lo)}, ""},
	} {
		in.Reshape = &contract.Reshape{At: tc.at}
		got, err := (&Activities{}).newChunks(t.Context(), in, routes)
		if tc.code == "" {
			require.NoError(t, err, name)
			require.Len(t, got, 2, name)
			continue
		}
		e, ok := errors.AsType[*failure.Error](err)
		require.True(t, ok, "%s: %v", name, err)
		require.Equal(t, tc.code, e.Code, name)
		require.False(t, e.Kind.Retryable(), name)
	}
}
