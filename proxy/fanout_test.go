package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// TestFanOutTellsWhatACutWouldWiden: a request by one value of the shard key is told
// apart from one that is for a single chunk only because there is no other.
func TestFanOutTellsWhatACutWouldWiden(t *testing.T) {
	t.Parallel()

	answer := func(s *sent) bson.D {
		if s.name == "find" {
			return batchReply(s.db + ".legs")
		}
		return bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}}
	}
	db := bson.E{Key: "$db", Value: testDatabase}
	byKey := bson.D{{Key: "origin", Value: "FRA"}}
	find := func(filter bson.D) bson.D {
		return bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: filter}, db}
	}
	insert := func(docs ...any) bson.D {
		return bson.D{{Key: "insert", Value: "legs"}, {Key: "documents", Value: bson.A(docs)}, db}
	}
	update := func(filter bson.D) bson.D {
		u := bson.D{{Key: "q", Value: filter}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}}, {Key: "multi", Value: true}}
		return bson.D{{Key: "update", Value: "legs"}, {Key: "updates", Value: bson.A{u}}, db}
	}
	for name, tc := range map[string]struct {
		chunks int
		cmd    bson.D
		want   chunk.FanOut // of all chunks together
	}{
		"find by key":             {4, find(byKey), chunk.FanOut{Pinned: 1}},
		"find by key, one chunk":  {1, find(byKey), chunk.FanOut{Pinned: 1}},
		"find all":                {4, find(bson.D{}), chunk.FanOut{Wide: map[int]int64{4: 4}}},
		"find all, one chunk":     {1, find(bson.D{}), chunk.FanOut{Wide: map[int]int64{1: 1}}},
		"insert one":              {4, insert(byKey), chunk.FanOut{Pinned: 1}},
		"insert two, one chunk":   {1, insert(byKey, bson.D{{Key: "origin", Value: "CDG"}}), chunk.FanOut{Wide: map[int]int64{1: 1}}},
		"update by key":           {4, update(byKey), chunk.FanOut{Pinned: 1}},
		"update many":             {4, update(bson.D{{Key: "seats", Value: 3}}), chunk.FanOut{Wide: map[int]int64{4: 4}}},
		"update many, one chunk":  {1, update(bson.D{{Key: "seats", Value: 3}}), chunk.FanOut{Wide: map[int]int64{1: 1}}},
		"what concerns no chunks": {1, bson.D{{Key: "ping", Value: 1}, db}, chunk.FanOut{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f, _, _ := newScripted(t, tc.chunks, answer)
			p := f.start(Config{})
			got := dialRaw(t, p).run(tc.cmd)
			require.Equal(t, int64(1), numberAt(got, "ok"), "%v", got)
			var sum chunk.FanOut
			for _, x := range p.traffic(time.Now()) {
				sum.Add(x.FanOut)
			}
			require.Equal(t, tc.want, sum)
		})
	}
}
