package proxy

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// What a client says about itself, or as if it were a member of a cluster, does
// not reach a shard.
func TestFieldsOfOthers(t *testing.T) {
	t.Parallel()

	var mu sync.Mutex
	var last bson.Raw
	f, _, _ := newScripted(t, 2, func(s *sent) bson.D {
		mu.Lock()
		defer mu.Unlock()
		last = s.body
		return batchReply(s.db + ".legs")
	})
	key := f.keysOf(1)[firstChunk][0]
	c := dialRaw(t, f.start(Config{}))
	find := func(e ...bson.E) bson.Raw {
		cmd := bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: bson.D{{Key: "origin", Value: key}}}}
		return c.run(append(append(cmd, e...), bson.E{Key: "$db", Value: testDatabase}))
	}
	for _, name := range []string{"$audit", "$impersonatedUsers", "$impersonatedRoles", "shardVersion", "databaseVersion", "fromMongos", "mayBypassWriteBlocking", "$configServerState"} {
		require.Equal(t, codeInvalidOptions, codeOf(find(bson.E{Key: name, Value: bson.A{}})), name)
	}
	require.Nil(t, last)
	got := find(
		bson.E{Key: "$client", Value: bson.D{{Key: "application", Value: "me"}}}, bson.E{Key: "$clusterTime", Value: bson.D{}}, bson.E{Key: "$readPreference", Value: bson.D{}},
		bson.E{Key: "comment", Value: bson.D{{Key: "drover", Value: bson.D{{Key: "chunk", Value: "forged"}}}}}, bson.E{Key: "hint", Value: "x"},
	)
	require.Equal(t, int64(1), numberAt(got, "ok"), "%v", got)
	elements, err := last.Elements()
	require.NoError(t, err)
	var names []string
	for _, e := range elements {
		names = append(names, e.Key())
	}
	require.Equal(t, []string{"find", "filter", "hint", "comment", "$db"}, names)
	require.Equal(t, string(firstChunk), last.Lookup("comment", "drover", "chunk").StringValue())
	require.Equal(t, "forged", last.Lookup("comment", "app", "drover", "chunk").StringValue())
}
