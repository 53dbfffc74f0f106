package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/cli/console"
	"drover/contract"
	"drover/metadata"
)

// noon is when the pages of these tests are made.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// busyFleet is a fleet in which everything happens at once.
func busyFleet() console.Snapshot {
	busy, write := 0.43, 2500*time.Microsecond
	route := func(id chunk.ID, db, shard string, p chunk.PlacementID) chunk.Route {
		return chunk.Route{Chunk: chunk.Chunk{ID: id, Database: db}, Placement: chunk.Placement{ID: p, Shard: shard}}
	}
	progress, err := json.Marshal(contract.Progress{Step: "import", Documents: 250, DocumentsTotal: 1000, PerSecond: 50, Since: noon.Add(-5 * time.Second), At: noon})
	if err != nil {
		panic(err)
	}
	moving := chunk.Chunk{ID: "flights/0001", Database: "flights"}
	return console.Snapshot{
		At: noon.Add(-time.Second),
		Shards: []chunk.Shard{
			{Name: "shard-a", Capabilities: chunk.Capabilities{Version: "7.0.4", SetName: "a", Members: 3}},
			{Name: "shard-b", Capabilities: chunk.Capabilities{Version: "7.0.4", SetName: "b", Members: 3}},
		},
		Routes: []chunk.Route{
			route("flights/0001", "flights", "shard-a", 1), route("flights/0002", "flights", "shard-a", 2),
			route("users/0001", "users", "shard-b", 3), route("users/0002", "users", "shard-b", 4),
		},
		Loads:   map[chunk.PlacementID]float64{1: 120, 2: 30.5, 3: 2},
		Windows: windows(),
		Moves: []metadata.Migration{
			{
				ID: 7, Lead: 7, Chunk: moving, TargetChunk: moving, Source: chunk.Placement{Shard: "shard-a"}, Target: chunk.Placement{Shard: "shard-b"},
				Phase: chunk.Importing, Progress: progress, WorkflowID: "migrate/flights/0001", RequestedBy: "<ann>", CreatedAt: noon.Add(-time.Minute),
			},
			{
				ID: 8, Lead: 8, Chunk: chunk.Chunk{ID: "users/0002", Database: "users"}, TargetChunk: chunk.Chunk{ID: "users/0002"}, Phase: chunk.BurnIn,
				Source: chunk.Placement{Shard: "shard-a"}, Target: chunk.Placement{Shard: "shard-b"}, WorkflowID: "migrate/users/0002", CreatedAt: noon.Add(-2 * time.Hour),
			},
			{
				ID: 6, Chunk: chunk.Chunk{ID: "users/0001"}, Source: chunk.Placement{Shard: "shard-a"}, Target: chunk.Placement{Shard: "shard-b"},
				Phase: chunk.Done, WorkflowID: "migrate/users/0001", RequestedBy: "<ann>", CreatedAt: noon.Add(-time.Hour),
			},
		},
		Attempts: []console.Attempt{{
			Attempt: metadata.Attempt{
				ID: 12, Chunk: "users/0001", Source: chunk.Placement{Shard: "shard-a"}, Target: chunk.Placement{Shard: "shard-b"},
				State: chunk.AttemptDone, Token: 4, CreatedAt: noon.Add(-time.Minute),
			},
			Steps: []contract.TimelineMark{{Step: "fenced", AtUS: 20_000}, {Step: "drained", AtUS: 50_000}},
		}},
		Figures:    metadata.Figures{Pressures: map[string]chunk.KeptPressure{"shard-a": {Pressure: chunk.Pressure{CPU: &busy, Write: &write}}, "shard-b": {Pressure: chunk.Pressure{CPU: &busy}, Age: time.Hour}}, Waited: []metadata.WaitedFigures{{Database: "flights", Seconds: 14.25}, {Database: "users"}}, Captures: []metadata.CaptureFigures{{Shard: "shard-a", Silence: 2}, {Shard: "shard-b", Silence: 400}}},
		Leases:     []metadata.LeaseRow{{Lease: metadata.Lease{Shard: "shard-b", Holder: "migration 7", Mode: metadata.SharedLease, ExpiresAt: noon.Add(time.Minute)}, Since: noon}},
		Stragglers: []metadata.Straggler{{ID: 3, Shard: "shard-a", Placement: 41, Kind: "insert", SeenAt: noon.Add(-time.Minute)}},
		Proxies:    []metadata.Proxy{{ID: "p1", Address: "10.0.0.1:27017"}},
		Runs:       []metadata.Remediation{{Shard: "shard-b", WorkflowID: "remediate/shard-b", Waiting: true, StartedAt: noon.Add(-time.Minute)}},
	}
}

// windows are those of a hundred switches, some of which went back.
func windows() (out []metadata.Window) {
	for i := range 90 {
		out = append(out, metadata.Window{Seconds: 0.11 + float64(i)/1000, Published: true})
	}
	for range 6 {
		out = append(out, metadata.Window{Seconds: 0.4, Published: true})
	}
	for range 4 {
		out = append(out, metadata.Window{Seconds: 1.2})
	}
	return out
}

