package cdc_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// relay stands between capture and a shard. Told to, it lets the answers of the
// change streams that are open be lost, and nothing else.
type relay struct {
	to string

	mu      sync.Mutex
	streams map[net.Conn]bool
	lost    map[net.Conn]bool
}

// newRelay listens until the test's end.
func newRelay(t *testing.T, to string) (r *relay, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed below
	require.NoError(t, err)
	r = &relay{to: to, streams: map[net.Conn]bool{}, lost: map[net.Conn]bool{}}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		group.Wait()
	})
	return r, l.Addr().String()
}

// serve forwards one connection both ways.
func (r *relay) serve(c net.Conn) {
	s, err := net.Dial("tcp", r.to) //nolint:noctx // loopback
	if err != nil {
		_ = c.Close()
		return
	}
	var group sync.WaitGroup
	group.Go(func() { r.pump(c, s, c, false); _ = s.Close() })
	group.Go(func() { r.pump(c, c, s, true); _ = c.Close() })
	group.Wait()
}

// pump forwards one direction.
func (r *relay) pump(client net.Conn, to io.Writer, from io.Reader, answers bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		r.mu.Lock()
		if !answers && bytes.Contains(b[:n], []byte("$changeStream")) {
			r.streams[client] = true
		}
		drop := answers && r.lost[client]
		r.mu.Unlock()
		if drop {
			continue
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// lose lets the answers to all streams that are open now be lost.
func (r *relay) lose() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.streams {
		if !r.lost[c] {
			r.lost[c] = true
			n++
		}
	}
	return n
}

// TestSilentStreamIsOpenedAgain loses the answers of the change stream: capture
// must not wait for them for ever.
func TestSilentStreamIsOpenedAgain(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	uri := b.shard.AdminURI()
	_, rest, _ := strings.Cut(uri, "@")
	host, _, _ := strings.Cut(rest, "/")
	r, address := newRelay(t, host)
	c := b.capture(nil)
	c.Client = connect(t, strings.Replace(uri, host, address, 1))
	c.Settings.SilentAfter = 400 * time.Millisecond
	start(t, c)
	b.seam(t)
	require.Positive(t, r.lose())
	_, err := b.client.Database("d").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "after"}})
	require.NoError(t, err)
	require.Contains(t, changes(b.read(t, b.seam(t))), `d.c/"after"`)
}
