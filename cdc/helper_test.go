package cdc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/internal/testkit"
)

// positions is the store of a test: one value and one epoch for each shard.
type positions struct {
	mu     sync.Mutex
	epochs map[string]int64
	values map[string][]byte
	broken error // what every call returns
}

func newPositions() *positions {
	return &positions{epochs: map[string]int64{}, values: map[string][]byte{}}
}

func (p *positions) Take(_ context.Context, shard string) (int64, []byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return 0, nil, p.broken
	}
	p.epochs[shard]++
	return p.epochs[shard], p.values[shard], nil
}

func (p *positions) Save(_ context.Context, shard string, epoch int64, value []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return p.broken
	}
	if epoch != p.epochs[shard] {
		return failure.New(failure.Lost, "capture.position_taken", "epoch %d of %s is over", epoch, shard)
	}
	p.values[shard] = value
	return nil
}

// of decodes the saved position of shard; ok is false when there is none.
func (p *positions) of(t testing.TB, shard string) (cdc.Position, bool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.values[shard] == nil {
		return cdc.Position{}, false
	}
	pos, err := cdc.DecodePosition(p.values[shard])
	require.NoError(t, err)
	return pos, true
}

// stragglers keeps what was reported.
type stragglers struct {
	mu     sync.Mutex
	seen   map[int64]cdc.Straggler
	broken int // how often it fails yet
}

func (s *stragglers) Report(_ context.Context, one cdc.Straggler) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken--; s.broken >= 0 {
		return errors.New("no connection")
	}
	if s.seen == nil {
		s.seen = map[int64]cdc.Straggler{}
	}
	s.seen[one.Seq] = one
	return nil
}

func (s *stragglers) Withdraw(_ context.Context, r cdc.Reprieve) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq, one := range s.seen {
		if one.Placement == r.Placement && seq > r.From && seq < r.To {
			delete(s.seen, seq)
		}
	}
	return nil
}

// list gives what was reported.
func (s *stragglers) list() []cdc.Straggler {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []cdc.Straggler
	for _, one := range s.seen {
		out = append(out, one)
	}
	return out
}

// bundle is a shard, a Kafka and a capture between them.
type bundle struct {
	name       string
	shard      *testkit.ShardServer
	client     *mongo.Client
	brokers    []string
	positions  *positions
	stragglers *stragglers
	log        *cdc.Log
}

// connect gives a client of the shard.
func connect(t testing.TB, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) })
	return client
}

// setup starts a shard of the test's own and takes kafka, or a fake of it when
// that is nil.
func setup(t testing.TB, kafka []string) *bundle {
	t.Helper()
	b := &bundle{name: "t" + bson.NewObjectID().Hex(), positions: newPositions(), stragglers: &stragglers{}, brokers: kafka}
	if b.brokers == nil {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		b.brokers = cluster.ListenAddrs()
	}
	b.shard = testkit.Shard(t)
	b.client = connect(t, b.shard.AdminURI())
	var err error
	b.log, err = cdc.NewLog(b.brokers)
	require.NoError(t, err)
	t.Cleanup(b.log.Close)
	return b
}

// capture gives a capture that works fast.
func (b *bundle) capture(stops *stoppoint.Points) *cdc.Capture {
	return &cdc.Capture{
		Shard: b.name, Client: b.client, Brokers: b.brokers, Positions: b.positions, Stragglers: b.stragglers,
		Logger: slog.New(slog.NewTextHandler(testWriter{}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Stops:  stops,
		Settings: cdc.CaptureSettings{
			HeartbeatEvery: 50 * time.Millisecond, SaveEvery: 20 * time.Millisecond, Await: 50 * time.Millisecond,
		},
	}
}

// testWriter shows what is logged when DROVER_TEST_LOG is set.
type testWriter struct{}

func (testWriter) Write(p []byte) (int, error) {
	if os.Getenv("DROVER_TEST_LOG") != "" {
		return os.Stderr.Write(p)
	}
	return len(p), nil
}

// running is a capture that runs.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// start runs a capture until the test's end or stop.
func start(t testing.TB, c *cdc.Capture) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = c.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// stop ends it and gives its error.
func (r *running) stop() error {
	r.cancel()
	<-r.done
	return r.err
}

// begun waits until the shard's log has a beginning.
func (b *bundle) begun(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		p, ok := b.positions.of(t, b.name)
		return ok && !p.Start.IsZero()
	}, time.Minute, time.Millisecond)
}

