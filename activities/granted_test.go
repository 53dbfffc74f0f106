package activities

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
)

// Lanes that are refused although their role is there begin again; those whose role was
// dropped have ended, and what else ends lanes stays as it is.
func TestRefusedLanesBeginAgainWhereTheirRoleIs(t *testing.T) {
	t.Parallel()
	refused := failure.New(failure.Lost, "lane.refused", "no right")
	asked := 0
	answer := func(err error) func(leg) error { return func(leg) error { asked++; return err } }
	legs := []leg{{}, {}}

	again := granted(legs, refused, answer(nil))
	require.True(t, failure.HasCode(again, "lane.granted"))
	require.True(t, failure.Is(again, failure.Transient))
	require.Equal(t, 2, asked, "each leg has a role of its own")
	require.Equal(t, refused, granted(legs, refused, answer(failure.New(failure.Lost, "grant.void", "gone"))))
	down := errors.New("down")
	require.Equal(t, down, granted(legs, refused, answer(down)))
	asked = 0
	require.Equal(t, down, granted(legs, down, answer(nil)))
	require.NoError(t, granted(legs, nil, answer(nil)))
	require.Zero(t, asked)
}
