package proxy

import (
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"
)

// relay stands between a proxy and a shard and loses replies when told to.
type relay struct {
	listener net.Listener
	to       string
	lose     atomic.Int32 // so many replies more are lost, with their connections
	wg       sync.WaitGroup
	mu       sync.Mutex
	conns    []net.Conn
}

// relayTo puts a relay before a shard of the fleet.
func (f *fleet) relayTo(name string) *relay {
	f.t.Helper()
	s := f.shards[name]
	u, err := url.Parse(s.URI)
	require.NoError(f.t, err)
	l, err := (&net.ListenConfig{}).Listen(f.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(f.t, err)
	r := &relay{listener: l, to: u.Host}
	u.Host = l.Addr().String()
	s.URI = u.String()
	f.shards[name] = s
	r.wg.Go(r.accept)
	f.t.Cleanup(func() {
		_ = l.Close()
		r.mu.Lock()
		for _, c := range r.conns {
			_ = c.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

// accept relays connections.
func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, client, server)
		r.mu.Unlock()
		r.wg.Go(func() {
			_, _ = io.Copy(server, client)
			_ = server.Close()
		})
		r.wg.Go(func() {
			r.replies(client, server)
			_ = client.Close()
		})
	}
}

// replies copies what the shard says, as long as it is not to be lost.
func (r *relay) replies(client, server net.Conn) {
	buf := make([]byte, 64*1024)
	for {
		n, err := server.Read(buf)
		if err != nil || r.take() {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// take reports whether this reply is one to lose.
func (r *relay) take() bool {
	for {
		n := r.lose.Load()
		if n == 0 {
			return false
		}
		if r.lose.CompareAndSwap(n, n-1) {
			return true
		}
	}
}
