package metadatatest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
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
		shard := m.Source.Shard
		word := func(shard string) string { return fmt.Sprintf(`{"took": [1, 2], "shard": %q}`, shard) } // as jsonb orders them
		f.sayAnswers(t, "p1", word(shard), word("elsewhere"))
		f.sayAnswers(t, "p2")
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p3"}))
		require.ElementsMatch(t, []metadata.Answer{
			{Proxy: "p1", Word: json.RawMessage(word(shard))},
			{Proxy: "p2", Word: json.RawMessage(fmt.Sprintf(`{"shard": %q}`, shard))},
			{Proxy: "p3"},
		}, f.heardAnswers(t, shard), "p2 has sent nothing there, p3 has not spoken yet")
		require.Equal(t, []metadata.Answer{{Proxy: "p3"}}, f.heardAnswers(t, "elsewhere"), "nobody copies from or to it")
		require.NoError(t, f.exec(t, `update proxy_answers set at = at - interval '2 hours' where proxy = 'p1'`))
		require.Len(t, f.heardAnswers(t, shard), 2, "p1 says nothing any more")
		f.sayAnswers(t, "p1", word(shard))
		require.Len(t, f.heardAnswers(t, shard), 3, "p1 is back")
		f.walk(t, m.ID, chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating)
		f.sayAnswers(t, "p1", word(shard))
		require.Contains(t, f.heardAnswers(t, shard), metadata.Answer{Proxy: "p2", Word: json.RawMessage(fmt.Sprintf(`{"shard": %q}`, shard))})
		require.NotContains(t, f.heardAnswers(t, shard), metadata.Answer{Proxy: "p1", Word: json.RawMessage(word(shard))}, "all is copied")
	},

	"AnswersBeforeAnImportAreKept": func(t *testing.T, f *fleet) {
		m := f.register(t)
		before := func(took int) string {
			f.sayAnswers(t, "p", fmt.Sprintf(`{"shard": %q, "took": [100], "lately": [[%d]]}`, m.Target.Shard, took))
			return string(f.heardAnswers(t, m.Target.Shard)[0].Before)
		}
		require.Equal(t, "[[1]]", before(1))
		require.Equal(t, "[[2]]", before(2), "the newest is the best")
		f.walk(t, m.ID, chunk.Registered, chunk.Importing)
		require.Equal(t, "[[2]]", before(3), "an import is at work")
		f.walk(t, m.ID, chunk.Importing, chunk.Replicating)
		require.Equal(t, "[[2]]", before(4), "a minute is not over")
		f.walk(t, m.ID, chunk.Replicating, chunk.Validating)
		f.sayAnswers(t, "p")
		m = f.registerOf(t, "flights/0002")
		require.Equal(t, "[[2]]", before(5), "nor if another move begins meanwhile")
		require.NoError(t, f.exec(t, `update proxy_answers set busy_at = busy_at - interval '70 seconds'`))
		require.Equal(t, "[[6]]", before(6))
		f.sayAnswers(t, "older", fmt.Sprintf(`{"shard": %q, "took": [100]}`, m.Target.Shard))
		f.walk(t, m.ID, chunk.Registered, chunk.Importing)
		f.sayAnswers(t, "soon", fmt.Sprintf(`{"shard": %q, "took": [7], "lately": [[7]]}`, m.Target.Shard))
		require.NoError(t, f.exec(t, `update migrations set created_at = created_at - interval '10 seconds'`))
		for range 2 {
			f.sayAnswers(t, "late", fmt.Sprintf(`{"shard": %q, "took": [7], "lately": [[7]]}`, m.Target.Shard))
		}
		for _, a := range f.heardAnswers(t, m.Target.Shard) {
			require.Equal(t, a.Proxy == "p" || a.Proxy == "soon", a.Before != nil, "%s: one does not say it, one came when the import was at work", a.Proxy)
		}
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

// sayAnswers says, as a proxy, what was answered.
func (f *fleet) sayAnswers(t *testing.T, proxy string, words ...string) {
	t.Helper()
	require.NoError(t, f.SetAnswers(t.Context(), proxy, json.RawMessage("["+strings.Join(words, ",")+"]")))
}

// heardAnswers gives what is heard of a shard's answers, by the proxies' names.
func (f *fleet) heardAnswers(t *testing.T, shard string) []metadata.Answer {
	t.Helper()
	all, err := f.Answers(t.Context(), shard)
	require.NoError(t, err)
	slices.SortFunc(all, func(a, b metadata.Answer) int { return strings.Compare(a.Proxy, b.Proxy) })
	return all
}
