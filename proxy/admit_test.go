package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/upstream"
	"drover/proxy/wire"
)

// policies is a metadata of policies in memory.
type policies struct {
	mu  sync.Mutex
	all map[string][]byte
}

// Policies implements [Policies].
func (p *policies) Policies(context.Context) (map[string][]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string][]byte{}
	for name, text := range p.all {
		out[name] = text
	}
	return out, nil
}

// ruled runs a proxy over a fake shard with two databases of two chunks, one of
// which has a policy.
func ruled(t *testing.T, policy string, cfg Config) (*fakeShard, *policies, *Proxy) {
	t.Helper()
	f, s := newFakeFleet(t, 2, testDatabase, "hotels")
	s.answers(func(cmd bson.Raw) bson.D {
		if cmd.Lookup("find").Type != 0 {
			return emptyCursorReply()
		}
		return bson.D{{Key: "n", Value: 1}, {Key: "ok", Value: 1.0}}
	})
	ports := f.ports()
	all := &policies{all: map[string][]byte{testDatabase: []byte(policy)}}
	ports.Policies = all
	cfg.ID = "proxy-1"
	p := New(cfg, ports)
	f.run(p)
	return s, all, p
}

// findIn makes a find on a database.
func findIn(database string, filter bson.D, more ...bson.E) bson.D {
	return append(bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: filter}, {Key: "$db", Value: database}}, more...)
}

// requireRefused wants a refusal with a code that says something.
func requireRefused(t *testing.T, reply bson.Raw, code int32, says string) {
	t.Helper()
	require.InDelta(t, 0, reply.Lookup("ok").Double(), 0, "%s", reply)
	require.Equal(t, code, reply.Lookup("code").Int32(), "%s", reply)
	require.Contains(t, reply.Lookup("errmsg").StringValue(), says)
}

func TestQuotaOfOneDatabaseLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()

	s, all, p := ruled(t, `{"ops_per_second": 0.01, "ops_burst": 2}`, Config{})
	c := dialRaw(t, p)
	key := bson.D{{Key: "origin", Value: "x"}}
	for range 2 {
		require.InDelta(t, 1, c.run(findIn(testDatabase, key)).Lookup("ok").Double(), 0)
	}
	asked := len(s.seen())
	reply := c.run(findIn(testDatabase, key))
	requireRefused(t, reply, 462, "ops_per_second")
	labels, err := reply.Lookup("errorLabels").Array().Values()
	require.NoError(t, err)
	var got []string
	for _, l := range labels {
		got = append(got, l.StringValue())
	}
	require.Equal(t, []string{"SystemOverloadedError", "RetryableError", "NoWritesPerformed"}, got)
	require.Len(t, s.seen(), asked, "a refused request reached the shard")
	for range 50 {
		require.InDelta(t, 1, c.run(findIn("hotels", key)).Lookup("ok").Double(), 0)
	}

	all.mu.Lock()
	all.all[testDatabase] = []byte(`{"ops_per_secnd": 1}`)
	all.mu.Unlock()
	p.readControl(t.Context())
	requireRefused(t, c.run(findIn(testDatabase, key)), 462, "ops_per_second")
	all.mu.Lock()
	delete(all.all, testDatabase)
	all.mu.Unlock()
	p.readControl(t.Context())
	require.InDelta(t, 1, c.run(findIn(testDatabase, key)).Lookup("ok").Double(), 0)
}

func TestRulesOfAPolicy(t *testing.T) {
	t.Parallel()

	s, _, p := ruled(t, `{"scatter": "bounded", "need_index": true, "default_max_time_ms": 70000}`, Config{})
	c := dialRaw(t, p)
	key, other := bson.D{{Key: "origin", Value: "x"}}, bson.D{{Key: "_id", Value: 1}}
	require.InDelta(t, 1, c.run(findIn(testDatabase, key, bson.E{Key: "hint", Value: "origin_1"})).Lookup("ok").Double(), 0)
	limit := s.seen()[0].Lookup("maxTimeMS").AsInt64()
	require.Positive(t, limit)
	require.LessOrEqual(t, limit, int64(70000))
	asked := len(s.seen())
	requireRefused(t, c.run(findIn(testDatabase, other)), 72, "rule scatter")
	requireRefused(t, c.run(findIn(testDatabase, bson.D{{Key: "origin", Value: "x"}, {Key: "n", Value: 1}})), 72, "rule need_index")
	requireRefused(t, c.run(bson.D{
		{Key: "delete", Value: "legs"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}, {Key: "$db", Value: testDatabase},
	}), 72, "rule scatter")
	requireRefused(t, c.run(bson.D{
		{Key: "aggregate", Value: "legs"},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "n", Value: 1}}}}}},
		{Key: "cursor", Value: bson.D{}},
		{Key: "$db", Value: testDatabase},
	}), 72, "rule scatter")
	require.Len(t, s.seen(), asked, "a refused request reached a shard")
	require.InDelta(t, 1, c.run(findIn(testDatabase, other, bson.E{Key: "limit", Value: 5})).Lookup("ok").Double(), 0)
	require.InDelta(t, 1, c.run(findIn("hotels", other)).Lookup("ok").Double(), 0)
}

