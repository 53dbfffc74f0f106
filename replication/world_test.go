package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/event"
	"drover/internal/testkit"
)

// errDied takes the place of a process's death at a stop point.
var errDied = errors.New("died here")

// fakeLog is a captured log in memory, numbered as capture numbers.
type fakeLog struct {
	mu     sync.Mutex
	seq    int64
	parts  []*fakePartition
	reads  atomic.Int64
	repeat int // each read begins so many records early, as a log with repetitions would
	spread event.Spread
}

type fakePartition struct {
	records []*event.Event
	last    int64
	count   int64
	more    chan struct{}
}

func newFakeLog(partitions int) *fakeLog {
	l := &fakeLog{spread: event.ByDocument}
	for range partitions {
		l.parts = append(l.parts, &fakePartition{more: make(chan struct{})})
	}
	return l
}

// add numbers an event and appends it where it belongs.
func (l *fakeLog) add(t testing.TB, e event.Event) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.Seq = l.seq
	if e.Wall.IsZero() {
		e.Wall = time.Now()
	}
	for p, part := range l.parts {
		if !e.Broadcast() {
			at, err := e.Partition(int32(len(l.parts)), l.spread)
			require.NoError(t, err)
			if int(at) != p {
				continue
			}
		}
		r := e
		r.Prev, part.last = part.last, e.Seq
		if e.Op == event.Mark {
			r.Count, part.count = part.count, 0
		} else {
			part.count++
		}
		b, err := r.Encode()
		require.NoError(t, err)
		decoded, err := event.Decode(b)
		require.NoError(t, err)
		part.records = append(part.records, decoded)
		close(part.more)
		part.more = make(chan struct{})
	}
}

// Read implements [Log].
func (l *fakeLog) Read(ctx context.Context, _ string, partition int32, from int64, fn func(int64, *event.Event) error) error {
	l.reads.Add(1)
	l.mu.Lock()
	part := l.parts[partition]
	from = max(from-int64(l.repeat), 0)
	l.mu.Unlock()
	for {
		l.mu.Lock()
		ready, more := slices.Clone(part.records[min(int(from), len(part.records)):]), part.more
		l.mu.Unlock()
		for _, e := range ready {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := fn(from, e); err != nil {
				return err
			}
			from++
		}
		if err := fn(from, nil); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-more:
		}
	}
}

// fakeReports keeps what lanes report.
type fakeReports struct {
	mu          sync.Mutex
	diverged    []Report
	quarantined []Report
}

func (r *fakeReports) Diverged(_ context.Context, x Report) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.diverged = append(r.diverged, x)
	return nil
}

func (r *fakeReports) Quarantine(_ context.Context, x Report) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quarantined = append(r.quarantined, x)
	return nil
}

// adminSessions kills sessions as an administrator of the shard.
type adminSessions struct {
	client *mongo.Client
	killed atomic.Int64
}

func (s *adminSessions) KillSession(ctx context.Context, _ string, lsid []byte) error {
	s.killed.Add(1)
	return s.client.Database("admin").RunCommand(ctx, bson.D{
		{Key: "killSessions", Value: bson.A{bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: lsid}}}}},
	}).Err()
}

// world is a migration between placements of one shard, or of two.
type world struct {
	t        testing.TB
	server   *testkit.ShardServer
	client   *mongo.Client // of the target's shard
	from     *mongo.Client // of the source's
	log      *fakeLog
	reports  *fakeReports
	sessions *adminSessions
	cfg      Config
	last     *running
}

// partitions of a test's log.
const partitions = 4

var migrations atomic.Int64

// newWorld starts a shard and prepares a migration that has begun: its start
// marker is in the log.
func newWorld(t testing.TB) *world {
	t.Helper()
	server := testkit.Shard(t)
	return worldOn(t, server, connect(t, server))
}

func connect(t testing.TB, server *testkit.ShardServer) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(server.AdminURI()).SetServerSelectionTimeout(3 * time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return client
}

