package metadatatest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// intentCases are about intents, the balancer's rounds and the desired state.
var intentCases = map[string]func(*testing.T, *fleet){
	"IntentsThatFightAreRefusedByName": func(t *testing.T, f *fleet) {
		now, err := f.Now(t.Context())
		require.NoError(t, err)
		open := func(run, id string, chunks, emptied, filled []string) error {
			_, err := f.OpenIntent(t.Context(), metadata.Intent{
				Run: run, WorkflowID: id, Kind: "k", Subject: "s", Chunks: chunks, Emptied: emptied, Filled: filled,
				Plan: json.RawMessage(`[]`), RequestedBy: "ann", FiguresAt: now,
			})
			return err
		}
		require.NoError(t, open("r1", "rebalance/drain/a", []string{"db/0001"}, []string{"a"}, []string{"b"}))
		require.NoError(t, open("r1", "rebalance/drain/a", []string{"db/0001"}, []string{"a"}, []string{"b"}), "the same run asks again")
		chunks, emptied, filled, err := f.IntentClaims(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[chunk.ID]string{"db/0001": "rebalance/drain/a"}, chunks)
		require.Equal(t, map[string]string{"a": "rebalance/drain/a"}, emptied)
		require.Equal(t, map[string]string{"b": "rebalance/drain/a"}, filled)
		for what, err := range map[string]error{
			"both move db/0001": open("r2", "rebalance/x", []string{"db/0001", "db/0002"}, nil, []string{"c"}),
			"it fills a":        open("r3", "rebalance/y", []string{"db/0003"}, nil, []string{"a"}),
			"it empties b":      open("r4", "rebalance/z", []string{"db/0004"}, []string{"b"}, []string{"c"}),
			"the same intent":   open("r5", "rebalance/drain/a", []string{"db/0009"}, nil, []string{"c"}),
		} {
			requireFailure(t, err, failure.Invalid, "rebalance.fights")
			require.ErrorContains(t, err, "rebalance/drain/a")
			require.ErrorContains(t, err, what)
		}
		require.NoError(t, open("r6", "rebalance/w", []string{"db/0005"}, nil, []string{"b"}), "two may fill one shard")

		openOnes, err := f.OpenIntents(t.Context())
		require.NoError(t, err)
		require.Len(t, openOnes, 2)
		require.Equal(t, "r6", openOnes[0].Run)
		require.NoError(t, f.CloseIntent(t.Context(), "r1", json.RawMessage(`{"done":1}`)))
		require.NoError(t, f.CloseIntent(t.Context(), "r1", json.RawMessage(`{"done":9}`)), "asking again")
		require.NoError(t, open("r7", "rebalance/y", []string{"db/0001"}, nil, []string{"a"}), "what has ended fights nobody")
		all, err := f.Intents(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, all, 3)
		require.Nil(t, all[0].EndedAt)
		require.JSONEq(t, `{"done":1}`, string(all[2].Outcome))
	},

	"OldFiguresAreNotActedOn": func(t *testing.T, f *fleet) {
		now, err := f.Now(t.Context())
		require.NoError(t, err)
		i := metadata.Intent{Run: "r1", WorkflowID: "w", Kind: "k", Plan: json.RawMessage(`[]`), FiguresAt: now.Add(-metadata.FiguresLast - time.Second)}
		_, err = f.OpenIntent(t.Context(), i)
		requireFailure(t, err, failure.Invalid, "rebalance.figures_old")
	},

	"LoadsAreKeptOfEveryPlacement": func(t *testing.T, f *fleet) {
		say := func(proxy string, requests int) {
			require.NoError(t, f.SetTraffic(t.Context(), proxy, json.RawMessage(`[{"placement":77,"requests":`+map[int]string{60: "60", 120: "120", 600: "600"}[requests]+`}]`)))
		}
		say("p1", 60)
		say("p2", 120)
		loads, err := f.Loads(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 3, loads[77], 1e-9)
		say("p1", 600)
		loads, err = f.Loads(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 3, loads[77], 1e-9, "the same proxy is written again only after ten seconds")
		require.NoError(t, f.exec(t, `update proxy_loads set at = at - interval '11 seconds'`))
		say("p1", 600)
		loads, err = f.Loads(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 12, loads[77], 1e-9)
		require.NoError(t, f.exec(t, `update proxy_loads set at = at - interval '2 minutes'`))
		loads, err = f.Loads(t.Context())
		require.NoError(t, err)
		require.Empty(t, loads)
	},

	"FanOutOfAllProxiesIsAddedUp": func(t *testing.T, f *fleet) {
		for proxy, word := range map[string]string{
			"p1": `[{"placement":77,"requests":9,"fan_out":{"pinned":5,"wide":{"1":1,"4":3}}},{"placement":78,"requests":1,"fan_out":{"pinned":1}}]`,
			"p2": `[{"placement":77,"requests":2,"fan_out":{"wide":{"4":2}}}]`,
			"p3": `[{"placement":77,"requests":2}]`, // an older one does not say
		} {
			require.NoError(t, f.SetTraffic(t.Context(), proxy, json.RawMessage(word)))
		}
		sum, err := f.FanOut(t.Context(), 77)
		require.NoError(t, err)
		require.Equal(t, chunk.FanOut{Pinned: 5, Wide: map[int]int64{1: 1, 4: 5}}, sum)
		require.NoError(t, f.exec(t, `update proxy_loads set at = at - interval '2 minutes'`))
		sum, err = f.FanOut(t.Context(), 77)
		require.NoError(t, err)
		require.Zero(t, sum.Requests(), "it is a word about the past")
	},

	"MovesOfAnIntentAreFound": func(t *testing.T, f *fleet) {
		before, err := f.Now(t.Context())
		require.NoError(t, err)
		m := f.register(t)
		seen, err := f.MovesSince(t.Context(), []string{string(m.Chunk.ID), "no/0001"}, before)
		require.NoError(t, err)
		require.Equal(t, []metadata.ChunkMove{{Chunk: m.Chunk.ID, Phase: chunk.Registered}}, seen)
		after, err := f.Now(t.Context())
		require.NoError(t, err)
		seen, err = f.MovesSince(t.Context(), []string{string(m.Chunk.ID)}, after)
		require.NoError(t, err)
		require.Empty(t, seen)
		moving, err := f.Moving(t.Context())
		require.NoError(t, err)
		require.Contains(t, moving, m.Chunk.ID)
		ages, err := f.RouteAges(t.Context())
		require.NoError(t, err)
		require.Empty(t, ages, "nothing was ever moved")
	},

	"RefusalsAreSaidOnceUntilTheyChange": func(t *testing.T, f *fleet) {
		keep := func(notes ...metadata.Note) []string {
			fresh, err := f.KeepRound(t.Context(), json.RawMessage(`{}`), notes)
			require.NoError(t, err)
			return fresh
		}
		hot := metadata.Note{Subject: "db/0001", Reason: "one key takes 61 %"}
		require.Equal(t, []string{"db/0001"}, keep(hot))
		require.Empty(t, keep(hot))
		require.Equal(t, []string{"db/0001"}, keep(metadata.Note{Subject: "db/0001", Reason: "one key takes 80 %"}))
		require.Empty(t, keep())
		require.Equal(t, []string{"db/0001"}, keep(hot), "it came back")
		rounds, err := f.BalanceRounds(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, rounds, 5)
	},

	"DesiredStateHasAHistory": func(t *testing.T, f *fleet) {
		for _, content := range []string{"one", "two"} {
			_, err := f.KeepDesiredState(t.Context(), metadata.DesiredState{Content: content, Changes: json.RawMessage(`[]`), AppliedBy: "ann"})
			require.NoError(t, err)
		}
		all, err := f.DesiredStates(t.Context(), 5)
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.Equal(t, "two", all[0].Content)
		require.Greater(t, all[0].Version, all[1].Version)
	},
}
