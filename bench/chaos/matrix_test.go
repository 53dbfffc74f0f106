package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/bench/rig"
)

// TestEveryCellIsInOneRound: a move is struck once in its import and once in its
// clean-up, and no cell is lost or struck twice.
func TestEveryCellIsInOneRound(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{"", "@switch", "@(import|drop)", "^worker@", "kafka@import"} {
		moves, switches := matrix(regexp.MustCompile(filter))
		want := append(append([]rig.Cell{}, moves...), switches...)
		var got []rig.Cell
		n := 0
		for _, r := range rounds(moves, switches) {
			for _, c := range []*rig.Cell{r.early, r.late} {
				if c != nil {
					got = append(got, *c)
				}
			}
			got = append(got, r.switches...)
			n += r.cells()
		}
		require.ElementsMatch(t, want, got, filter)
		require.Len(t, want, n)
	}
	moves, switches := matrix(regexp.MustCompile(""))
	require.GreaterOrEqual(t, len(moves)+len(switches), 40)
	for _, r := range rounds(moves, switches) {
		require.NotNil(t, r.early)
		require.NotNil(t, r.late)
		require.Equal(t, r.early.Component, r.late.Component)
	}
}
