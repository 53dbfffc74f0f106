package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
	"drover/proxy"
)

// readyFleet is a fleet about which there is nothing to say.
func readyFleet() evidence {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	drilled, soon := now.Add(-time.Hour), 1.0
	return evidence{
		now: now, fenceDeadline: time.Second, retention: 30 * 24 * time.Hour,
		callers: []proxy.Envelope{{User: "u", App: "shop", Writes: 100, ShortestMS: 5000, GaveUp: 1, PatienceMS: 9000}},
		proxies: []metadata.Proxy{{ID: "p1", Hold: 10 * time.Second}},
		past:    metadata.Past{Done: 3, Longest: 26 * time.Hour, Switches: 9, WentBack: 1, Rollbacks: 2, Rollback: &drilled},
		figures: metadata.Figures{
			Captures:   []metadata.CaptureFigures{{Shard: "a", Silence: &soon}},
			Stragglers: map[string]int64{"a": 0},
			Moves:      []metadata.MoveFigures{{Chunk: "f/1", Progress: []byte(`{"backlog":10,"applyPerSecond":300,"writePerSecond":100}`)}},
		},
		shards: []chunk.Shard{{Name: "a"}}, layouts: []metadata.Declared{{Shard: "a"}},
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()

	ready := readyFleet()
	for _, x := range ready.answers() {
		require.NotEqual(t, readyLook, x.Verdict, "%+v", x)
	}
	long, old := 600.0, ready.now.Add(-90*24*time.Hour)
	for question, c := range map[string]struct {
		spoil    func(*evidence)
		verdict  string
		measured string
	}{
		"shortest retry envelope":                {func(e *evidence) { e.callers[0].ShortestMS = 500 }, readyLook, "500ms: the shortest maxTimeMS of shop"},
		"writers without retries":                {func(e *evidence) { e.callers[0].Unnumbered = 25 }, readyLook, "shop (u) 25%"},
		"proxies hold requests past a fence":     {func(e *evidence) { e.proxies[0].Hold = time.Second }, readyLook, "p1 holds for 1s"},
		"log retention against the longest move": {func(e *evidence) { e.retention = 48 * time.Hour }, readyLook, "took 26h0m0s"},
		"spare apply capacity": {
			func(e *evidence) {
				e.figures.Moves[0].Progress = []byte(`{"backlog":10,"applyPerSecond":150,"writePerSecond":100}`)
			}, readyLook, "1.5 times",
		},
		"every shard is captured":        {func(e *evidence) { e.figures.Captures[0].Silence = &long }, readyLook, "silent: a"},
		"last rollback, or drill of one": {func(e *evidence) { e.past.Rollback = &old }, readyLook, "2160h0m0s ago"},
		"attempts that went back":        {func(e *evidence) { e.past.WentBack = 9 }, readyLook, "9 of 18"},
		"open stragglers":                {func(e *evidence) { e.figures.Stragglers["a"] = 2 }, readyLook, "2"},
		"shards with a declared layout":  {func(e *evidence) { e.layouts = nil }, readyLook, "0 of 1"},
	} {
		e := readyFleet()
		c.spoil(&e)
		for _, x := range e.answers() {
			if x.Question != question {
				require.NotEqual(t, readyLook, x.Verdict, "%s spoils %+v", question, x)
				continue
			}
			require.Equal(t, c.verdict, x.Verdict, "%+v", x)
			require.Contains(t, x.Measured, c.measured)
			require.NotEmpty(t, x.Advice)
			question = ""
		}
		require.Empty(t, question, "there is no such question")
	}
}

// What was never measured is unknown, not good.
func TestReadinessOfAnEmptyFleet(t *testing.T) {
	t.Parallel()

	e := evidence{fenceDeadline: time.Second, retention: time.Hour}
	unknown := 0
	for _, x := range e.answers() {
		if x.Verdict == readyUnknown {
			unknown++
		}
	}
	require.Equal(t, 7, unknown)
}