// marker inserts a marker and gives its key.
func (b *bundle) marker(t testing.TB, m chunk.Marker) string {
	t.Helper()
	b.begun(t)
	body, err := bson.Marshal(m)
	require.NoError(t, err)
	doc := append(bson.D{{Key: "_id", Value: m.Key()}}, decode(t, body)...)
	_, err = b.client.Database(chunk.SystemDatabase).Collection(chunk.MarkersCollection).InsertOne(t.Context(), doc)
	require.NoError(t, err)
	return m.Key()
}

// decode gives a document's fields.
func decode(t testing.TB, raw bson.Raw) bson.D {
	t.Helper()
	var d bson.D
	require.NoError(t, bson.Unmarshal(raw, &d))
	return d
}

// rounds gives each marker of a test another key.
var rounds struct {
	sync.Mutex
	n int64
}

// seam writes a marker and waits until it is in every partition.
func (b *bundle) seam(t testing.TB) []cdc.Seam {
	t.Helper()
	rounds.Lock()
	rounds.n++
	m := chunk.Marker{Kind: chunk.ValidateMarker, Migration: 1, Round: rounds.n, At: time.Now()}
	rounds.Unlock()
	return b.find(t, b.marker(t, m))
}

// find waits until a marker is in every partition.
func (b *bundle) find(t testing.TB, key string) []cdc.Seam {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seams []cdc.Seam
	var err error
	require.Eventually(t, func() bool {
		seams, err = b.log.FindMarker(ctx, b.name, key, nil)
		return err == nil || ctx.Err() != nil
	}, 2*time.Minute, 20*time.Millisecond)
	require.NoError(t, err)
	return seams
}

// read gives what a lane of each partition accepts, up to the seams.
func (b *bundle) read(t testing.TB, to []cdc.Seam) [][]*event.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := make([][]*event.Event, len(to))
	for p, seam := range to {
		var counter event.Counter
		err := b.log.Follow(ctx, b.name, int32(p), 0, &counter, func(offset int64, e *event.Event) error {
			if e != nil {
				out[p] = append(out[p], e)
				if e.Seq >= seam.Seq {
					return cdc.ErrStop
				}
			}
			return nil
		})
		require.NoError(t, err, "partition %d", p)
	}
	return out
}

// changes gives the events on documents of all partitions by _id.
func changes(all [][]*event.Event) map[string][]*event.Event {
	out := map[string][]*event.Event{}
	for _, events := range all {
		for _, e := range events {
			if e.Op.OnDocument() {
				key := fmt.Sprintf("%s.%s/%s", e.Database, e.Collection, e.ID())
				out[key] = append(out[key], e)
			}
		}
	}
	return out
}

// cut drops the front of a bundle's log before some offsets, as retention does, and gives
// the log anew: the bundle's may still hold what was cut.
func (b *bundle) cut(t testing.TB, before []int64) *cdc.Log {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.brokers...))
	require.NoError(t, err)
	defer client.Close()
	var offsets kadm.Offsets
	for p, offset := range before {
		offsets.AddOffset(chunk.Topic(b.name), int32(p), offset, -1)
	}
	deleted, err := kadm.NewClient(client).DeleteRecords(t.Context(), offsets)
	require.NoError(t, err)
	require.NoError(t, deleted.Error())
	fresh, err := cdc.NewLog(b.brokers)
	require.NoError(t, err)
	t.Cleanup(fresh.Close)
	return fresh
}
