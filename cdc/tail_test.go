package cdc_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
)

// written is a captured log that a test writes by itself.
type written struct {
	shard   string
	cluster *kfake.Cluster
	client  *kgo.Client
	log     *cdc.Log
	seq     int64
}

// newWritten makes an empty log of two partitions.
func newWritten(t testing.TB) *written {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	w := &written{shard: "t" + bson.NewObjectID().Hex(), cluster: cluster}
	w.client, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(w.client.Close)
	require.NoError(t, cdc.EnsureTopic(t.Context(), w.client, w.shard, cdc.TopicSettings{Partitions: 2}))
	w.log, err = cdc.NewLog(cluster.ListenAddrs())
	require.NoError(t, err)
	t.Cleanup(w.log.Close)
	return w
}

// add appends n events to partition 0.
func (w *written) add(t testing.TB, n int) {
	t.Helper()
	for range n {
		w.seq++
		value, err := (&event.Event{Seq: w.seq, Prev: w.seq - 1, Op: event.Insert, Database: "d", Document: make([]byte, 1000)}).Encode()
		require.NoError(t, err)
		w.client.Produce(t.Context(), &kgo.Record{Topic: chunk.Topic(w.shard), Value: value}, nil)
	}
	require.NoError(t, w.client.Flush(t.Context()))
}

// readTo reads from an offset until the one before to, and wants every offset once.
func (w *written) readTo(ctx context.Context, from, to int64) error {
	next := from
	return w.log.Read(ctx, w.shard, 0, from, func(offset int64, e *event.Event) error {
		if e == nil {
			return nil
		}
		if offset != next || e.Seq != offset+1 {
			return errors.New("not the next one")
		}
		if next++; next == to {
			return cdc.ErrStop
		}
		return nil
	})
}

// TestLogIsReadOncePerProcess: any number of readers at the end of a log cost one
// connection that fetches, and each of them sees every record once. What is written
// is less than the end keeps: a reader that it has left behind reads by itself.
func TestLogIsReadOncePerProcess(t *testing.T) {
	t.Parallel()

	w := newWritten(t)
	w.add(t, 100)
	var fetchers sync.Map
	w.cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		fetchers.Store(r.(*kmsg.FetchRequest).SessionID, true)
		return nil, nil, false
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const readers, last = 40, 5_100 // 5 MB of 8
	errs := make(chan error, readers)
	var atEnd atomic.Int64
	for range readers {
		go func() {
			first := true
			errs <- w.log.Read(ctx, w.shard, 0, 100, func(offset int64, e *event.Event) error {
				if e == nil && first {
					first = false
					atEnd.Add(1)
				}
				if offset == last-1 && e != nil {
					return cdc.ErrStop
				}
				return nil
			})
		}()
	}
	require.Eventually(t, func() bool { return atEnd.Load() == readers }, time.Minute, time.Millisecond)
	w.add(t, last-100)
	for range readers {
		require.NoError(t, <-errs)
	}
	n := 0
	fetchers.Range(func(any, any) bool { n++; return true })
	require.Less(t, n, 6, "fetch sessions for %d readers", readers)
}

// TestReadersJoinTheEndFromAnywhere: old readers, slow ones and new ones see each
// record once, more of them than the shared end keeps.
func TestReadersJoinTheEndFromAnywhere(t *testing.T) {
	t.Parallel()

	w := newWritten(t)
	w.add(t, 3000)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const last = 33_000 // 30 MB
	errs := make(chan error, 8)
	for i := range 7 {
		go func() { errs <- w.readTo(ctx, int64(i)*500, last) }()
	}
	gate, at := make(chan struct{}), make(chan struct{})
	go func() { // stands still while the end goes on without it
		next := int64(3000)
		errs <- w.log.Read(ctx, w.shard, 0, next, func(offset int64, e *event.Event) error {
			switch {
			case e == nil:
				return nil
			case offset != next:
				return errors.New("not the next one")
			case offset == 3000:
				close(at)
				<-gate
			}
			if next++; next == last {
				return cdc.ErrStop
			}
			return nil
		})
	}()
	w.add(t, 10)
	<-at
	w.add(t, last-3010)
	for range 7 {
		require.NoError(t, <-errs)
	}
	close(gate)
	require.NoError(t, <-errs)
	require.NoError(t, w.readTo(ctx, 0, last))
}