func TestIndexesServeFilters(t *testing.T) {
	t.Parallel()

	ix := raw(t, bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}}})
	c := &collection{leads: leadsOf(chunk.Collection{Indexes: []bson.Raw{ix}})}
	a, b := bson.D{{Key: "a", Value: 1}}, bson.D{{Key: "b", Value: 1}}
	for _, doc := range []bson.D{a, {{Key: "_id", Value: 1}}, {{Key: "$and", Value: bson.A{b, a}}}, {{Key: "$or", Value: bson.A{a, a}}}} {
		require.True(t, c.indexed(raw(t, doc)), "%v", doc)
	}
	for _, doc := range []bson.D{b, {}, {{Key: "$or", Value: bson.A{a, b}}}, {{Key: "$expr", Value: a}}, {{Key: "$nor", Value: bson.A{a}}}} {
		require.False(t, c.indexed(raw(t, doc)), "%v", doc)
	}
}

func TestBreakerOfADeadShard(t *testing.T) {
	t.Parallel()

	f, s := newFakeFleet(t, 1)
	f.shards["shard-a"] = Shard{Shard: chunk.Shard{Name: "shard-a", URI: "mongodb://127.0.0.1:1/?directConnection=true"}}
	p := f.start(Config{ShardWait: 50 * time.Millisecond})
	c := dialRaw(t, p)
	require.Eventually(t, func() bool {
		reply := c.run(findIn(testDatabase, bson.D{{Key: "origin", Value: "x"}}))
		require.EqualValues(t, 6, reply.Lookup("code").Int32())
		return strings.Contains(reply.Lookup("errmsg").StringValue(), "nothing is sent there")
	}, waitFor, tick, "the breaker did not open")
	require.Empty(t, s.seen())
	var state string
	p.pools.each(func(pool *upstream.Pool) { state = pool.Gate().State().Breaker })
	require.Equal(t, "open", state)
}

func TestSlowRequestsAreLoggedWithoutValues(t *testing.T) {
	t.Parallel()

	out := &syncWriter{w: &bytes.Buffer{}}
	reg := prometheus.NewRegistry()
	_, _, p := ruled(t, `{}`, Config{SlowAfter: time.Nanosecond, Log: slog.New(slog.NewJSONHandler(out, nil)), Registerer: reg})
	c := dialRaw(t, p)
	secret := "a-value"
	c.run(findIn(testDatabase, bson.D{{Key: "origin", Value: secret}, {Key: "n", Value: bson.D{{Key: "$in", Value: bson.A{secret, 5}}}}},
		bson.E{Key: "sort", Value: bson.D{{Key: "x", Value: 1}}}))
	c.run(bson.D{{Key: "update", Value: "legs"}, {Key: "$db", Value: testDatabase}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "origin", Value: secret}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "y", Value: secret}}}}},
	}}}})
	c.run(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
	out.mu.Lock()
	text := out.w.String()
	out.mu.Unlock()
	require.NotContains(t, text, secret)
	var found map[string]any
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Contains(line, "slow request") && strings.Contains(line, `"find"`) {
			require.NoError(t, json.Unmarshal([]byte(line), &found))
		}
	}
	require.Equal(t, "find legs filter {origin:? n:{$in:?}} sort {x:?}", found["shape"])
	for _, part := range []string{"took", "queue", "hold", "upstream", "merge"} {
		require.Contains(t, found, part)
	}
	shapes := p.Shapes(10)
	require.Len(t, shapes, 2)
	for _, s := range shapes {
		require.Equal(t, testDatabase, s.Database)
		require.EqualValues(t, 1, s.Count)
	}
	require.Contains(t, shapes[0].Shape+shapes[1].Shape, "update legs q {origin:?} u {$set:{y:?}}")
	_, err := reg.Gather()
	require.NoError(t, err)
}

func TestCallersAreLearned(t *testing.T) {
	t.Parallel()

	s := newEnvelopes()
	p := &Proxy{envelopes: s}
	lsid := make([]byte, 16)
	request := func(number int64, at time.Time) *request {
		q := &request{client: &client{user: "shop", app: "till"}, cmd: &wire.Command{LSID: lsid, TxnNumber: number, HasTxnNumber: number > 0}, start: at}
		return q
	}
	update := &command{name: "update", writes: true}
	late := refuse(codeExceededTimeLimit, "late").labelled(labelRetryableWrite)
	now := time.Now()
	s.note(request(0, now), update, 3, nil)
	limited := request(1, now)
	limited.cmd.MaxTimeMS = 250
	s.note(limited, update, 1, late)
	s.note(request(1, now.Add(40*time.Minute)), update, 1, late) // far beyond what this test takes
	s.note(request(1, now.Add(90*time.Minute)), update, 1, nil)
	s.note(request(2, now), update, 1, late)
	s.note(request(0, now), &command{name: "ping"}, 0, nil)
	s.sweep(time.Now().Add(time.Minute))
	got := p.Envelopes()
	require.Len(t, got, 1)
	e := got[0]
	require.Equal(t, []int64{5, 1, 1, 250, 3, 2, 1}, []int64{e.Writes, e.Unnumbered, e.Deadlines, e.ShortestMS, e.Refused, e.Returned, e.GaveUp})
	require.Equal(t, []int64{5, 7, 1}, []int64{e.Requests, e.Chunks, e.Scattered})
	minute := time.Minute.Milliseconds()
	require.InDelta(t, 90*minute, e.PatienceMS, float64(5*minute))
	require.InDelta(t, 40*minute, e.SoonestMS, float64(5*minute))
	require.Equal(t, "till", e.App)

	// Alarms end when an application is mended: what they rest on is counted, and no share of all that ever was.
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(callerCollector{p})
	families, err := r.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, f := range families {
		counted[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
	}
	require.InDelta(t, 5, counted["drover_proxy_caller_writes_total"], 0)
	require.InDelta(t, 1, counted["drover_proxy_caller_unnumbered_writes_total"], 0)
}
