package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
	"drover/metadata/metadatatest"
)

// completed gives what a shell is offered behind a command line, but for flags that are
// needed.
func completed(t *testing.T, env map[string]string, args ...string) (offered []string, files bool) {
	t.Helper()

	var out, errs bytes.Buffer
	code := Main(t.Context(), Env{Args: append([]string{"__complete"}, args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, LookupEnv: func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}})
	require.Equal(t, exitDone, code, errs.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	offered = slices.DeleteFunc(lines[:len(lines)-1], func(l string) bool { return strings.HasPrefix(l, "--") })
	return offered, lines[len(lines)-1] != ":4"
}

// Each shell has a script; commands, flags, and values that are words are completed.
func TestCompletion(t *testing.T) {
	t.Parallel()

	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, out, errs := run(t, "completion", shell)
		require.Equal(t, exitDone, code, errs)
		require.Contains(t, out, "__complete", shell)
	}
	code, _, errs := run(t, "completion", "bash", "more")
	require.Equal(t, exitMisused, code, errs)

	nothing := map[string]string{"DROVER_STACK": "/nonexistent/stack.json"}
	offered, _ := completed(t, nothing, "migrate", "sta")
	require.Equal(t, []string{"start\tStart to move a chunk", "status\tShow where a move is and why it waits"}, offered)
	offered, files := completed(t, nothing, "migrate", "start", "flights/0001", "--kind", "")
	require.Equal(t, []string{"move", "upgrade", "bin-pack"}, offered)
	require.False(t, files)
	offered, _ = completed(t, nothing, "version", "--output", "")
	require.Equal(t, []string{"table", "json"}, offered)
	offered, files = completed(t, nothing, "migrate", "status", "")
	require.Empty(t, offered, "the metadata is not known")
	require.False(t, files)
	_, files = completed(t, nothing, "migrate", "batch", "")
	require.True(t, files)
}

// Chunks, shards and databases are completed by the metadata.
func TestCompletionKnowsTheFleet(t *testing.T) {
	t.Parallel()

	store, dsn := metadatatest.OpenDSN(t)
	for _, name := range []string{"shard-a", "shard-b"} {
		require.NoError(t, store.AddShard(t.Context(), chunk.Shard{Name: name, URI: "mongodb://" + name}))
	}
	db := chunk.Database{Name: "flights", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "legs", ShardKey: "origin"}}}
	_, err := store.CreateDatabase(t.Context(), db, []metadata.NewChunk{{Range: chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}, Shard: "shard-a"}})
	require.NoError(t, err)
	require.NoError(t, store.Activate(t.Context(), "flights"))
	env := map[string]string{"DROVER_STACK": "/nonexistent/stack.json", "DROVER_POSTGRES_DSN": dsn, "DROVER_SECRET": "a-secret-of-the-tests"}
	for line, want := range map[string][]string{
		"migrate start ": {"flights/0001"}, "migrate start flights/0001 --to ": {"shard-a", "shard-b"}, "migrate start flights/0001 ": {},
		"chunk merge flights/0001 flights/0002 ": {"flights/0001"}, "chunk list ": {"flights"}, "lease take ": {"shard-a", "shard-b"},
		"shard check ": {"shard-a", "shard-b"}, "placement explain 7 --db ": {"flights"}, "db create ": {},
	} {
		offered, files := completed(t, env, strings.Split(line, " ")...)
		require.ElementsMatch(t, want, offered, line)
		require.False(t, files, line)
	}
}
