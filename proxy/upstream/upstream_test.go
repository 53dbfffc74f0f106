package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"drover/proxy/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// member is a member of a set that knows hello and ping.
type member struct {
	host string
	set  *testSet

	mu       sync.Mutex
	primary  bool
	election byte
	accepted int
	conns    []net.Conn
	hangs    chan struct{} // answers wait until it is closed, where it is there
}

// testSet is a replica set of members that say what they are told to.
type testSet struct {
	members []*member
	term    byte
	wg      sync.WaitGroup
}

// newSet starts n members; the first is the primary.
func newSet(t *testing.T, n int) *testSet {
	t.Helper()
	s := &testSet{term: 1}
	var listeners []net.Listener
	for i := range n {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		listeners = append(listeners, l)
		s.members = append(s.members, &member{host: l.Addr().String(), set: s, primary: i == 0, election: 1})
	}
	for i, l := range listeners {
		s.wg.Go(func() { s.members[i].accept(l) })
	}
	t.Cleanup(func() {
		for i, l := range listeners {
			_ = l.Close()
			s.members[i].drop()
		}
		s.wg.Wait()
	})
	return s
}

// elect makes the i-th member the primary of a later election; stale ones go on
// believing that they are.
func (s *testSet) elect(i int, stale ...int) {
	s.term++
	for j, m := range s.members {
		m.mu.Lock()
		m.primary = j == i
		for _, k := range stale {
			m.primary = m.primary || j == k
		}
		if j == i {
			m.election = s.term
		}
		m.mu.Unlock()
	}
}

// drop closes a member's connections.
func (m *member) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		_ = c.Close()
	}
	m.conns = nil
}

// accept serves connections.
func (m *member) accept(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		m.mu.Lock()
		m.accepted++
		m.conns = append(m.conns, nc)
		m.mu.Unlock()
		m.set.wg.Go(func() { m.serve(nc) })
	}
}

// serve answers hello and says ok to the rest.
func (m *member) serve(nc net.Conn) {
	defer func() { _ = nc.Close() }()
	r := wire.NewReader(nc)
	for {
		msg, err := r.Next()
		if err != nil {
			return
		}
		m.mu.Lock()
		hangs := m.hangs
		m.mu.Unlock()
		if hangs != nil {
			<-hangs
		}
		m.mu.Lock()
		var hosts bson.A
		for _, o := range m.set.members {
			hosts = append(hosts, o.host)
		}
		doc := bson.D{
			{Key: "isWritablePrimary", Value: m.primary}, {Key: "hosts", Value: hosts}, {Key: "me", Value: m.host}, {Key: "setName", Value: "rs"},
			{Key: "electionId", Value: bson.ObjectID{11: m.election}}, {Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 21}, {Key: "ok", Value: 1.0},
		}
		m.mu.Unlock()
		body, err := bson.Marshal(doc)
		if err != nil {
			return
		}
		out := append(wire.BeginMsg(nil, 1, msg.RequestID, 0), body...)
		wire.SetLength(out, 0)
		if _, err := nc.Write(out); err != nil {
			return
		}
	}
}

