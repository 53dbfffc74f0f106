package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/internal/testkit"
)

// odd changes a document whose _id and fields are of all kinds; the server may well
// refuse it. What was changed before in the same transaction is left alone: the dev server
// tells of the whole at once, with fields that are again what they were.
func (a *application) odd(ctx context.Context, changed map[string]bool) error {
	c := a.db.Collection([]string{"d", "e"}[a.r.IntN(2)])
	id := bson.D{{Key: "_id", Value: anyID(a.r)}}
	name := fmt.Sprint(c.Name(), id[0].Value) // of 1 and 1.0 too
	if changed[name] {
		return nil
	}
	changed[name] = true
	old, err := c.FindOne(ctx, id).Raw()
	switch op := a.r.IntN(8); {
	case errors.Is(err, mongo.ErrNoDocuments):
		_, err = c.InsertOne(ctx, append(id, a.fields()...))
	case err != nil:
	case op == 0:
		_, err = c.DeleteOne(ctx, id)
	case op == 1:
		_, err = c.ReplaceOne(ctx, id, a.fields())
	default:
		err = a.edit(ctx, c, id, old)
	}
	return err
}

// fields gives those of a new document.
func (a *application) fields() bson.D {
	if a.r.IntN(3) > 0 {
		return anyDocument(a.r, 3)
	}
	return slices.DeleteFunc(everyType(a.t, nil, a.n), func(e bson.E) bool { return e.Key == "_id" || e.Key == "bad text" }) // the dev server takes valid text only
}

// edit updates a document.
func (a *application) edit(ctx context.Context, c *mongo.Collection, id bson.D, old bson.Raw) error {
	var doc bson.D
	if err := bson.Unmarshal(old, &doc); err != nil {
		return err
	}
	doc = slices.DeleteFunc(doc, func(e bson.E) bool { return slices.Contains([]string{"", "doc", "dot.ted", "$dollar"}, e.Key) }) // paths do not lead there
	update := anyUpdate(a.r, doc)
	if growsElement(update) {
		return nil
	}
	if res, err := c.UpdateOne(ctx, id, update); err != nil || res.ModifiedCount == 0 {
		return err
	}
	a.edits++
	now, err := c.FindOne(ctx, id).Raw()
	if err != nil || !doubtful(update, old, now) {
		return err
	}
	a.again++
	if _, err = c.DeleteOne(ctx, id); err == nil {
		_, err = c.InsertOne(ctx, now)
	}
	return err
}

// doubtful reports whether an update is one of which the dev server does not tell as a
// stock mongod does: in what order the fields of a document come is lost.
func doubtful(update any, old, now bson.Raw) bool {
	ops, _ := update.(bson.D)
	for _, op := range ops {
		fields, _ := op.Value.(bson.D)
		for _, f := range fields {
			path := strings.Split(f.Key, ".")
			if op.Key == "$rename" {
				path = strings.Split(f.Value.(string), ".") //nolint:forcetypeassert // see anyUpdate
			}
			had, none := old.LookupErr(path...)
			has, gone := now.LookupErr(path...)
			if none == nil && gone == nil && had.Equal(has) { // listed all the same
				return true
			}
		}
	}
	return reordered(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: old}, bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: now})
}

// reordered reports whether fields that both have come in another order, or several are new
// in a document that was there.
func reordered(old, now bson.RawValue) bool {
	if old.Type != now.Type || old.Type != bson.TypeEmbeddedDocument && old.Type != bson.TypeArray {
		return false
	}
	had, _ := bson.Raw(old.Value).Elements()
	has, _ := bson.Raw(now.Value).Elements()
	last, fresh := -1, 0
	for _, f := range has {
		i := slices.IndexFunc(had, func(h bson.RawElement) bool { return h.Key() == f.Key() })
		if i < 0 {
			fresh++
			continue
		}
		if i < last || reordered(had[i].Value(), f.Value()) {
			return true
		}
		last = i
	}
	return fresh > 1 && old.Type == bson.TypeEmbeddedDocument
}