// clients counts the clients of Kafka that are made.
type clients struct{ n atomic.Int64 }

// OnNewClient implements [kgo.HookNewClient].
func (c *clients) OnNewClient(*kgo.Client) { c.n.Add(1) }

// TestStalledReaderIsOpenedAgain gives a reader nothing though there is something:
// it must not wait for ever without a word. One whole test run hung in such a way.
func TestStalledReaderIsOpenedAgain(t *testing.T) {
	t.Parallel()

	w := newWritten(t)
	w.add(t, 10)
	made := &clients{}
	log, err := cdc.NewLog(w.cluster.ListenAddrs(), kgo.WithHooks(made))
	require.NoError(t, err)
	t.Cleanup(log.Close)
	w.log = log
	w.cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		req := r.(*kmsg.FetchRequest)
		if made.n.Load() > 3 || len(req.Topics) == 0 || req.Topics[0].Partitions[0].FetchOffset != 0 {
			return nil, nil, false
		}
		return req.ResponseKind(), nil, true // nothing new, for the reader that was made first
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, w.readTo(ctx, 0, 10))
	require.Greater(t, made.n.Load(), int64(3))
}

// TestRecentMarkersAreFoundInMemory: many moves that look for their start do not
// each open connections for it.
func TestRecentMarkersAreFoundInMemory(t *testing.T) {
	t.Parallel()

	w := newWritten(t)
	w.add(t, 50)
	var sessions sync.Map
	w.cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.cluster.KeepControl()
		sessions.Store(r.(*kmsg.FetchRequest).SessionID, true)
		return nil, nil, false
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 2)
	var atEnd, marked [2]chan struct{}
	for p, from := range []int64{50, 0} {
		atEnd[p], marked[p] = make(chan struct{}), make(chan struct{})
		go func() {
			waits := false
			ended <- w.log.Read(ctx, w.shard, int32(p), from, func(_ int64, e *event.Event) error {
				switch {
				case e != nil:
					close(marked[p])
				case !waits:
					waits = true
					close(atEnd[p])
				}
				return nil
			})
		}()
	}
	<-atEnd[0]
	<-atEnd[1]
	m := chunk.Marker{Kind: chunk.StartMarker, Migration: 9, Placement: 42}
	for p := range int32(2) {
		value, err := (&event.Event{Seq: w.seq + 1, Prev: w.seq, Op: event.Mark, Marker: &m}).Encode()
		require.NoError(t, err)
		w.client.Produce(ctx, &kgo.Record{Topic: chunk.Topic(w.shard), Partition: p, Value: value}, nil)
	}
	require.NoError(t, w.client.Flush(ctx))
	<-marked[0]
	<-marked[1]
	for range 10 {
		seams, err := w.log.FindMarker(ctx, w.shard, m.Key(), nil)
		require.NoError(t, err)
		require.Equal(t, int64(50), seams[0].Offset)
		require.Equal(t, int64(0), seams[1].Offset)
	}
	n := 0
	sessions.Range(func(any, any) bool { n++; return true })
	require.Less(t, n, 8, "fetch sessions for 10 searches")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A record that is no event ends whoever reads up to it, by its own code; what stands
// before it is handed out, and nothing beyond it.
func TestUndecodableRecordStopsItsReaders(t *testing.T) {
	t.Parallel()
	for name, value := range map[string][]byte{"no BSON": []byte("hello"), "empty": nil, "cut": {200, 0, 0, 0, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWritten(t)
			w.add(t, 3)
			w.client.Produce(t.Context(), &kgo.Record{Topic: chunk.Topic(w.shard), Value: value}, nil)
			w.add(t, 2)
			last := int64(-1)
			err := w.log.Read(t.Context(), w.shard, 0, 0, func(offset int64, e *event.Event) error {
				if e != nil {
					last = offset
				}
				return nil
			})
			require.True(t, failure.HasCode(err, "log.bad_record"), "%v", err)
			require.True(t, failure.Is(err, failure.Mismatch), "no retry mends it")
			require.EqualValues(t, 2, last)
			require.NoError(t, w.readTo(t.Context(), 0, 3), "others read what is right")
		})
	}
}