// pool makes a pool that is closed after the test.
func pool(t *testing.T, uri string, conns int) *Pool {
	t.Helper()
	p, err := New(Config{Name: "s", URI: uri, MaxConns: conns})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// within gives a context with a deadline.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// where gives the member that a connection is to.
func where(c *Conn) string { return c.nc.RemoteAddr().String() }

func TestPrimaryIsFoundAndFollowed(t *testing.T) {
	t.Parallel()

	s := newSet(t, 3)
	s.elect(1)
	p := pool(t, "mongodb://"+s.members[0].host+"/?replicaSet=rs", 0)
	c, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	require.Equal(t, s.members[1].host, where(c))
	_, v := p.WireVersions()
	require.Equal(t, int32(21), v)

	idle, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	idle.Release()
	// Two claim to be the primary: the one of the later election is.
	s.elect(2, 0, 1)
	p.NotPrimary(c)
	c.Release()
	require.Zero(t, p.Open(), "nothing connected to the old one is kept")
	for range 3 {
		c, err = p.Get(within(t, 10*time.Second))
		require.NoError(t, err)
		require.Equal(t, s.members[2].host, where(c))
		defer c.Release()
	}
}

func TestGetWaitsForPrimary(t *testing.T) {
	t.Parallel()

	s := newSet(t, 3)
	s.elect(-1)
	p := pool(t, fmt.Sprintf("mongodb://%s,%s", s.members[0].host, s.members[1].host), 0)
	require.Eventually(t, func() bool { // the first look may take longer than the first try
		_, err := p.Get(within(t, 50*time.Millisecond))
		require.Error(t, err)
		require.False(t, Ran(err))
		return errors.Is(err, errNoPrimary)
	}, 10*time.Second, time.Millisecond)
	got := make(chan error, 1)
	go func() {
		c, err := p.Get(within(t, 10*time.Second))
		if err == nil {
			c.Release()
		}
		got <- err
	}()
	s.elect(2)
	require.NoError(t, <-got)
}

func TestDirectBelievesNobodyElse(t *testing.T) {
	t.Parallel()

	s := newSet(t, 2)
	p := pool(t, "mongodb://"+s.members[1].host+"/?directConnection=true", 0)
	_, err := p.Get(within(t, 50*time.Millisecond))
	require.Error(t, err)
	s.elect(1)
	c, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	require.Equal(t, s.members[1].host, where(c))
	c.Release()
}

func TestPoolIsBounded(t *testing.T) {
	t.Parallel()

	s := newSet(t, 1)
	p := pool(t, "mongodb://"+s.members[0].host+"/?directConnection=true", 2)
	a, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	b, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	_, err = p.Get(within(t, 20*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)

	// A connection goes to who waits; a broken one makes room for a new one.
	for _, release := range []func(){a.Release, b.Break} {
		got := make(chan *Conn, 1)
		go func() {
			c, err := p.Get(within(t, 10*time.Second))
			if err != nil {
				c = nil
			}
			got <- c
		}()
		require.Eventually(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.waiting) == 1
		}, 10*time.Second, time.Millisecond)
		release()
		require.NotNil(t, <-got)
	}
	require.Equal(t, 2, p.Open())
}

// A shard to which a switch has just sent the traffic has few connections, and many
// requests ask for one at once. Each used to wait for the handshake of its own while
// others fell idle: reads stood for half a second behind a switch.
func TestNobodyWaitsForAHandshakeWhileAConnectionIsIdle(t *testing.T) {
	t.Parallel()

	s := newSet(t, 1)
	m := s.members[0]
	p := pool(t, "mongodb://"+m.host+"/?directConnection=true", 0)
	busy, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	hangs := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(hangs) })
	t.Cleanup(goOn)
	m.mu.Lock()
	m.hangs = hangs
	m.mu.Unlock()
	const waiters = 8
	got := make(chan *Conn, waiters)
	for range waiters {
		go func() {
			c, err := p.Get(within(t, time.Minute))
			if err != nil {
				c = nil
			}
			got <- c
		}()
	}
	require.Eventually(t, func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.accepted == 1+cap(p.dials) // of all that are wanted, so many are opened at a time
	}, 10*time.Second, time.Millisecond)
	for range waiters {
		busy.Release()
		c := <-got
		require.Same(t, busy, c)
	}
	goOn()
	busy.Release()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.opening == 0
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, 1+cap(p.dials), p.Open(), "none was begun when nobody waited any more")
}

// What can't be opened ahead is opened for who wants it, and is bounded like the rest.
func TestWarm(t *testing.T) {
	t.Parallel()

	s := newSet(t, 1)
	s.elect(-1)
	p := pool(t, "mongodb://"+s.members[0].host+"/?directConnection=true", 3)
	p.Warm(5)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.opening == 0 && p.total == 0
	}, 10*time.Second, time.Millisecond)
	s.elect(0)
	p.Warm(5)
	require.Eventually(t, func() bool { return p.Open() == 3 }, 10*time.Second, time.Millisecond)
	c, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	c.Release()
	require.Equal(t, 3, p.Open())
}

