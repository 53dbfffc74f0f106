package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
	"drover/metadata/metadatatest"
)

// leaseRun runs `drover lease` as one person on one metadata.
type leaseRun struct {
	dsn, user string
}

// run gives the exit status and what was printed.
func (r leaseRun) run(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return r.drover(t, append([]string{"lease"}, args...)...)
}

// drover runs any command.
func (r leaseRun) drover(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Main(t.Context(), Env{
		Args:  append(args, "--postgres-dsn", r.dsn, "--secret", "s3cret-of-the-tests-16", "--output", "json"),
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		LookupEnv: func(name string) (string, bool) {
			if name == "USER" {
				return r.user, true
			}
			return "", false
		},
	})
	return status, out.String(), errs.String()
}

// held lists the leases.
func (r leaseRun) held(t *testing.T) (all []leaseJSON) {
	t.Helper()
	status, stdout, stderr := r.run(t, "list")
	require.Zero(t, status, stderr)
	require.NoError(t, json.Unmarshal([]byte(stdout), &all))
	return all
}

func TestLeaseTakenByHandKeepsOthersAway(t *testing.T) {
	t.Parallel()

	store, dsn := metadatatest.OpenDSN(t)
	require.NoError(t, store.AddShard(t.Context(), chunk.Shard{Name: "a", URI: "mongodb://a"}))
	ann, bob := leaseRun{dsn, "ann"}, leaseRun{dsn, "bob"}

	status, _, stderr := ann.run(t, "take", "nowhere", "--for", "1h", "--reason", "disks")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "shard.unknown")
	status, _, _ = ann.run(t, "take", "a", "--for", "-1h", "--reason", "disks")
	require.Equal(t, exitMisused, status)

	status, stdout, stderr := ann.run(t, "take", "a", "--for", "1h", "--reason", "disks")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, `"holder": "operator/ann"`)
	require.Contains(t, stderr, "shard a could not be told", "a shard that does not answer is no reason to refuse, and is no secret")
	held := ann.held(t)
	require.Len(t, held, 1)
	require.Equal(t, "disks", held[0].Reason)
	require.Greater(t, time.Until(held[0].ExpiresAt), 50*time.Minute)

	status, _, stderr = bob.run(t, "take", "a", "--for", "1h", "--reason", "more")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "operator/ann")
	require.Contains(t, stderr, "disks")
	require.Contains(t, stderr, `"hint": `)
	require.Len(t, bob.held(t), 1, "who is refused does not go on waiting")
	status, _, stderr = bob.run(t, "release", "a")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "lease.not_yours")

	status, _, stderr = bob.run(t, "break", "a", "--holder", "operator/ann")
	require.Zero(t, status)
	require.Contains(t, stderr, "Nothing was changed")
	require.Len(t, bob.held(t), 1, "breaking is a dry run by default")
	status, _, stderr = bob.run(t, "break", "a", "--holder", "operator/ann", "--execute")
	require.Zero(t, status, stderr)
	require.Empty(t, bob.held(t))

	status, _, stderr = ann.run(t, "take", "a", "--for", "1h", "--reason", "disks")
	require.Zero(t, status, stderr)
	status, _, stderr = ann.run(t, "release", "a")
	require.Zero(t, status, stderr)
	require.Empty(t, ann.held(t))
}

func TestLeaseWaitsForWhoHoldsIt(t *testing.T) {
	t.Parallel()

	store, dsn := metadatatest.OpenDSN(t)
	require.NoError(t, store.AddShard(t.Context(), chunk.Shard{Name: "a", URI: "mongodb://a"}))
	l, err := store.AcquireLease(t.Context(), "a", "migration/7", metadata.SharedLease, time.Hour)
	require.NoError(t, err)
	ann := leaseRun{dsn, "ann"}
	done := make(chan int, 1)
	go func() {
		status, _, _ := ann.run(t, "take", "a", "--for", "1h", "--reason", "disks", "--wait", "5m")
		done <- status
	}()
	require.Eventually(t, func() bool {
		all, err := store.Leases(t.Context())
		return err == nil && len(all) == 2 && all[1].Waiting
	}, time.Minute, time.Millisecond)
	require.NoError(t, store.ReleaseLease(t.Context(), l))
	require.Zero(t, <-done)
	require.Len(t, ann.held(t), 1)
}