// anything does what applications do, to one document or to several at once.
func (a *application) anything() {
	a.t.Helper()
	var err error
	switch a.r.IntN(6) {
	case 0, 1:
		a.step()
	case 2:
		err = a.transaction(func(ctx context.Context) error {
			changed := map[string]bool{}
			for range 2 + a.r.IntN(3) {
				if err := a.odd(ctx, changed); err != nil {
					return err
				}
			}
			return nil
		})
	default:
		err = a.odd(context.Background(), map[string]bool{})
	}
	if _, refused := errors.AsType[mongo.ServerError](err); !refused {
		require.NoError(a.t, err)
	}
}

// kept is a capture's position, and what it takes for stragglers.
type kept struct {
	mu         sync.Mutex
	epoch      int64
	value      []byte
	stragglers []cdc.Straggler
}

// Take implements [cdc.Positions].
func (k *kept) Take(context.Context, string) (int64, []byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch++
	return k.epoch, k.value, nil
}

// Save implements [cdc.Positions].
func (k *kept) Save(_ context.Context, _ string, epoch int64, value []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if epoch != k.epoch {
		return failure.New(failure.Lost, "capture.position_taken", "epoch %d is over", epoch)
	}
	k.value = value
	return nil
}

// Report implements [cdc.Stragglers].
func (k *kept) Report(_ context.Context, s cdc.Straggler) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stragglers = append(k.stragglers, s)
	return nil
}

// Withdraw implements [cdc.Stragglers].
func (k *kept) Withdraw(context.Context, cdc.Reprieve) error { return nil }

// begun reports whether there is a log that markers come into.
func (k *kept) begun() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.value == nil {
		return false
	}
	p, err := cdc.DecodePosition(k.value)
	return err == nil && !p.Start.IsZero()
}

// captured is two shards whose changes are captured by captures that die now and then.
type captured struct {
	names   [2]string
	clients [2]*mongo.Client
	servers []*testkit.ShardServer
	kept    [2]kept
	log     *cdc.Log
	deaths  atomic.Int64
}

func newCaptured(t *testing.T) *captured {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	c := &captured{names: [2]string{"a", "b"}, servers: testkit.Shards(t, 2)}
	c.log, err = cdc.NewLog(cluster.ListenAddrs())
	require.NoError(t, err)
	t.Cleanup(c.log.Close)
	for i, s := range c.servers {
		c.clients[i] = connect(t, s)
		c.capture(t, cdc.Capture{
			Shard: c.names[i], Client: c.clients[i], Brokers: cluster.ListenAddrs(), Topic: cdc.TopicSettings{Partitions: partitions},
			Positions: &c.kept[i], Stragglers: &c.kept[i], Logger: slog.New(slog.DiscardHandler), Stops: stoppoint.New(c.maybe),
			Settings: cdc.CaptureSettings{HeartbeatEvery: 50 * time.Millisecond, SaveEvery: 20 * time.Millisecond, Await: 50 * time.Millisecond},
		})
	}
	for i := range c.kept {
		require.Eventually(t, c.kept[i].begun, time.Minute, time.Millisecond)
	}
	return c
}

// maybe lets a capture die.
func (c *captured) maybe(context.Context, string) error {
	if rand.IntN(300) > 0 {
		return nil
	}
	c.deaths.Add(1)
	return errDied
}

// capture captures until the test's end, one capture after the other.
func (c *captured) capture(t *testing.T, one cdc.Capture) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for err := errDied; errors.Is(err, errDied) && ctx.Err() == nil; {
			if err = one.Run(ctx); ctx.Err() == nil && !errors.Is(err, errDied) {
				t.Errorf("capture of %s: %v", one.Shard, err)
			}
		}
	}()
	t.Cleanup(func() { stop(); <-done })
}

// world prepares a migration from the first shard to the second.
func (c *captured) world(t *testing.T) *world {
	t.Helper()
	w := worldOn(t, c.servers[1], c.clients[1])
	w.from, w.cfg.Log = c.clients[0], c.log
	d := &w.cfg.Direction
	d.Spread, d.Source.Shard, d.Target.Shard = event.ByDatabase, c.names[0], c.names[1]
	w.uniqueU()
	for _, db := range []*mongo.Database{w.source(), w.target()} {
		for _, name := range []string{"d", "e"} {
			require.NoError(t, db.CreateCollection(context.Background(), name))
		}
	}
	w.realMarker(chunk.Marker{Kind: chunk.StartMarker})
	return w
}