func TestManyShareFew(t *testing.T) {
	t.Parallel()

	s := newSet(t, 1)
	p := pool(t, "mongodb://"+s.members[0].host+"/?directConnection=true", 3)
	var wg sync.WaitGroup
	errs := make(chan error, 1000)
	body, err := bson.Marshal(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
	require.NoError(t, err)
	for range 20 {
		wg.Go(func() {
			for i := range 50 {
				c, err := p.Get(within(t, 20*time.Second))
				if err != nil {
					errs <- err
					return
				}
				if _, err := c.Command(t.Context(), body); err != nil {
					errs <- err
				}
				if i%10 == 9 {
					c.Break()
				} else {
					c.Release()
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.LessOrEqual(t, p.Open(), 3)
}

// A server that went away leaves the end of the stream behind: nothing is sent
// into it, so that the outcome is known.
func TestDeadIdleConnectionIsNotUsed(t *testing.T) {
	t.Parallel()

	s := newSet(t, 1)
	p := pool(t, "mongodb://"+s.members[0].host+"/?directConnection=true", 0)
	c, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	c.Release()
	s.members[0].drop()
	c.idleSince = time.Now().Add(-time.Second)
	require.Eventually(t, func() bool { return !c.alive() }, 10*time.Second, time.Millisecond)
	require.Nil(t, p.TryGet())
	fresh, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	require.NotSame(t, c, fresh)

	// One that dies under a request leaves its outcome open.
	s.members[0].drop()
	fresh.Begin()
	fresh.Out = append(fresh.Out, 5, 0, 0, 0, 0)
	_, err = fresh.Exchange(time.Now().Add(10 * time.Second))
	require.True(t, Ran(err), "%v", err)
	fresh.Release()
	require.Zero(t, p.Open())
}

func TestClosedPool(t *testing.T) {
	t.Parallel()

	s := newSet(t, 1)
	p := pool(t, "mongodb://"+s.members[0].host+"/?directConnection=true", 1)
	c, err := p.Get(within(t, 10*time.Second))
	require.NoError(t, err)
	waits := make(chan error, 1)
	go func() {
		_, err := p.Get(within(t, 10*time.Second))
		waits <- err
	}()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.waiting) == 1
	}, 10*time.Second, time.Millisecond)
	p.Close()
	require.ErrorIs(t, <-waits, errClosed)
	c.Release()
	_, err = p.Get(t.Context())
	require.ErrorIs(t, err, errClosed)
	require.Nil(t, p.TryGet())
}

func TestAddress(t *testing.T) {
	t.Parallel()

	for uri, want := range map[string]address{
		"mongodb://a": {hosts: []string{"a:27017"}},
		"mongodb://u:p@a:1,b,[::1]:3/admin?replicaSet=x&tls=true": {hosts: []string{"a:1", "b:27017", "[::1]:3"}, tls: true},
		"mongodb://a:1/?directConnection=true":                    {hosts: []string{"a:1"}, direct: true},
	} {
		got, err := parseAddress(uri)
		require.NoError(t, err, uri)
		require.Equal(t, want, got, uri)
	}
	for _, uri := range []string{"", "http://a", "mongodb+srv://a", "mongodb://", "mongodb://a,,b", "mongodb://a,b/?directConnection=true"} {
		_, err := parseAddress(uri)
		require.Error(t, err, uri)
	}
}

func TestRan(t *testing.T) {
	t.Parallel()

	cause := errors.New("x")
	require.True(t, Ran(fmt.Errorf("y: %w", &BrokenError{Sent: true, err: cause})))
	require.False(t, Ran(&BrokenError{err: cause}))
	require.False(t, Ran(cause))
	require.ErrorIs(t, &BrokenError{err: cause}, cause)
}