// joinsWrites reports whether the server knows bulkWrite.
func joinsWrites(t testing.TB, client *mongo.Client) bool {
	t.Helper()
	var hello struct {
		MaxWireVersion int `bson:"maxWireVersion"`
	}
	require.NoError(t, client.Database("admin").RunCommand(context.Background(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello))
	return hello.MaxWireVersion >= 25
}

// worldOn prepares another migration on a shard.
func worldOn(t testing.TB, server *testkit.ShardServer, client *mongo.Client) *world {
	t.Helper()
	w := &world{t: t, server: server, client: client, from: client, log: newFakeLog(partitions), reports: &fakeReports{}, sessions: &adminSessions{client: client}}
	m := migrations.Add(1)
	w.cfg = Config{
		Direction: Direction{
			Migration: chunk.MigrationID(m), Partitions: partitions, Spread: event.ByDocument,
			Source: chunk.Placement{ID: chunk.PlacementID(2 * m), Shard: "a", Database: fmt.Sprintf("db_0001_p%d", 2*m)},
			Target: chunk.Placement{ID: chunk.PlacementID(2*m + 1), Shard: "b", Database: fmt.Sprintf("db_0001_p%d", 2*m+1)},
		},
		Target: client, Log: w.log, Sessions: w.sessions, Reports: w.reports,
		Fold: FoldOptions{SortNewFields: true}, JoinsWrites: joinsWrites(t, client),
		Limits:  Limits{IdleSave: 20 * time.Millisecond, IdleCheck: 20 * time.Millisecond, ParkedRetry: 5 * time.Millisecond},
		Logger:  slog.New(slog.DiscardHandler),
		Backoff: func(try int) time.Duration { return min(5*time.Millisecond<<min(try, 6), 200*time.Millisecond) }, // thirty of them outlast a start of the server
	}
	w.mark(chunk.StartMarker, 0)
	return w
}

func (w *world) source() *mongo.Database { return w.from.Database(w.cfg.Direction.Source.Database) }
func (w *world) target() *mongo.Database { return w.client.Database(w.cfg.Direction.Target.Database) }

// mark puts a marker of the migration into the log and gives its key.
func (w *world) mark(kind chunk.MarkerKind, round int64) string {
	w.t.Helper()
	m := chunk.Marker{Kind: kind, Migration: w.cfg.Direction.Migration, Attempt: w.cfg.Direction.Attempt, Placement: w.cfg.Direction.Source.ID, Round: round, At: time.Now()}
	w.log.add(w.t, event.Event{Op: event.Mark, Database: chunk.SystemDatabase, Collection: chunk.MarkersCollection, Marker: &m})
	return m.Key()
}

// running is lanes in the background.
type running struct {
	lanes *Lanes
	stop  context.CancelFunc
	done  chan struct{}
	err   error
}

// run starts the lanes.
func (w *world) run(cfg Config) *running {
	w.t.Helper()
	lanes, err := NewLanes(cfg)
	require.NoError(w.t, err)
	ctx, stop := context.WithCancel(context.Background())
	r := &running{lanes: lanes, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = lanes.Run(ctx)
	}()
	w.t.Cleanup(func() { r.end() })
	w.last = r
	return r
}

// end stops the lanes and gives their error.
func (r *running) end() error {
	r.stop()
	return r.wait()
}

// wait gives the lanes' error once they have stopped by themselves.
func (r *running) wait() error {
	<-r.done
	return r.err
}

// passes waits until every lane has passed the marker.
func (w *world) passes(key string) {
	w.t.Helper()
	w.until("marker "+key, func() bool {
		ok, err := w.passed(key)
		return err == nil && ok
	})
}

// passed reports whether every lane has passed the marker, as a majority knows it.
func (w *world) passed(key string) (bool, error) {
	all, err := ReadCheckpoints(context.Background(), w.client, w.cfg.Direction.Migration, w.cfg.Direction.Attempt)
	if err != nil {
		return false, err
	}
	own, err := w.cfg.Direction.partitions()
	if err != nil {
		return false, err
	}
	n := 0
	for _, c := range all {
		if c.Marker == key {
			n++
		}
	}
	return n == len(own), nil
}

// until waits for something that the lanes, while they run, must bring about.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	var stopped chan struct{}
	if w.last != nil {
		stopped = w.last.done
	}
	for deadline := time.Now().Add(90 * time.Second); !is(); {
		require.True(w.t, time.Now().Before(deadline), what)
		select {
		case <-tick.C:
		case <-stopped:
			require.NoError(w.t, w.last.err, "the lanes have stopped, waiting for %s", what)
		}
	}
}

