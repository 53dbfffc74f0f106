package metadatatest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// gateCases are about what the gate asks for.
var gateCases = map[string]func(*testing.T, *fleet){
	"LanesWordHasAnAge": func(t *testing.T, f *fleet) {
		m := f.register(t)
		_, _, ok, err := f.Lanes(t.Context(), m.ID)
		require.NoError(t, err)
		require.False(t, ok, "nothing was said")
		require.NoError(t, f.SetWords(t.Context(), metadata.Word{Migration: m.ID, Lanes: json.RawMessage(`{"lagMS": 3}`)}))
		require.NoError(t, f.exec(t, `update migrations set lanes_at = lanes_at - interval '7 seconds'`))
		word, age, ok, err := f.Lanes(t.Context(), m.ID)
		require.NoError(t, err)
		require.True(t, ok)
		require.JSONEq(t, `{"lagMS": 3}`, string(word))
		require.GreaterOrEqual(t, age, 7*time.Second)
		requireFailure(t, f.SetWords(t.Context(), // the others' are kept
			metadata.Word{Migration: m.ID + 1, Lanes: json.RawMessage(`{}`)}, metadata.Word{Migration: m.ID, Progress: json.RawMessage(`{"docs": 5}`)},
		), failure.Invalid, "migration.unknown")
		moved, err := f.Migration(t.Context(), m.ID)
		require.NoError(t, err)
		require.JSONEq(t, `{"docs": 5}`, string(moved.Progress))
		word, _, _, err = f.Lanes(t.Context(), m.ID)
		require.NoError(t, err)
		require.JSONEq(t, `{"lagMS": 3}`, string(word), "who says nothing of them leaves them as they are")
	},

	"WordsWaitForNobody": func(t *testing.T, f *fleet) {
		m := f.register(t)
		say := func(progress string) string {
			require.NoError(t, f.SetWords(t.Context(), metadata.Word{Migration: m.ID, Progress: json.RawMessage(progress)}))
			moved, err := f.Migration(t.Context(), m.ID)
			require.NoError(t, err)
			return string(moved.Progress)
		}
		require.JSONEq(t, `{"detail": "a\ufffdb"}`, say(`{"detail": "a\u0000b"}`))
		beside := func(lock, progress string) string {
			tx, err := f.raw.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			_, err = tx.Exec(t.Context(), `select from migrations for `+lock)
			require.NoError(t, err)
			return say(progress)
		}
		require.JSONEq(t, `{"docs": 5}`, beside("key share", `{"docs": 5}`), "a row of a child is inserted")
		require.JSONEq(t, `{"docs": 5}`, beside("no key update", `{"docs": 6}`), "the next word says it")
	},

	"CaptureSilence": func(t *testing.T, f *fleet) {
		_, ok, err := f.CaptureSilence(t.Context(), "a")
		require.NoError(t, err)
		require.False(t, ok)
		p, err := f.TakeCapture(t.Context(), "a", "w1")
		require.NoError(t, err)
		_, ok, err = f.CaptureSilence(t.Context(), "a")
		require.NoError(t, err)
		require.False(t, ok, "taken, and nothing captured yet")
		p.Seq = 5
		require.NoError(t, f.SaveCapture(t.Context(), p))
		require.NoError(t, f.exec(t, `update capture_positions set saved_at = saved_at - interval '1 minute'`))
		silence, ok, err := f.CaptureSilence(t.Context(), "a")
		require.NoError(t, err)
		require.True(t, ok)
		require.GreaterOrEqual(t, silence, time.Minute)
	},

	"ProxiesSayHowLongTheyHold": func(t *testing.T, f *fleet) {
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p1", Address: "127.0.0.1:1", Hold: 10 * time.Second}))
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p1", Address: "127.0.0.1:1", Hold: 1500 * time.Millisecond}))
		live, err := f.LiveProxies(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1500*time.Millisecond, live[0].Hold)
	},

	"TrafficIsOfUnfinishedMoves": func(t *testing.T, f *fleet) {
		m := f.register(t)
		word := func(p chunk.PlacementID, n int) string {
			return fmt.Sprintf(`{"requests": %d, "placement": %d}`, n, p) // as jsonb orders them
		}
		say := func(proxy string, words ...string) {
			require.NoError(t, f.SetTraffic(t.Context(), proxy, json.RawMessage("["+strings.Join(words, ",")+"]")))
		}
		heard := func(p chunk.PlacementID) (out []string) {
			all, err := f.Traffic(t.Context(), p)
			require.NoError(t, err)
			for _, w := range all {
				out = append(out, string(w))
			}
			return out
		}
		say("p1", word(m.Source.ID, 5), word(m.Target.ID+100, 7))
		say("p2", word(m.Source.ID, 6))
		require.Equal(t, []string{word(m.Source.ID, 5), word(m.Source.ID, 6)}, heard(m.Source.ID))
		require.Empty(t, heard(m.Target.ID+100), "nobody moves it")
		say("p1", word(m.Target.ID, 1))
		require.Equal(t, []string{word(m.Source.ID, 6)}, heard(m.Source.ID), "p1 has nothing there any more")
		require.Len(t, heard(m.Target.ID), 1)
		say("p1")
		require.Empty(t, heard(m.Target.ID))
		require.NoError(t, f.exec(t, `update proxy_traffic set at = at - interval '7 seconds'`))
		require.Empty(t, heard(m.Source.ID), "p2 says nothing any more")
	},

	"AnswersAreOfShardsThatAreCopied": func(t *testing.T, f *fleet) {
		m := f.register(t)
		say := func(proxy, words string) {
			require.NoError(t, f.SetAnswers(t.Context(), proxy, json.RawMessage(words)))
		}
		heard := func(shard string) map[string]json.RawMessage {
			all, err := f.Answers(t.Context(), shard)
			require.NoError(t, err)
			return all
		}
		word := func(shard string) string { return fmt.Sprintf(`{"took": [1, 2], "shard": %q}`, shard) } // as jsonb orders them
		say("p1", "["+word(m.Source.Shard)+","+word("elsewhere")+"]")
		say("p2", "["+word(m.Source.Shard)+"]")
		require.Equal(t, map[string]json.RawMessage{"p1": json.RawMessage(word(m.Source.Shard)), "p2": json.RawMessage(word(m.Source.Shard))}, heard(m.Source.Shard))
		require.Empty(t, heard("elsewhere"), "nobody copies from or to it")
		require.NoError(t, f.exec(t, `update proxy_answers set at = at - interval '7 seconds' where proxy = 'p2'`))
		require.Len(t, heard(m.Source.Shard), 1, "p2 says nothing any more")
		f.walk(t, m.ID, chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating)
		say("p1", "["+word(m.Source.Shard)+"]")
		require.Empty(t, heard(m.Source.Shard), "all is copied")
	},

	"StepsAreKeptWithTheirAttempt": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
		require.NoError(t, err)
		_, ok, err := f.Steps(t.Context(), a.ID)
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, f.SetSteps(t.Context(), a.ID, json.RawMessage(`[{"step":"fencing"}]`)))
		require.NoError(t, f.SetSteps(t.Context(), a.ID, json.RawMessage(`[{"step":"fencing"},{"step":"open"}]`)))
		steps, ok, err := f.Steps(t.Context(), a.ID)
		require.NoError(t, err)
		require.True(t, ok)
		require.JSONEq(t, `[{"step":"fencing"},{"step":"open"}]`, string(steps))
		require.Error(t, f.SetSteps(t.Context(), a.ID+1, json.RawMessage(`[]`)))
		now, err := f.Attempt(t.Context(), a.ID)
		require.NoError(t, err)
		require.Equal(t, chunk.Preparing, now.State)
		require.Equal(t, a.ChangedAt, now.ChangedAt, "the row that decides is not touched")
	},
}
