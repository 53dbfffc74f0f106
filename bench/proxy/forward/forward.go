// Package forward copies bytes between clients and one server and does nothing
// else. It is what a proxy is measured against on a machine where client, proxy
// and server share the processors: the cost of being in the way at all.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// bufferSize is what one direction of a connection reads at once.
const bufferSize = 64 * 1024

// Forwarder is a listener whose connections all lead to one address.
type Forwarder struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// Listen opens the forwarder's own address; connections lead to the address to.
func Listen(ctx context.Context, address, to string) (*Forwarder, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return &Forwarder{listener: l, to: to, conns: map[net.Conn]struct{}{}}, nil
}

// Addr is where the forwarder listens.
func (f *Forwarder) Addr() string { return f.listener.Addr().String() }

// Run forwards until ctx ends. It returns when every connection is closed.
func (f *Forwarder) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, f.close)
	defer stop()
	defer f.close()
	for {
		client, err := f.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		wg.Go(func() { f.serve(ctx, client) })
	}
}

// serve joins one client with the server.
func (f *Forwarder) serve(ctx context.Context, client net.Conn) {
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.to)
	if err != nil {
		_ = client.Close()
		return
	}
	f.mu.Lock()
	f.conns[client], f.conns[server] = struct{}{}, struct{}{}
	f.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { pump(server, client) })
	both.Go(func() { pump(client, server) })
	both.Wait()
	f.mu.Lock()
	delete(f.conns, client)
	delete(f.conns, server)
	f.mu.Unlock()
}

// close ends the listener and every connection.
func (f *Forwarder) close() {
	_ = f.listener.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		_ = c.Close()
	}
}

// pump copies from src to dst until either ends, and then ends both.
func pump(dst io.WriteCloser, src io.ReadCloser) {
	defer func() { _, _ = dst.Close(), src.Close() }()
	buf := make([]byte, bufferSize)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
