package stoppoint

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoPointsDoNothing(t *testing.T) {
	t.Parallel()

	var p *Points
	require.NoError(t, p.At(t.Context(), "switch.after-publish"))
}

func TestPointsTellNameAndContext(t *testing.T) {
	t.Parallel()

	type key struct{}
	died := errors.New("died here")
	var passed []string
	p := New(func(ctx context.Context, name string) error {
		require.Equal(t, "value", ctx.Value(key{}))
		passed = append(passed, name)
		if name == "b" {
			return died
		}
		return nil
	})
	ctx := context.WithValue(t.Context(), key{}, "value")
	require.NoError(t, p.At(ctx, "a"))
	require.ErrorIs(t, p.At(ctx, "b"), died)
	require.Equal(t, []string{"a", "b"}, passed)
}