// fixture is a console whose parts fail when they are told to.
type fixture struct {
	c                 *console.Console
	metaDown, askDown bool
	kafkaDown         bool
	figures           func(*metadata.Figures) // changes them
	now               time.Time
}

func newFixture() *fixture {
	f := &fixture{now: noon}
	f.c = &console.Console{
		Fleet: "db:5432/drover", Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return f.now },
		Temporal: func(id string) string { return "http://ui/workflows/" + id },
		Read: func(context.Context) (console.Snapshot, error) {
			if f.metaDown {
				return console.Snapshot{}, errors.New("connection refused")
			}
			s := busyFleet()
			if f.figures != nil {
				f.figures(&s.Figures)
			}
			return s, nil
		},
		Ask: func(context.Context, chunk.ID) (contract.Status, error) {
			if f.askDown {
				return contract.Status{}, errors.New("no worker")
			}
			return contract.Status{Step: "copy slices", WaitingFor: "the loaders"}, nil
		},
		Parts: []console.Part{{Name: "Kafka", Address: "k:9092", Without: "nothing is captured", Check: func(context.Context) error {
			if f.kafkaDown {
				return errors.New("dial k:9092: refused")
			}
			return nil
		}}},
	}
	return f
}

// get asks for a page, later than anything that was asked before.
func (f *fixture) get(t *testing.T, method, path string) (int, string) {
	t.Helper()

	f.now = f.now.Add(time.Minute)
	srv := httptest.NewServer(f.c.Handler())
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, nil)
	require.NoError(t, err)
	res, err := srv.Client().Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

func TestPageShowsTheFleet(t *testing.T) {
	t.Parallel()

	code, body := newFixture().get(t, http.MethodGet, "/")
	require.Equal(t, http.StatusOK, code)
	for _, want := range []string{
		"shard-a", "7.0.4, 3 members", "users/0001", "importing to shard-b", "25%", "15s", "the loaders", "copy slices",
		`href="http://ui/workflows/migrate/flights/0001"`, "drained 30.0", "50.0 ms", "migration 7", "Stragglers: writes", "p41", "waits for the lease",
		"p1 at 10.0.0.1:27017", "&lt;ann&gt;", "2 chunks, 150.5 requests/s", "<u>120.0</u>", "moving hot", "chunk kept",
		"depend on it: importing of flights/0001, way back of users/0002", "96 published, 4 went back; of the published: p50 157 ms, p99 400 ms, longest 400 ms",
		"flights 14.25 s, users 0.00 s",
		"CaptureSilent", "Nothing has been captured of shard-b for 400 s",
	} {
		require.Contains(t, body, want)
	}
	require.NotContains(t, body, "ZgotmplZ", "a value was refused by the template")
	require.NotContains(t, body, "<script")
	require.NotContains(t, body, `class="part down"`)
}

// With a part of the stack down the page says which, and what does not work then.
func TestPageWithPartsDown(t *testing.T) {
	t.Parallel()

	f := newFixture()
	f.kafkaDown, f.askDown = true, true
	_, body := f.get(t, http.MethodGet, "/")
	require.Contains(t, body, "dial k:9092: refused")
	require.Contains(t, body, "Meanwhile: nothing is captured")
	require.Contains(t, body, "its workflow does not answer")

	f.metaDown = true
	_, body = f.get(t, http.MethodGet, "/")
	require.Contains(t, body, "The metadata does not answer:</strong> connection refused")
	require.Contains(t, body, "What follows is 2m1s old")
	require.Contains(t, body, "flights/0001", "what was read before is shown")

	blind := newFixture()
	blind.metaDown = true
	code, body := blind.get(t, http.MethodGet, "/")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "Nothing of the fleet is known before it does")
}

// Nothing can be changed, and the same is there as JSON.
func TestReadOnlyAndJSON(t *testing.T) {
	t.Parallel()

	f := newFixture()
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		code, _ := f.get(t, method, "/")
		require.Equal(t, http.StatusMethodNotAllowed, code, method)
	}
	code, _ := f.get(t, http.MethodGet, "/etc/passwd")
	require.Equal(t, http.StatusNotFound, code)
	_, body := f.get(t, http.MethodGet, "/fleet.json")
	var page console.Page
	require.NoError(t, json.Unmarshal([]byte(body), &page))
	require.Equal(t, 25, page.Moves[0].Percent)
	require.Equal(t, "15s", page.Moves[0].ETA)
	require.Equal(t, chunk.ID("flights/0001"), page.Shards[1].Arriving[0].ID)
	require.True(t, page.Shards[1].Silent)
	require.False(t, page.Shards[0].Silent)
	require.InDelta(t, 150.5, page.Shards[0].Heat, 1e-9)
	require.InDelta(t, 0.43, *page.Shards[0].CPU, 1e-9)
	require.Nil(t, page.Shards[1].CPU, "it is not known")
	_, body = f.get(t, http.MethodGet, "/")
	require.Contains(t, body, "150.5 requests/s, 43 % of its CPU, 2.5 ms a write")
	require.Equal(t, []int{0, 0, 90, 0, 6, 0, 4, 0}, counts(page.Windows))
}

