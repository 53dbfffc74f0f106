package metadatatest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
)

// listenCases is what listeners and ack waiters must do.
var listenCases = map[string]func(*testing.T, *fleet){
	"EveryTransitionIsAnnounced":           everyTransition,
	"ANoticeIsSaidOnceMore":                saidOnceMore,
	"LostConnectionIsMadeAgainAndResynced": lostConnection,
	"SilentConnectionIsFoundOut":           silentConnection,

	"FailedResyncIsTriedAgain": func(t *testing.T, f *fleet) {
		r := listen(t, f.Store, func(n int) error {
			if n < 3 {
				return errors.New("metadata cannot be read")
			}
			return nil
		})
		for range 3 {
			r.awaitResync(t)
		}
	},

	"AcksAreHeardFromTheMakingOn": func(t *testing.T, f *fleet) {
		w, err := f.NewAckWaiter(t.Context())
		require.NoError(t, err)
		defer w.Close()
		for _, a := range []chunk.Ack{
			{Proxy: "p1", Attempt: 7, Kind: metadata.AckWrites, State: metadata.AckRunning},
			{Proxy: "p1", Attempt: 7, Kind: metadata.AckWrites, State: metadata.AckClean},
			{Proxy: "p1", Attempt: 7, Kind: metadata.AckWrites, State: metadata.AckUnknown}, // clean is the last word
			{Proxy: "p2", Attempt: 7, Kind: metadata.AckWrites, State: metadata.AckClean},
			{Proxy: "p2", Attempt: 8, Kind: metadata.AckReads, State: metadata.AckClean},
		} {
			require.NoError(t, f.Ack(t.Context(), a))
		}
		got, err := w.Wait(t.Context(), 7, metadata.AckWrites, proxies("p1", "p2"), patience, false)
		require.NoError(t, err)
		require.True(t, got.Clean)
		got, err = w.Wait(t.Context(), 7, metadata.AckReads, proxies("p1", "p2"), time.Millisecond, false)
		require.NoError(t, err)
		require.Equal(t, map[string]string{"p1": metadata.AckSilent, "p2": metadata.AckSilent}, got.Words, "another kind or attempt does not count")
		require.False(t, got.Clean)
		got, err = w.Wait(t.Context(), 7, metadata.AckReads, nil, patience, false)
		require.NoError(t, err)
		require.True(t, got.Clean, "no proxy, nothing to wait for")
	},

	"WordsAreOfOneRun": func(t *testing.T, f *fleet) {
		w, err := f.NewAckWaiter(t.Context())
		require.NoError(t, err)
		defer w.Close()
		for _, a := range []chunk.Ack{
			{Proxy: "p1", Run: "second", Attempt: 1, Kind: metadata.AckWrites, State: metadata.AckClean},
			{Proxy: "p2", Attempt: 1, Kind: metadata.AckWrites, State: metadata.AckClean}, // an older release
			{Proxy: "p3", Run: "only", Attempt: 1, Kind: metadata.AckWrites, State: metadata.AckClean},
		} {
			require.NoError(t, f.Ack(t.Context(), a))
		}
		got, err := w.Wait(t.Context(), 1, metadata.AckWrites, []metadata.Proxy{{ID: "p3", Run: "only"}}, patience, false)
		require.NoError(t, err)
		require.True(t, got.Clean)
		got, err = w.Wait(t.Context(), 1, metadata.AckWrites, []metadata.Proxy{{ID: "p1", Run: "first"}, {ID: "p2", Run: "x"}}, time.Millisecond, false)
		require.NoError(t, err)
		require.Equal(t, map[string]string{"p1": metadata.AckSilent, "p2": metadata.AckClean}, got.Words, "the run after it does not know what it left")
	},

	"RunningIsAwaitedPastGrace": func(t *testing.T, f *fleet) {
		w, err := f.NewAckWaiter(t.Context())
		require.NoError(t, err)
		defer w.Close()
		say := func(proxy, state string) {
			require.NoError(t, f.Ack(t.Context(), chunk.Ack{Proxy: proxy, Attempt: 1, Kind: metadata.AckWrites, State: state}))
		}
		say("p1", metadata.AckRunning)
		say("p2", metadata.AckUnknown)
		require.Eventually(t, func() bool { // both are heard
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			got, err := w.Wait(ended, 1, metadata.AckWrites, proxies("p1", "p2", "p3"), patience, false)
			return err == nil && got.Words["p1"] == metadata.AckRunning && got.Words["p2"] == metadata.AckUnknown
		}, patience, time.Millisecond)
		result := make(chan metadata.AckResult, 1)
		go func() {
			got, _ := w.Wait(context.WithoutCancel(t.Context()), 1, metadata.AckWrites, proxies("p1", "p2", "p3"), time.Nanosecond, false)
			result <- got
		}()
		say("p1", metadata.AckClean)
		got := <-result
		require.Equal(t, map[string]string{"p1": metadata.AckClean, "p2": metadata.AckUnknown, "p3": metadata.AckSilent}, got.Words)
		require.False(t, got.Clean)
	},

	"SilentIsAwaitedWhereItMustSpeak": func(t *testing.T, f *fleet) {
		w, err := f.NewAckWaiter(t.Context())
		require.NoError(t, err)
		defer w.Close()
		result := make(chan metadata.AckResult, 1)
		go func() {
			got, _ := w.Wait(context.WithoutCancel(t.Context()), 1, metadata.AckWrites, proxies("p1"), time.Nanosecond, true)
			result <- got
		}()
		require.NoError(t, f.Ack(t.Context(), chunk.Ack{Proxy: "p1", Attempt: 1, Kind: metadata.AckWrites, State: metadata.AckClean}))
		require.True(t, (<-result).Clean)
	},

	"DeafWaiterSaysSo": func(t *testing.T, f *fleet) {
		w, err := f.NewAckWaiter(t.Context())
		require.NoError(t, err)
		defer w.Close()
		f.cutListeners(t)
		got, err := w.Wait(t.Context(), 1, metadata.AckWrites, proxies("p"), patience, false)
		require.Error(t, err)
		require.False(t, got.Clean)
	},
}

