package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
)

func TestReshapeIsMisused(t *testing.T) {
	t.Parallel()

	for name, args := range map[string][]string{
		"neither into nor at": {"chunk", "split", "x/0001", "--to", "a"},
		"both":                {"chunk", "split", "x/0001", "--to", "a", "--into", "2", "--at", "5"},
		"one chunk to merge":  {"chunk", "merge", "x/0001", "--to", "a"},
		"no file":             {"migrate", "batch", filepath.Join(t.TempDir(), "none")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			status := Main(t.Context(), Env{
				Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
				LookupEnv: func(string) (string, bool) { return "", false },
			})
			require.Equal(t, exitMisused, status, errs.String())
		})
	}
}

func TestBatchReadsOneOrMany(t *testing.T) {
	t.Parallel()

	a := &app{env: Env{Stdin: strings.NewReader(`{"chunk":"flights/0003","to":"c","burnIn":"10m"}`)}}
	one, err := a.readInputs("-")
	require.NoError(t, err)
	require.Len(t, one, 1)
	require.Equal(t, chunk.ID("flights/0003"), one[0].Chunk)

	want := []contract.MigrateInput{
		{Chunk: "a/0001", To: "x"},
		{Chunk: "a/0002", Reshape: &contract.Reshape{With: []chunk.ID{"a/0003"}, Parts: 3, Shards: []string{"x", "y", "z"}}},
	}
	content, err := json.Marshal(want)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "moves.json")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	got, err := a.readInputs(path)
	require.NoError(t, err)
	require.Equal(t, want, got)

	for _, bad := range []string{`[{"chunk":"a/0001","into":2}]`, `{`, `[{"chunk":5}]`} {
		a.env.Stdin = strings.NewReader(bad)
		_, err := a.readInputs("-")
		require.Error(t, err, bad)
	}
}