// counts are the heights of a histogram.
func counts(h console.Histogram) (out []int) {
	for _, b := range h.Buckets {
		out = append(out, b.Published+b.WentBack)
	}
	return out
}

// Alertmanager's alarms are shown where there is one; when it does not answer, that is
// said, and what the metadata shows by itself is there.
func TestAlarms(t *testing.T) {
	t.Parallel()

	broken := false
	manager := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken || r.URL.Path != "/api/v2/alerts" || r.URL.Query().Get("silenced") != "false" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, `[{"labels": {"alertname": "MovePausedLong", "severity": "ticket"}, "startsAt": "2026-03-01T08:00:00Z",
			"annotations": {"summary": "The move of <f/1> has been paused", "runbook_url": "docs/alarms.md#movepausedlong"}},
			{"labels": {"alertname": "WorkersGone", "severity": "page"}, "startsAt": "2026-03-01T11:00:00Z", "annotations": {}}]`)
	}))
	defer manager.Close()
	f := newFixture()
	f.c.Alarms = console.Alertmanager(manager.URL + "/")
	_, body := f.get(t, http.MethodGet, "/")
	require.Contains(t, body, "The move of &lt;f/1&gt; has been paused")
	require.Contains(t, body, "as Alertmanager has them")
	require.Contains(t, body, "4h1m0s")
	require.Less(t, strings.Index(body, "WorkersGone"), strings.Index(body, "MovePausedLong"), "pages come first")
	require.NotContains(t, body, "CaptureSilent", "Alertmanager knows better")

	broken = true
	_, body = f.get(t, http.MethodGet, "/")
	require.Contains(t, body, "it answers 503")
	require.Contains(t, body, "CaptureSilent")
	f.metaDown = true
	_, body = f.get(t, http.MethodGet, "/")
	require.Contains(t, body, "MetadataUnreadable")
}

// alertRules is the text of deploy/alerts.
func alertRules(t testing.TB) string {
	t.Helper()
	files, err := filepath.Glob("../../deploy/alerts/*.yml")
	require.NoError(t, err)
	var rules strings.Builder
	for _, name := range files {
		b, err := os.ReadFile(name) //nolint:gosec // of this repository
		require.NoError(t, err)
		rules.Write(b)
	}
	return rules.String()
}

// What the console calls an alarm is one of those in deploy/alerts, of that severity.
func TestAlarmsOfTheMetadataAreRules(t *testing.T) {
	t.Parallel()

	f := newFixture()
	f.figures = func(x *metadata.Figures) {
		x.Overdue = time.Minute
		x.Stragglers = map[string]int64{"shard-a": 2}
		x.Moves = []metadata.MoveFigures{{Chunk: "flights/0001", Attention: "look", Mismatches: 1}}
		x.Leases = []metadata.LeaseFigures{{Shard: "shard-a", Holder: "ann", Left: -400}}
	}
	_, body := f.get(t, http.MethodGet, "/fleet.json")
	var page console.Page
	require.NoError(t, json.Unmarshal([]byte(body), &page))
	require.Len(t, page.Alarms, 6)
	rules := alertRules(t)
	for _, a := range page.Alarms {
		_, rule, ok := strings.Cut(rules, "- alert: "+a.Name+"\n")
		require.True(t, ok, a.Name)
		rule, _, _ = strings.Cut(rule, "- alert: ")
		require.Contains(t, rule, "severity: "+a.Severity, a.Name)
		require.Contains(t, rule, a.Runbook)
	}
}

// The console calls something an alarm exactly where the rule does.
func TestAlarmsOfTheMetadataHaveTheBoundsOfTheRules(t *testing.T) {
	t.Parallel()

	rules := alertRules(t)
	for name, show := range map[string]func(*metadata.Figures, float64){
		"FencePastDeadline": func(x *metadata.Figures, v float64) { x.Overdue = time.Duration(v * float64(time.Second)) },
		"CaptureSilent": func(x *metadata.Figures, v float64) {
			x.Captures = []metadata.CaptureFigures{{Shard: "shard-a", Silence: v}}
		},
		"LeaseExpired": func(x *metadata.Figures, v float64) {
			x.Leases = []metadata.LeaseFigures{{Shard: "shard-a", Holder: "ann", Left: v}}
		},
	} {
		m := regexp.MustCompile(`alert: ` + name + `\n +expr: .*? ([<>]) (-?\d+)`).FindStringSubmatch(rules)
		require.NotNil(t, m, name)
		bound, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		beyond := map[string]float64{"<": bound - 1, ">": bound + 1}[m[1]]
		for value, on := range map[float64]bool{bound: false, beyond: true} {
			f := newFixture()
			f.figures = func(x *metadata.Figures) {
				*x = metadata.Figures{}
				show(x, value)
			}
			_, body := f.get(t, http.MethodGet, "/fleet.json")
			require.Equal(t, on, strings.Contains(body, `"name": "`+name+`"`), "%s at %v: %s", name, value, body)
		}
	}
}