// recorder is a handler that keeps what it is told.
type recorder struct {
	resyncs  chan int
	attempts chan chunk.Notice
	routes   chan metadata.RouteNotice
	lost     chan error
	onResync func(n int) error

	mu sync.Mutex
	n  int
}

// Resync implements [metadata.Handler].
func (r *recorder) Resync(context.Context) error {
	r.mu.Lock()
	r.n++
	n := r.n
	r.mu.Unlock()
	r.resyncs <- n
	return r.onResync(n)
}

// AttemptChanged implements [metadata.Handler].
func (r *recorder) AttemptChanged(_ context.Context, n chunk.Notice) { r.attempts <- n }

// RouteChanged implements [metadata.Handler].
func (r *recorder) RouteChanged(_ context.Context, n metadata.RouteNotice) { r.routes <- n }

// Disconnected implements [metadata.Handler].
func (r *recorder) Disconnected(err error) { r.lost <- err }

// listen runs a listener until the test ends.
func listen(t *testing.T, s *metadata.Store, onResync func(n int) error) *recorder {
	t.Helper()
	const room = 1000
	r := &recorder{
		resyncs: make(chan int, room), attempts: make(chan chunk.Notice, room),
		routes: make(chan metadata.RouteNotice, room), lost: make(chan error, room), onResync: onResync,
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Listen(ctx, r) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
	return r
}

// listening is a listener whose every resync is well.
func listening(t *testing.T, s *metadata.Store) *recorder {
	t.Helper()
	r := listen(t, s, func(int) error { return nil })
	r.awaitResync(t)
	return r
}

// await gives the next of what a channel brings.
func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
	}
	return v
}

// awaitResync waits for one call of Resync.
func (r *recorder) awaitResync(t *testing.T) { t.Helper(); await(t, r.resyncs) }

// cutListeners ends every connection that listens to the fleet's database.
func (f *fleet) cutListeners(t *testing.T) {
	t.Helper()
	require.NoError(t, f.exec(t, `select pg_terminate_backend(pid) from pg_stat_activity
		where datname = current_database() and query ilike 'listen %'`))
}

// saidOnceMore: what a notice adds is heard while its attempt is in the notice's state.
func saidOnceMore(t *testing.T, f *fleet) {
	m := f.switching(t)
	a, err := f.BeginAttempt(t.Context(), m.ID, "once-more", time.Minute)
	require.NoError(t, err)
	r := listening(t, f.Store)
	n := a.Notice()
	n.Ease = &chunk.Ease{Share: 0.5, Least: 10, ForMS: 100}
	require.NoError(t, f.Announce(t.Context(), n))
	require.Equal(t, n, await(t, r.attempts))

	late := n
	late.State = chunk.Fencing
	require.NoError(t, f.Announce(t.Context(), late))
	_, err = f.AdvanceAttempt(t.Context(), a.ID, chunk.Preparing, chunk.Fencing, metadata.AdvanceOptions{Deadline: time.Second})
	require.NoError(t, err)
	require.Nil(t, await(t, r.attempts).Ease, "it was announced of a state in which the attempt was not")
	require.NoError(t, f.Announce(t.Context(), n))
	late.Shut = true
	require.NoError(t, f.Announce(t.Context(), late))
	require.Equal(t, late, await(t, r.attempts))
}

