package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/demo/workload"
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

// TestInterruptedRunIsReported with what it had measured; one that measured nothing
// leaves the report of the last.
func TestInterruptedRunIsReported(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "switch.json")
	b := &bench{o: options{out: path}, work: &workload.Workload{}}
	require.ErrorIs(t, b.end(context.Canceled, io.Discard), context.Canceled)
	require.NoFileExists(t, path)

	b.switches = []contract.SwitchResult{{Published: true, WindowMS: 7}}
	require.ErrorIs(t, b.end(context.Canceled, io.Discard), context.Canceled)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(text, &got))
	require.InDelta(t, 1, got["switches"], 0)
	require.InDelta(t, 7, got["window_p50_ms"], 0)
}

// TestSwitchesAreNotedOnce, also those of a move that no longer tells its first ones.
func TestSwitchesAreNotedOnce(t *testing.T) {
	t.Parallel()
	told := func(from, to int64) (all []contract.SwitchResult) {
		for id := from; id <= to; id++ {
			all = append(all, contract.SwitchResult{Attempt: chunk.AttemptID(id), Published: true})
		}
		return all
	}
	b := &bench{}
	require.Len(t, b.fresh(told(1, 3)), 3)
	b.switches = told(1, 3)
	require.Empty(t, b.fresh(told(1, 3)))
	require.Equal(t, told(4, 5), b.fresh(told(3, 5)))
}
