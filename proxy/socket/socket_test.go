package socket_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/proxy/socket"
)

// pair gives both ends of a connection over TCP, the first of them wrapped.
func pair(t *testing.T) (wrapped net.Conn, peer *net.TCPConn) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	dialed, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	wrapped = socket.Wrap(dialed)
	t.Cleanup(func() { _, _ = wrapped.Close(), accepted.Close() })
	return wrapped, accepted.(*net.TCPConn)
}

// sizes are those of transfers of either kind.
var sizes = []int{1, 16, 4096, 64 * 1024, 64*1024 + 1, 3 << 20}

func TestBothDirectionsCarryWhatWasSent(t *testing.T) {
	t.Parallel()
	wrapped, peer := pair(t)
	echoed := make(chan error, 1)
	go func() {
		_, err := io.Copy(peer, peer)
		echoed <- err
	}()
	for _, size := range sizes {
		want := make([]byte, size)
		_, _ = rand.Read(want)
		sent := make(chan error, 1)
		go func() {
			n, err := wrapped.Write(want)
			if err == nil && n != size {
				err = io.ErrShortWrite
			}
			sent <- err
		}()
		got := make([]byte, size)
		_, err := io.ReadFull(wrapped, got)
		require.NoError(t, err)
		require.NoError(t, <-sent)
		require.True(t, bytes.Equal(want, got), "%d bytes", size)
	}
	require.NoError(t, wrapped.Close())
	require.NoError(t, <-echoed)
}

func TestReadOfAClosedStreamIsItsEnd(t *testing.T) {
	t.Parallel()
	wrapped, peer := pair(t)
	_, err := peer.Write([]byte("bye"))
	require.NoError(t, err)
	require.NoError(t, peer.Close())
	got, err := io.ReadAll(wrapped)
	require.NoError(t, err)
	require.Equal(t, "bye", string(got))
}

func TestWriteToAConnectionThatWasResetFails(t *testing.T) {
	t.Parallel()
	wrapped, peer := pair(t)
	require.NoError(t, peer.SetLinger(0))
	require.NoError(t, peer.Close())
	_, err := wrapped.Read(make([]byte, 1)) // awaits the reset
	require.ErrorIs(t, err, syscall.ECONNRESET)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	require.Equal(t, "read", op.Op)
	_, err = wrapped.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.EPIPE)
}

func TestDeadlineEndsAWaitAndCanBeLifted(t *testing.T) {
	t.Parallel()
	wrapped, peer := pair(t)
	waiting := make(chan error, 1)
	go func() {
		_, err := wrapped.Read(make([]byte, 1))
		waiting <- err
	}()
	require.NoError(t, wrapped.SetReadDeadline(time.Unix(1, 0)))
	require.ErrorIs(t, <-waiting, os.ErrDeadlineExceeded)
	require.NoError(t, wrapped.SetReadDeadline(time.Time{}))
	_, err := peer.Write([]byte("x"))
	require.NoError(t, err)
	n, err := wrapped.Read(make([]byte, 10))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestCloseEndsAWait(t *testing.T) {
	t.Parallel()
	wrapped, _ := pair(t)
	waiting := make(chan error, 1)
	go func() {
		_, err := wrapped.Read(make([]byte, 1))
		waiting <- err
	}()
	require.NoError(t, wrapped.Close())
	require.ErrorIs(t, <-waiting, net.ErrClosed)
}

// A peer that reads nothing stops the writer, who says how much has gone.
func TestWriteThatCannotEndSaysHowMuchIsGone(t *testing.T) {
	t.Parallel()
	wrapped, peer := pair(t)
	require.NoError(t, wrapped.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	piece := make([]byte, 10_000)
	var sent int64
	var err error
	for err == nil {
		var n int
		n, err = wrapped.Write(piece)
		sent += int64(n)
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, wrapped.Close())
	got, err := io.Copy(io.Discard, peer)
	require.NoError(t, err)
	require.Equal(t, sent, got)
}

func TestWriterGoesOnWhenThereIsRoomAgain(t *testing.T) {
	t.Parallel()
	wrapped, peer := pair(t)
	require.NoError(t, wrapped.(interface{ SetWriteBuffer(bytes int) error }).SetWriteBuffer(4096))
	const total = 4 << 20
	sent := make(chan error, 1)
	go func() {
		piece := make([]byte, 64*1024)
		for range total / len(piece) {
			if _, err := wrapped.Write(piece); err != nil {
				sent <- err
				return
			}
		}
		sent <- wrapped.Close()
	}()
	got, err := io.Copy(io.Discard, peer)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.EqualValues(t, total, got)
}

func TestMessagesCostNoAllocation(t *testing.T) { //nolint:paralleltest // it counts what the process allocates
	wrapped, peer := pair(t)
	in, out := make([]byte, 100), make([]byte, 100)
	var failed error
	allocations := testing.AllocsPerRun(100, func() {
		_, err := wrapped.Write(out)
		_, peerErr := io.ReadFull(peer, in)
		_, answerErr := peer.Write(in)
		_, readErr := io.ReadFull(wrapped, out)
		failed = errors.Join(failed, err, peerErr, answerErr, readErr)
	})
	require.NoError(t, failed)
	require.Zero(t, allocations)
}

func TestOtherConnectionsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	require.Same(t, a, socket.Wrap(a))
}
