package proxy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/proxy/auth"
)

// ending is a proxy that a test ends before the test does.
type ending struct {
	*Proxy
	end  context.CancelFunc
	done chan error
}

// startEnding runs a proxy until end is called, or the test ends.
func startEnding(t *testing.T, cfg Config, ports Ports) *ending {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	ctx, cancel := context.WithCancel(context.Background())
	e := &ending{Proxy: New(cfg, ports), end: cancel, done: make(chan error, 1)}
	require.ErrorIs(t, e.Serving(), errStarting)
	go func() { e.done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-e.done)
	})
	<-e.Ready()
	require.NoError(t, e.Serving())
	return e
}

// A proxy that was told to end once closed connections on which drivers were about to
// send: what may not be repeated failed. Now drivers leave by themselves, and no
// request of theirs fails, of those either that no driver repeats.
func TestDriversLeaveAnEndingProxy(t *testing.T) {
	t.Parallel()

	f, s := newFakeFleet(t, 2)
	s.answers(func(cmd bson.Raw) bson.D {
		if cmd.Lookup("find").Type != 0 {
			return emptyCursorReply()
		}
		return bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 1}, {Key: "ok", Value: 1.0}}
	})
	dir := &users{}
	dir.add(t, "loader", auth.Grant{Database: testDatabase, Actions: []auth.Action{auth.Read, auth.Write}})
	ports := f.ports()
	ports.Users = dir
	first := startEnding(t, Config{ID: "proxy-1", Linger: time.Hour}, ports)
	second := startEnding(t, Config{ID: "proxy-2"}, ports)

	var last atomic.Int64 // commands since the last one that went to the first proxy
	monitor := &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if strings.HasPrefix(e.ConnectionID, first.Addr()) {
			last.Store(0)
		} else {
			last.Add(1)
		}
	}}
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://"+first.Addr()+","+second.Addr()).
		SetHeartbeatInterval(500*time.Millisecond).SetMonitor(monitor), as("loader", "loaderloader", "admin"))
	require.NoError(t, err)
	l := startUnrepeatable(c.Database(testDatabase).Collection("legs"), 8)
	t.Cleanup(func() { // when it has failed: the first proxy lingers while somebody is there
		l.end()
		_ = c.Disconnect(context.Background())
	})
	l.progress(t, 20)
	first.end()
	require.Eventually(t, func() bool { return last.Load() > 500 || len(l.errs) > 0 }, 3*waitFor, tick, "the driver does not leave")
	require.ErrorIs(t, first.Serving(), errLeaving)
	first.mu.Lock()
	close(first.gone) // as if it had lingered for long enough
	first.gone = nil
	first.mu.Unlock()
	require.NoError(t, <-first.done)
	first.done <- nil
	l.progress(t, 20)
	l.stop(t)
	require.NoError(t, c.Disconnect(context.Background()))
}

// unrepeatable is a load of which no driver repeats the half.
type unrepeatable struct {
	ended  chan struct{}
	end    func() // closes ended, and waits for the clients
	counts []atomic.Int64
	errs   chan error
	wg     sync.WaitGroup
}

// startUnrepeatable runs n clients.
func startUnrepeatable(c *mongo.Collection, n int) *unrepeatable {
	l := &unrepeatable{ended: make(chan struct{}), counts: make([]atomic.Int64, n), errs: make(chan error, n)}
	l.end = sync.OnceFunc(func() {
		close(l.ended)
		l.wg.Wait()
	})
	filter, change := bson.D{{Key: "origin", Value: "x"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	for i := range n {
		l.wg.Go(func() {
			for {
				select {
				case <-l.ended:
					return
				default:
				}
				_, err := c.UpdateMany(context.Background(), filter, change)
				if err == nil {
					_, err = c.UpdateOne(context.Background(), filter, change)
				}
				if err == nil {
					err = c.FindOne(context.Background(), filter).Err()
				}
				if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
					l.errs <- err
					return
				}
				l.counts[i].Add(1)
			}
		})
	}
	return l
}

// progress waits until every client has done n more rounds, or failed.
func (l *unrepeatable) progress(t *testing.T, n int64) {
	t.Helper()
	for i := range l.counts {
		want := l.counts[i].Load() + n
		require.Eventually(t, func() bool { return l.counts[i].Load() >= want || len(l.errs) > 0 }, waitFor, tick)
	}
}

// stop ends the load, which must have met no error.
func (l *unrepeatable) stop(t *testing.T) {
	t.Helper()
	l.end()
	close(l.errs)
	for err := range l.errs {
		require.NoError(t, err)
	}
}

// While a proxy lingers, it looks further away, and goes on with all else; one that
// nobody uses ends at once.
func TestLingeringProxy(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 1)
	idle := startEnding(t, Config{ID: "proxy-0", Linger: time.Hour}, f.ports())
	idle.end()
	require.NoError(t, <-idle.done)
	idle.done <- nil

	p := startEnding(t, Config{ID: "proxy-1", Linger: time.Hour}, f.ports())
	c := dialRaw(t, p.Proxy)
	hello := bson.D{{Key: "hello", Value: 1}, {Key: "$db", Value: "admin"}}
	insert := bson.D{{Key: "insert", Value: "byid"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}, {Key: "$db", Value: testDatabase}}
	require.Equal(t, int64(1), numberAt(c.run(hello), "ok"))
	p.end()
	require.Eventually(t, func() bool { return p.Serving() != nil }, waitFor, tick)
	since := time.Now()
	require.Equal(t, int64(1), numberAt(c.run(hello), "ok"))
	require.GreaterOrEqual(t, time.Since(since), helloPause, "no driver is told, and every one sees it")
	require.Equal(t, int64(1), numberAt(c.run(insert), "ok"))
	late := dialRaw(t, p.Proxy)
	require.Equal(t, int64(1), numberAt(late.run(hello), "ok"))
	require.NoError(t, c.nc.Close())
	require.NoError(t, late.nc.Close())
	require.NoError(t, <-p.done)
	p.done <- nil
}

// Settings that change while the proxy runs count from then on.
func TestReload(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 1)
	out := &syncWriter{w: &bytes.Buffer{}}
	text := func() string {
		out.mu.Lock()
		defer out.mu.Unlock()
		return out.w.String()
	}
	p := startEnding(t, Config{ID: "proxy-1", SlowAfter: -1, Log: slog.New(slog.NewJSONHandler(out, nil))}, f.ports())
	c := dialRaw(t, p.Proxy)
	insert := bson.D{{Key: "insert", Value: "byid"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}, {Key: "$db", Value: testDatabase}}
	require.Equal(t, int64(1), numberAt(c.run(insert), "ok"))
	require.NotContains(t, text(), "slow request")
	p.Reload(Live{SwitchWait: time.Second, SlowAfter: time.Nanosecond})
	require.Equal(t, int64(1), numberAt(c.run(insert), "ok"))
	require.Equal(t, int64(1), numberAt(c.run(insert), "ok"), "with its reply the one before was logged")
	require.Contains(t, text(), "slow request")
}
