package proxy

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// A shard that holds many chunks is asked for a few of them at a time: a request
// to all of them once took as many connections as it could get.
func TestScatterIsBoundedPerShard(t *testing.T) {
	t.Parallel()

	var mu sync.Mutex
	met := sync.NewCond(&mu)
	running, most, total := map[string]int{}, 0, 0
	f, _, _ := newScripted(t, 32, func(s *sent) bson.D {
		mu.Lock()
		defer mu.Unlock()
		running[s.shard]++
		total++
		most = max(most, running[s.shard])
		met.Broadcast()
		// As many at once as can be: each waits for others as long as others may come.
		for running[s.shard] < maxPerShard && total < 32 && most < maxPerShard {
			met.Wait()
		}
		running[s.shard]--
		return batchReply(s.db + ".legs")
	})
	c := dialRaw(t, f.start(Config{}))
	got := c.run(bson.D{{Key: "find", Value: "legs"}, {Key: "$db", Value: testDatabase}})
	require.Equal(t, int64(1), numberAt(got, "ok"), "%v", got)
	require.Equal(t, 32, total)
	require.Equal(t, maxPerShard, most)
}

// A count of more chunks than there are connections waited for its own ones, and several
// for each other's.
func TestGatheredAnswersHoldNoConnection(t *testing.T) {
	t.Parallel()

	f, _, _ := newScripted(t, 8, func(*sent) bson.D { return bson.D{{Key: "n", Value: 2}} })
	c := dialRaw(t, f.start(Config{ShardConns: 1}))
	got := c.run(bson.D{{Key: "count", Value: "legs"}, {Key: "$db", Value: testDatabase}})
	require.Equal(t, int64(16), numberAt(got, "n"), "%v", got)
}

// What several chunks have together may be too large for one reply.
func TestDistinctValuesFitIntoAReply(t *testing.T) {
	t.Parallel()

	half := strings.Repeat("x", wire.MaxDocument/2)
	f, _, _ := newScripted(t, 2, func(s *sent) bson.D { return bson.D{{Key: "values", Value: bson.A{s.db + half}}} })
	got := dialRaw(t, f.start(Config{})).run(bson.D{{Key: "distinct", Value: "legs"}, {Key: "key", Value: "a"}, {Key: "$db", Value: testDatabase}})
	require.Equal(t, codeDistinctTooBig, codeOf(got))
}