// everyTransition follows a switch by its notices alone.
func everyTransition(t *testing.T, f *fleet) {
	m := f.switching(t)
	r := listening(t, f.Store)
	a := f.switchOver(t, m)
	for _, want := range []chunk.AttemptState{chunk.Preparing, chunk.Fencing, chunk.Closing, chunk.Published, chunk.Open, chunk.AttemptDone} {
		n := await(t, r.attempts)
		require.Equal(t, want, n.State)
		require.Equal(t, chunk.Notice{
			Attempt: a.ID, Migration: m.ID, State: want, Source: m.Source.ID, Target: m.Target.ID,
			Chunks: []chunk.ID{first}, DeadlineUnixMS: n.DeadlineUnixMS,
		}, n)
		if want != chunk.Preparing {
			require.Equal(t, a.Deadline.UnixMilli(), n.DeadlineUnixMS)
		}
	}
	require.Equal(t, metadata.RouteNotice{
		Database: "flights", Chunk: first, Token: a.Token,
		Placement: a.Target.ID, Shard: a.Target.Shard, Physical: a.Target.Database,
	}, await(t, r.routes))
	require.NoError(t, f.exec(t, `update attempts set reason = 'noted' where id = $1`, int64(a.ID)), "no change of state, no notice")
	db := chunk.Database{Name: "late", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "c", ShardKey: "_id"}}}
	_, err := f.CreateDatabase(t.Context(), db, []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "a"}})
	require.NoError(t, err)
	require.Equal(t, chunk.ID("late/0001"), await(t, r.routes).Chunk)
	require.NoError(t, f.Activate(t.Context(), "late"))
	require.Equal(t, metadata.RouteNotice{Database: "late"}, await(t, r.routes))
	require.Empty(t, r.attempts)
}

// lostConnection ends the listener's connection again and again, with a change
// each time that nobody announces to it.
func lostConnection(t *testing.T, f *fleet) {
	m := f.switching(t)
	r := listening(t, f.Store)
	for range 3 {
		f.cutListeners(t)
		require.Error(t, await(t, r.lost))
		r.awaitResync(t)
	}
	a, err := f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
	require.NoError(t, err)
	require.Equal(t, a.ID, await(t, r.attempts).Attempt, "what comes after the resync is heard")
}

// silentConnection lets a listener's connection go dead without a word, as a
// cable that is pulled does: only asking finds that out.
func silentConnection(t *testing.T, f *fleet) {
	cable := newCable(t, f.dsn)
	s, err := metadata.Open(t.Context(), cable.dsn)
	require.NoError(t, err)
	defer s.Close()
	r := listen(t, s, func(int) error { return nil })
	r.awaitResync(t)
	cable.pull()
	require.Error(t, await(t, r.lost))
	cable.mend()
	r.awaitResync(t)
}

// cable is a TCP relay that can stop carrying anything without closing anything.
type cable struct {
	dsn string

	mu     sync.Mutex
	pulled chan struct{} // closed while it carries
}

// newCable relays to the server of dsn until the test ends.
func newCable(t *testing.T, dsn string) *cable {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	server := u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's own listener
	require.NoError(t, err)
	u.Host = l.Addr().String()
	c := &cable{dsn: u.String(), pulled: make(chan struct{})}
	close(c.pulled)
	var wg sync.WaitGroup
	var open sync.Map
	t.Cleanup(func() {
		_ = l.Close()
		c.mend()
		open.Range(func(k, _ any) bool { _ = k.(net.Conn).Close(); return true })
		wg.Wait()
	})
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", server) //nolint:noctx // closed by the cleanup
			if err != nil {
				_ = in.Close()
				continue
			}
			open.Store(in, nil)
			open.Store(out, nil)
			wg.Go(func() { c.carry(in, out) })
			wg.Go(func() { c.carry(out, in) })
		}
	})
	return c
}

// carry copies until one end closes.
func (c *cable) carry(from, to net.Conn) {
	defer func() { _ = to.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) || n == 0 {
			return
		}
		c.mu.Lock()
		carries := c.pulled
		c.mu.Unlock()
		<-carries
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// pull stops the carrying.
func (c *cable) pull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pulled = make(chan struct{})
}

// mend lets it carry again.
func (c *cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.pulled:
	default:
		close(c.pulled)
	}
}

// proxies names some that do not tell their runs apart.
func proxies(ids ...string) (all []metadata.Proxy) {
	for _, id := range ids {
		all = append(all, metadata.Proxy{ID: id})
	}
	return all
}