// turn lets the migration go the other way round.
func (w *world) turn() {
	w.t.Helper()
	w.from, w.client = w.client, w.from
	w.cfg.Target, w.sessions.client = w.client, w.client
	d := &w.cfg.Direction
	d.Source, d.Target = d.Target, d.Source
	d.Attempt++
	w.realMarker(chunk.Marker{Kind: chunk.OpenMarker, Attempt: d.Attempt})
}

// unlabelled counts the changes in the source's log, from where the direction begins to a
// marker, that the migration did not make.
func (w *world) unlabelled(log *cdc.Log, key string) (n int64) {
	w.t.Helper()
	d := w.cfg.Direction
	p, err := d.partition()
	require.NoError(w.t, err)
	var counter event.Counter
	err = log.Follow(context.Background(), d.Source.Shard, p, 0, &counter, func(_ int64, e *event.Event) error {
		switch {
		case e == nil:
		case e.Marker != nil && d.begins(e.Marker):
			n = 0
		case e.Marker != nil && e.Marker.Key() == key:
			return cdc.ErrStop
		case e.Op.OnDocument() && e.Database == d.Source.Database && !d.labels(e.Label):
			n++
		}
		return nil
	})
	require.NoError(w.t, err)
	return n
}

// Whatever applications do to whatever documents of a shard, and wherever captures and
// lanes die: the other shard has the same documents byte for byte when it takes over; and
// so back, and forth again. Each change takes effect once, and none comes back.
func TestRandomHistoriesOnShards(t *testing.T) {
	t.Parallel()
	c := newCaptured(t)
	t.Run("histories", func(t *testing.T) {
		for range 3 {
			seed := rand.Uint64()
			t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
				t.Parallel()
				c.history(t, seed)
			})
		}
	})
	t.Logf("captures died %d times", c.deaths.Load())
	for i := range c.kept {
		require.Empty(t, c.kept[i].stragglers)
	}
}

// history runs one history: forth, back and forth again.
func (c *captured) history(t *testing.T, seed uint64) {
	t.Helper()
	w := c.world(t)
	w.cfg.Limits.Docs = 17
	app := &application{t: t, r: rand.New(rand.NewPCG(seed, 21))}
	death := &mortal{r: rand.New(rand.NewPCG(seed, 22)), died: map[string]int{}}
	m := w.cfg.Direction.Migration
	for direction := range chunk.AttemptID(3) {
		if direction > 0 {
			w.turn()
		}
		app.db = w.source()
		w.dying(death, func() {
			for n, until := 0, death.deaths()+10; n < 100 || n < 2000 && death.deaths() < until; n++ {
				app.anything()
			}
		})
		r := w.run(w.cfg)
		key := w.realMarker(chunk.Marker{Kind: chunk.FinalMarker, Attempt: direction + 1, Round: 1})
		w.passes(key)
		w.comesHome()
		require.NoError(t, CloseLanes(context.Background(), w.client, w.sessions, m, direction, direction+1))
		require.True(t, failure.HasCode(r.wait(), "lane.closed"), "%v", r.err)
		for _, name := range []string{"c", "d", "e"} {
			equal(t, contents(t, w.source().Collection(name)), contents(t, w.target().Collection(name)))
		}
		changes := w.unlabelled(c.log, key)
		require.Greater(t, changes, int64(40))
		require.Equal(t, changes, w.applied(), "each change once, and no other")
		t.Logf("direction %d: %d changes, deaths so far: %v", direction, changes, death.died)
	}
	t.Logf("%d edits, %d of them made again as a whole", app.edits, app.again)
	require.Less(t, app.again, app.edits/2)
	require.Empty(t, w.reports.diverged)
	require.Empty(t, w.reports.quarantined)
}

// deaths counts them.
func (m *mortal) deaths() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, died := range m.died {
		n += died
	}
	return n
}
