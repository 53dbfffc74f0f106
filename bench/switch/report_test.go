package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/contract"
)

// TestStepsAreDifferences: a step lasts from the mark before it; a clock that
// begins anew begins at nothing.
func TestStepsAreDifferences(t *testing.T) {
	t.Parallel()
	got := steps([]contract.SwitchResult{
		{Timeline: []contract.TimelineMark{{Step: "a", AtUS: 1000}, {Step: "b", AtUS: 3000}, {Step: "c", AtUS: 500}}},
		{Timeline: []contract.TimelineMark{{Step: "a", AtUS: 2000}}},
	})
	require.Equal(t, map[string][]float64{"a": {1, 2}, "b": {2}, "c": {0.5}}, got)
}
