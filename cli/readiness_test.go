package cli

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/cdc"
	"drover/chunk"
	"drover/metadata"
	"drover/proxy"
	"drover/shard"
	"drover/workers"
)

// readyFleet is a fleet about which there is nothing to say.
func readyFleet() evidence {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	drilled := now.Add(-time.Hour)
	return evidence{
		now: now, fenceDeadline: time.Second, retention: 30 * 24 * time.Hour,
		callers: []proxy.Envelope{{User: "u", App: "shop", Requests: 400, Chunks: 410, Scattered: 10, Writes: 100, ShortestMS: 5000, GaveUp: 1, PatienceMS: 9000}},
		proxies: []metadata.Proxy{{ID: "p1", Hold: 10 * time.Second}},
		past:    metadata.Past{Done: 3, Longest: 26 * time.Hour, Switches: 9, WentBack: 1, Rollbacks: 2, Rollback: &drilled},
		figures: metadata.Figures{
			Captures:   []metadata.CaptureFigures{{Shard: "a", Silence: 1}},
			Stragglers: map[string]int64{"a": 0},
			Moves:      []metadata.MoveFigures{{Chunk: "f/1", Progress: []byte(`{"backlog":10,"applyPerSecond":300,"writePerSecond":100}`)}},
		},
		surveyed: []workers.Surveyed{{
			Shard: "a", Kafka: cdc.Kept{For: 48 * time.Hour}, OwnLog: 3 * time.Hour,
			Beside: shard.Beside{Controllers: []shard.Principal{{User: "root@admin", Roles: []string{"root@admin"}, Why: "role root"}}},
		}},
		room:   []metadata.Admission{{Shard: "a", Capacity: 9000, Converging: 1000}},
		shards: []chunk.Shard{{Name: "a"}}, layouts: []metadata.Declared{{Shard: "a"}},
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()

	ready := readyFleet()
	for _, x := range ready.answers() {
		require.NotEqual(t, readyLook, x.Verdict, "%+v", x)
	}
	old := ready.now.Add(-90 * 24 * time.Hour)
	for question, c := range map[string]struct {
		spoil    func(*evidence)
		verdict  string
		measured string
	}{
		"writers beside the proxies": {func(e *evidence) {
			e.surveyed[0].Beside.Writers = []shard.Principal{{User: "till@admin", Why: "role readWriteAnyDatabase"}}
		}, readyLook, "a: till@admin (role readWriteAnyDatabase)"},
		"other controllers": {func(e *evidence) {
			e.surveyed[0].Beside.Controllers = append(e.surveyed[0].Beside.Controllers, shard.Principal{User: "agent@admin", Roles: []string{"clusterManager@admin"}, Why: "role clusterManager"})
		}, readyLook, "a: agent@admin (role clusterManager)"},
		"fan-out of requests":                    {func(e *evidence) { e.callers[0].Scattered = 100 }, readyLook, "25.0% of 400 requests concern several; shop (u): 25.0%"},
		"shortest retry envelope":                {func(e *evidence) { e.callers[0].ShortestMS = 500 }, readyLook, "500ms: the shortest maxTimeMS of shop"},
		"writers without retries":                {func(e *evidence) { e.callers[0].Unnumbered = 25 }, readyLook, "shop (u) 25%"},
		"proxies hold requests past a fence":     {func(e *evidence) { e.proxies[0].Hold = time.Second }, readyLook, "p1 holds for 1s"},
		"log retention against the longest move": {func(e *evidence) { e.retention = 48 * time.Hour }, readyLook, "took 26h0m0s"},
		"spare apply capacity": {
			func(e *evidence) {
				e.figures.Moves[0].Progress = []byte(`{"backlog":10,"applyPerSecond":150,"writePerSecond":100}`)
			}, readyLook, "1.5 times",
		},
		"every shard is captured":        {func(e *evidence) { e.figures.Captures[0].Silence = 600 }, readyLook, "silent: a"},
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

// What was never measured is unknown, not good, and says how it is measured.
func TestReadinessOfAnEmptyFleet(t *testing.T) {
	t.Parallel()

	e := evidence{fenceDeadline: time.Second, retention: time.Hour}
	var unknown []string
	for _, x := range e.answers() {
		if x.Verdict != readyGood {
			require.NotEmpty(t, x.Advice, "%+v", x)
		}
		if x.Verdict == readyUnknown {
			unknown = append(unknown, x.Question)
		}
	}
	require.Len(t, unknown, 10, "%v", unknown)
}

// A part that cannot be reached makes an answer unknown, and does not hide what the
// others said.
func TestReadinessWithAPartDown(t *testing.T) {
	t.Parallel()

	e := readyFleet()
	e.surveyed = append(e.surveyed, workers.Surveyed{Shard: "b", BesideErr: errors.New("no primary"), KafkaErr: errors.New("refused")})
	for _, x := range []answer{e.writersBeside(), e.controllers()} {
		require.Equal(t, readyUnknown, x.Verdict, "%+v", x)
		require.Contains(t, x.Measured, "b was not asked (no primary)")
		require.Contains(t, x.Advice, "drover shard check")
	}
	require.Contains(t, e.retained().Measured, "Kafka was not asked about b (refused)")
	e.surveyed[0].Beside.Writers = []shard.Principal{{User: "till@admin", Why: "role readWrite"}}
	x := e.writersBeside()
	require.Equal(t, readyLook, x.Verdict)
	require.Contains(t, x.Measured, "till@admin")
	require.Contains(t, x.Measured, "b was not asked")
}

// What the shards were seen to take answers where no move is behind, and who of Drover
// itself acts is said without alarm.
func TestReadinessAtRest(t *testing.T) {
	t.Parallel()

	e := readyFleet()
	e.figures.Moves = nil
	e.intents = []metadata.Intent{{WorkflowID: "rebalance/drain/a"}, {WorkflowID: "rebalance/old", EndedAt: &e.now}}
	e.figures.Leases = []metadata.LeaseFigures{{Shard: "a", Holder: "ann", Mode: "exclusive"}}
	require.Equal(t, answer{"spare apply capacity", readyGood, "a was seen to apply 9000/s, and 1000/s converge on it", ""}, e.spareApply())
	e.room[0].Converging = 5000
	require.Equal(t, readyLook, e.spareApply().Verdict)
	e.room[0].Converging = 0
	require.Equal(t, answer{"spare apply capacity", readyGood, "a was seen to apply 9000/s; nothing converges on it now", ""}, e.spareApply())
	x := e.controllers()
	require.Equal(t, readyGood, x.Verdict)
	require.Contains(t, x.Measured, "rebalance/drain/a runs, ann has a to itself")
	require.NotContains(t, x.Measured, "rebalance/old")
}
