package proxy

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// regions is a fleet with a shard and a proxy in each of two regions; the first half
// of the key space lives in the first one.
func regions(t *testing.T) (f *fleet, shards [2]*fakeShard, proxies [2]*Proxy) {
	t.Helper()
	f, shards[0] = newFakeFleet(t, 0)
	shards[1] = newFakeShard(t)
	f.shards["shard-b"] = Shard{Shard: chunk.Shard{Name: "shard-b", URI: fmt.Sprintf("mongodb://%s/?directConnection=true", shards[1].listener.Addr())}}
	for i, r := range chunk.Hashed.Split(2) {
		f.route(i+1, r, []string{"shard-a", "shard-b"}[i])
	}
	for i, region := range []string{"eu", "us"} {
		proxies[i] = f.start(Config{ID: "proxy-" + region, Region: region})
		shards[i].answers(func(bson.Raw) bson.D { return emptyCursorReply() })
	}
	return f, shards, proxies
}

// Whatever proxy a request reaches, it goes from there to the shard of the data's
// region, in one hop: no other proxy sees it.
func TestRequestTakesOneHopToItsRegion(t *testing.T) {
	t.Parallel()

	f, shards, proxies := regions(t)
	var accepted [2]int32
	for from, p := range proxies {
		c := dialRaw(t, p)
		accepted[from]++
		for to, s := range shards {
			before, other := len(s.seen()), len(shards[1-to].seen())
			key := f.keysOf(1)[chunk.NewID(testDatabase, to+1)][0]
			r := c.run(findIn(testDatabase, bson.D{{Key: "origin", Value: key}}))
			require.InDelta(t, 1, r.Lookup("ok").Double(), 0, "%v", r)
			require.Len(t, s.seen(), before+1, "from %s to %d", p.cfg.ID, to)
			require.Len(t, shards[1-to].seen(), other, "the other region is not asked")
		}
	}
	for i, p := range proxies {
		require.Equal(t, accepted[i], countClients(p), "%s is reached by applications only", p.cfg.ID)
	}
}

// countClients gives how many connections a proxy has taken since it runs.
func countClients(p *Proxy) int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int32(len(p.clients))
}

// A shard whose address is a proxy's is not asked for data: proxies are never chained.
func TestProxyIsNoShard(t *testing.T) {
	t.Parallel()

	f, _, proxies := regions(t)
	f.mu.Lock()
	f.shards["shard-b"] = Shard{Shard: chunk.Shard{Name: "shard-b", URI: fmt.Sprintf("mongodb://%s/?directConnection=true", proxies[1].Addr())}}
	f.mu.Unlock()
	p := f.start(Config{ID: "proxy-wrong", ShardWait: 300 * time.Millisecond})
	key := f.keysOf(1)[chunk.NewID(testDatabase, 2)][0]
	r := dialRaw(t, p).run(findIn(testDatabase, bson.D{{Key: "origin", Value: key}}))
	require.Contains(t, r.String(), "shard-b cannot be reached")
}

// A person sees which proxy answers, and where it stands.
func TestHelloAndMetricsNameTheRegion(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 1)
	registry := prometheus.NewRegistry()
	p := f.start(Config{ID: "proxy-eu", Region: "eu", Registerer: registry})
	r := dialRaw(t, p).run(bson.D{{Key: "hello", Value: 1}, {Key: "$db", Value: "admin"}})
	require.Equal(t, "proxy-eu", r.Lookup("drover", "proxy").StringValue())
	require.Equal(t, "eu", r.Lookup("drover", "region").StringValue())
	all, err := registry.Gather()
	require.NoError(t, err)
	found := false
	for _, m := range all {
		if m.GetName() == "drover_proxy_info" {
			found = true
			require.Equal(t, "eu", m.GetMetric()[0].GetLabel()[1].GetValue())
		}
	}
	require.True(t, found)
}
