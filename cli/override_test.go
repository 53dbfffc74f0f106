package cli

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
	"drover/metadata/metadatatest"
)

// TestOverridesAreListedWithTheirOwners: what people overrule, leases by hand too, is
// in one list; a check that keeps data safe cannot be waived, and a quota that is not
// raised is refused.
func TestOverridesAreListedWithTheirOwners(t *testing.T) {
	t.Parallel()

	store, dsn := metadatatest.OpenDSN(t)
	require.NoError(t, store.AddShard(t.Context(), chunk.Shard{Name: "a", URI: "mongodb://a"}))
	db := chunk.Database{Name: "shop", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "orders", ShardKey: "customer"}}}
	_, err := store.CreateDatabase(t.Context(), db, []metadata.NewChunk{{Range: chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}, Shard: "a"}})
	require.NoError(t, err)
	require.NoError(t, store.Activate(t.Context(), "shop"))
	require.NoError(t, store.SetPolicy(t.Context(), "shop", []byte(`{"ops_per_second": 100}`)))
	ann := leaseRun{dsn, "ann"}
	set := func(args ...string) (int, string) {
		status, _, stderr := ann.drover(t, append([]string{"override", "set", "--for", "1h", "--reason", "sale"}, args...)...)
		return status, stderr
	}

	for _, wrong := range [][]string{{"pin"}, {"pause", "shop/0001"}, {"waiver", "shop/0001"}, {"waiver", "shop/0001", "validation"}, {"quota", "shop"}, {"pin", "shop/0001", "--ops", "5"}} {
		status, stderr := set(wrong...)
		require.Equal(t, exitMisused, status, "%v: %s", wrong, stderr)
	}
	status, stderr := set("quota", "shop", "--ops", "50")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "quota.not_raised")
	status, stderr = set("quota", "shop", "--bytes", "50")
	require.Equal(t, exitFailed, status, "there is no quota of bytes")
	require.Contains(t, stderr, "quota.not_raised")
	status, stderr = set("quota", "nowhere", "--ops", "50")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "database.unknown")

	for _, right := range [][]string{{"quota", "shop", "--ops", "500"}, {"waiver", "shop/0001", "room"}, {"pin", "shop/0001"}} {
		status, stderr = set(right...)
		require.Zero(t, status, stderr)
	}
	status, _, stderr = ann.run(t, "take", "a", "--for", "2h", "--reason", "disks")
	require.Zero(t, status, stderr)

	list := func() (kinds []string) {
		status, stdout, stderr := ann.drover(t, "override", "list")
		require.Zero(t, status, stderr)
		var all []metadata.Override
		require.NoError(t, json.Unmarshal([]byte(stdout), &all))
		for _, o := range all {
			require.Equal(t, "ann", o.Owner)
			require.NotEmpty(t, o.Reason)
			kinds = append(kinds, string(o.Kind)+" "+o.Of()+raisedTo(o))
		}
		return kinds
	}
	require.Equal(t, []string{"quota shop: 500 operations/s", "waiver shop/0001 room", "pin shop/0001", "lease a"}, list(), "by their end")
	status, _, stderr = ann.drover(t, "override", "end", "waiver", "shop/0001", "room")
	require.Zero(t, status, stderr)
	status, _, stderr = ann.drover(t, "override", "end", "waiver", "shop/0001", "room")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "override.none")
	require.Len(t, list(), 3)
}

// TestEndOfPauseLeavesOthersAlone: a move that somebody paused by itself, or that does
// not answer, is not let go on.
func TestEndOfPauseLeavesOthersAlone(t *testing.T) {
	t.Parallel()

	var moves []metadata.Migration
	for _, id := range []chunk.ID{"runs", "by itself", "with all", "silent"} {
		moves = append(moves, metadata.Migration{Chunk: chunk.Chunk{ID: id}})
	}
	status := func(id chunk.ID) (contract.Status, error) {
		if id == "silent" {
			return contract.Status{}, errors.New("no answer")
		}
		return contract.Status{Paused: id != "runs", PausedAll: id == "with all"}, nil
	}
	names := func(all []asked) (out []chunk.ID) {
		for _, x := range all {
			out = append(out, x.Chunk)
		}
		return out
	}
	ask, left := sortAsked(moves, contract.PauseUpdate, status)
	require.Equal(t, []chunk.ID{"runs", "silent"}, names(ask))
	require.Empty(t, left)
	ask, left = sortAsked(moves, contract.ResumeUpdate, status)
	require.Equal(t, []chunk.ID{"with all"}, names(ask))
	require.Equal(t, []chunk.ID{"silent"}, names(left))
	require.Equal(t, "no answer", left[0].Error)
}
