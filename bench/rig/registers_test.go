package rig

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// op is one operation of a history; times are in any unit.
func op(client int, call, ret int64, write bool, value int64, unknown bool) porcupine.Operation {
	return porcupine.Operation{
		ClientId: client, Call: call, Return: ret,
		Input: operation{register: "a", write: write, value: value}, Output: outcome{value: value, unknown: unknown},
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		history []porcupine.Operation
		ok      bool
	}{
		"read after write": {[]porcupine.Operation{op(0, 0, 1, true, 7, false), op(1, 2, 3, false, 7, false)}, true},
		"stale read":       {[]porcupine.Operation{op(0, 0, 1, true, 7, false), op(1, 2, 3, false, 0, false)}, false},
		"lost write": {[]porcupine.Operation{
			op(0, 0, 1, true, 7, false), op(0, 2, 3, true, 8, false), op(1, 4, 5, false, 7, false),
		}, false},
		"beside each other, either way": {[]porcupine.Operation{op(0, 0, 9, true, 7, false), op(1, 2, 3, false, 0, false)}, true},
		"an unknown write that never was": {[]porcupine.Operation{
			op(0, 0, 1, true, 7, true), op(1, 2, 3, false, 0, false),
		}, true},
		"an unknown write that came late": {[]porcupine.Operation{
			op(0, 0, 1, true, 7, true), op(1, 2, 3, false, 0, false), op(1, 4, 5, false, 7, false),
		}, true},
		"an unknown write that went away again": {[]porcupine.Operation{
			op(0, 0, 1, true, 7, true), op(1, 2, 3, false, 7, false), op(1, 4, 5, false, 0, false),
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ok, decided := judge(c.history)
			require.True(t, decided)
			require.Equal(t, c.ok, ok)
		})
	}
}
