package switchover

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOneClockForAllSteps: whoever marks in a timed context marks on its clock, in
// order and from one zero.
func TestOneClockForAllSteps(t *testing.T) {
	t.Parallel()
	ctx, timeline := Timed(t.Context())
	clockOf(ctx).mark("a", "")
	clockOf(ctx).mark("b", "note")
	clockOf(t.Context()).mark("elsewhere", "")
	marks := timeline()
	require.Len(t, marks, 2)
	require.Equal(t, "a", marks[0].Step)
	require.Equal(t, "note", marks[1].Note)
	require.GreaterOrEqual(t, marks[1].At, marks[0].At)
}
