package pause_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/pause"
)

func TestForEndsByTimeOrWithTheCause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, pause.For(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(began))

		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(enough) })
		began = time.Now()
		require.ErrorIs(t, pause.For(ctx, time.Hour), enough)
		require.Equal(t, time.Minute, time.Since(began))
	})
}