// contents gives a collection's documents by canonical _id.
func contents(t testing.TB, c *mongo.Collection) map[docKey]bson.Raw {
	t.Helper()
	cur, err := c.Find(context.Background(), bson.D{})
	require.NoError(t, err)
	all := map[docKey]bson.Raw{}
	for cur.Next(context.Background()) {
		key, err := keyOf(c.Name(), cur.Current.Lookup("_id"))
		require.NoError(t, err)
		all[key] = bytes.Clone(cur.Current)
	}
	require.NoError(t, cur.Err())
	return all
}

// equal compares two collections byte for byte.
func equal(t testing.TB, want, got map[docKey]bson.Raw) {
	t.Helper()
	require.Len(t, got, len(want))
	for k, doc := range want {
		if !bytes.Equal(doc, got[k]) {
			require.Equal(t, doc.String(), got[k].String())
			require.Equal(t, doc, got[k])
		}
	}
}

// key is the documentKey of an _id.
func key(t testing.TB, id any) []byte { t.Helper(); return raw(t, bson.D{{Key: "_id", Value: id}}) }

// raw encodes a document.
func raw(t testing.TB, v any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(v)
	require.NoError(t, err)
	return b
}

// on gives an event on a document of the source's collection c.
func (w *world) on(op event.Op, id any) event.Event {
	w.t.Helper()
	return event.Event{Op: op, Database: w.cfg.Direction.Source.Database, Collection: "c", Key: key(w.t, id)}
}

// inserted, replaced, updated and deleted put events into the log.
func (w *world) inserted(doc bson.D) {
	e := w.on(event.Insert, doc[0].Value)
	e.Document = raw(w.t, doc)
	w.log.add(w.t, e)
}

func (w *world) replaced(doc bson.D) {
	e := w.on(event.Replace, doc[0].Value)
	e.Document = raw(w.t, doc)
	w.log.add(w.t, e)
}

func (w *world) updated(id any, set bson.D) {
	e := w.on(event.Update, id)
	e.Change = raw(w.t, bson.D{{Key: "updatedFields", Value: set}, {Key: "removedFields", Value: bson.A{}}, {Key: "truncatedArrays", Value: bson.A{}}})
	w.log.add(w.t, e)
}

func (w *world) deleted(id any) { w.log.add(w.t, w.on(event.Delete, id)) }

// follow feeds the log from a real change stream of the source's database until
// the returned function is called.
func (w *world) follow() func() {
	w.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	cs, err := w.from.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetShowExpandedEvents(true))
	require.NoError(w.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for cs.Next(ctx) {
			w.captured(cs.Current)
		}
	}()
	w.t.Cleanup(func() { stop(); <-done })
	return func() { stop(); <-done }
}

// captured puts a change event into the log as capture would.
func (w *world) captured(raw bson.Raw) {
	db, _ := raw.Lookup("ns", "db").StringValueOK()
	coll, _ := raw.Lookup("ns", "coll").StringValueOK()
	if db == chunk.SystemDatabase {
		if coll == chunk.MarkersCollection {
			var m chunk.Marker
			_ = bson.Unmarshal(raw.Lookup("fullDocument").Value, &m)
			w.log.add(w.t, event.Event{Op: event.Mark, Database: db, Collection: coll, Marker: &m})
		}
		return
	}
	op, _ := raw.Lookup("operationType").StringValueOK()
	e := event.Event{Op: event.Op(op), Database: db, Collection: coll, Key: bytes.Clone(raw.Lookup("documentKey").Value)}
	e.ClusterTime.T, e.ClusterTime.I, _ = raw.Lookup("clusterTime").TimestampOK()
	if d, ok := raw.Lookup("fullDocument").DocumentOK(); ok {
		e.Document = bytes.Clone(d)
	}
	if d, ok := raw.Lookup("updateDescription").DocumentOK(); ok {
		e.Change = bytes.Clone(d)
	}
	if d, ok := raw.Lookup("lsid").DocumentOK(); ok {
		e.Session = bytes.Clone(d)
		e.TxnNumber, _ = raw.Lookup("txnNumber").AsInt64OK()
	}
	if !e.Op.OnDocument() {
		e.Description = bytes.Clone(raw)
		if e.Op == "create" || e.Op == "createIndexes" {
			return
		}
	}
	w.log.add(w.t, e)
}

// newFakeEvent is an event of no interest.
func newFakeEvent() *event.Event { return &event.Event{Op: event.Delete} }
