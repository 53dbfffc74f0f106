package activities

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/validation"
)

// TestTrailReadsUpToAMarkerOrTheEnd reads what a log says of one database as the
// verification does: up to a marker, on from there to the end, and no further than it is
// told to. The other partition, where nothing of the database can be, is passed over.
func TestTrailReadsUpToAMarkerOrTheEnd(t *testing.T) {
	t.Parallel()

	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	shard := "t" + bson.NewObjectID().Hex()
	require.NoError(t, cdc.EnsureTopic(t.Context(), client, shard, cdc.TopicSettings{Partitions: 2}))
	log, err := cdc.NewLog(cluster.ListenAddrs())
	require.NoError(t, err)
	t.Cleanup(log.Close)

	seq, prev, count := int64(0), [2]int64{}, [2]int64{}
	put := func(p int32, e event.Event) {
		e.Seq, e.Prev, e.Count = seq, prev[p], count[p]
		prev[p] = seq
		if count[p]++; e.Op == event.Mark {
			count[p] = 0
		}
		value, err := e.Encode()
		require.NoError(t, err)
		require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: chunk.Topic(shard), Partition: p, Value: value}).FirstErr())
	}
	own, err := partitionOf("d", 2)
	require.NoError(t, err)
	insert := func(n int) {
		for range n {
			seq++
			put(own, event.Event{Op: event.Insert, Database: "d"})
			seq++
			put(1-own, event.Event{Op: event.Insert, Database: "other"})
		}
	}
	mark := func(round int64) validation.Mark {
		m := chunk.Marker{Kind: chunk.HeartbeatMarker, Round: round}
		seq++
		put(0, event.Event{Op: event.Mark, Marker: &m})
		put(1, event.Event{Op: event.Mark, Marker: &m})
		return validation.Mark{Marker: m}
	}
	insert(7)
	one := mark(1)
	insert(4)
	two := mark(2)
	insert(3)

	trail := trailPort{&cdc.Replay{Log: log}, shard, "d", log.EndOffsets}
	until := func(from validation.Offsets, to validation.Mark, most int) (validation.Offsets, bool, int) {
		n := 0
		next, reached, err := trail.Until(t.Context(), from, to, func(e *event.Event) (bool, error) {
			require.NotEqual(t, "other", e.Database)
			if e.Op.OnDocument() {
				n++
			}
			return n < most, nil
		})
		require.NoError(t, err)
		return next, reached, n
	}
	next, reached, n := until(validation.Offsets{0, 0}, one, 100)
	require.True(t, reached)
	require.Equal(t, 7, n)
	next, reached, n = until(next, two, 100)
	require.True(t, reached)
	require.Equal(t, 4, n)
	next, reached, n = until(next, validation.Mark{}, 100)
	require.True(t, reached)
	require.Equal(t, 3, n)
	_, reached, n = until(next, validation.Mark{}, 100)
	require.True(t, reached, "nothing is left")
	require.Zero(t, n)

	ends, err := log.EndOffsets(t.Context(), shard)
	require.NoError(t, err)
	require.EqualValues(t, ends, next)

	total := 0
	for next, reached = (validation.Offsets{0, 0}), false; !reached; total += n { // two at a time
		next, reached, n = until(next, two, 2)
	}
	require.Equal(t, 11, total)
}
