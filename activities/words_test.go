package activities

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
	"drover/switchover"
)

// spoken is what proxies have said by the time that nobody waits any longer.
type spoken map[string]string

func (s spoken) Wait(_ context.Context, _ chunk.AttemptID, _ string, proxies []metadata.Proxy, _ time.Duration, _ bool) (r metadata.AckResult, err error) {
	r.Words, r.Clean = map[string]string{}, true
	for _, p := range proxies {
		r.Words[p.ID] = s[p.ID]
		r.Clean = r.Clean && s[p.ID] == metadata.AckClean
	}
	return r, nil
}

func (s spoken) Close() {}

// TestBlindShardNeedsEveryWord: writes of proxies that had said nothing yet once landed
// behind the final marker of a shard that cannot list its operations, and were lost.
func TestBlindShardNeedsEveryWord(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		words  spoken
		all    bool
		silent []string
		fails  bool
	}{
		"all clean":                    {words: spoken{"a": metadata.AckClean, "b": metadata.AckClean}, all: true, silent: []string{"c: vanished"}},
		"silent on a shard that lists": {words: spoken{"a": metadata.AckClean, "b": metadata.AckSilent}, silent: []string{"b: silent", "c: vanished"}},
		"silent on a blind shard":      {words: spoken{"a": metadata.AckClean, "b": metadata.AckSilent}, all: true, silent: []string{"b: silent", "c: vanished"}, fails: true},
		"running on a blind shard":     {words: spoken{"a": metadata.AckRunning, "b": metadata.AckClean}, all: true, silent: []string{"a: running", "c: vanished"}, fails: true},
		"unknown on a blind shard":     {words: spoken{"a": metadata.AckUnknown, "b": metadata.AckClean}, all: true, silent: []string{"a: unknown", "c: vanished"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &heard{waiter: tc.words}
			h.sort([]metadata.Proxy{{ID: "a", Hears: true}, {ID: "b", Hears: true}}, []metadata.Proxy{{ID: "c"}})
			over := errors.New("the fence's deadline is over")
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(over)
			silent, err := h.Wait(ctx, 1, switchover.Writes, switchover.Patience{All: tc.all})
			require.Equal(t, tc.silent, silent)
			if !tc.fails {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, over)
			require.True(t, failure.HasCode(err, "switch.proxy_silent"))
		})
	}
}

// TestWordIsAboutOneRun: a proxy that had died with requests under way, and was back
// within seconds, once counted as clean.
func TestWordIsAboutOneRun(t *testing.T) {
	t.Parallel()
	live := []metadata.Proxy{{ID: "a", Hears: true}, {ID: "b"}}
	h := &heard{waiter: spoken{"a": metadata.AckClean}}
	h.sort(live, []metadata.Proxy{{ID: "a", Back: true}})
	silent, err := h.Wait(t.Context(), 1, switchover.Writes, switchover.Patience{All: true})
	require.NoError(t, err)
	require.Equal(t, []string{"a: vanished, and is back", "b: hears nothing"}, silent)
}
