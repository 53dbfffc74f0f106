package validation

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSlicesGrowWhileLittleChanges, as far as they may, and shrink to what they were.
func TestSlicesGrowWhileLittleChanges(t *testing.T) {
	t.Parallel()
	r := &run{Validator: &Validator{Settings: Settings{Slice: 100}}}
	var sizes []int
	for _, changed := range []int{0, 1, 0, 0, 0, 0, 5, 11, 11, 100, 100, 100, 100} { // of 100 documents
		r.grow(100, slice{source: 100}, changed)
		sizes = append(sizes, r.Settings.Slice)
	}
	require.Equal(t, []int{200, 400, 800, 1600, 1600, 1600, 1600, 800, 400, 200, 100, 100, 100}, sizes)
}
