package socket

import (
	"io"
	"net"
	"os"
	"syscall"
)

// Conn is a TCP connection. One goroutine may read it and one write to it at a time.
type Conn struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out transfer
}

// transfer is one read or write that is under way.
type transfer struct {
	buf   []byte
	n     int // bytes that were transferred
	errno syscall.Errno
	step  func(fd uintptr) bool // goes on, and reports whether it is done
}

// Wrap gives nc with cheap reads and writes, if it is a TCP connection.
func Wrap(nc net.Conn) net.Conn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nc
	}
	c := &Conn{TCPConn: tcp, raw: raw}
	c.in.step, c.out.step = c.in.receive, c.out.send
	return c
}

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 || len(b) > small {
		return c.TCPConn.Read(b) //nolint:wrapcheck // the connection's own error
	}
	n, err := c.in.run(b, c.raw.Read)
	if err != nil {
		return 0, c.fail("read", err)
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write implements [net.Conn].
func (c *Conn) Write(b []byte) (int, error) {
	if len(b) == 0 || len(b) > small {
		return c.TCPConn.Write(b) //nolint:wrapcheck // the connection's own error
	}
	n, err := c.out.run(b, c.raw.Write)
	if err != nil {
		return n, c.fail("write", err)
	}
	return n, nil
}

// run transfers b, waiting as wait does.
func (t *transfer) run(b []byte, wait func(func(uintptr) bool) error) (int, error) {
	t.buf, t.n, t.errno = b, 0, 0
	err := wait(t.step)
	t.buf = nil
	if err == nil && t.errno != 0 {
		err = t.errno
	}
	return t.n, err
}

// receive takes what is there.
func (t *transfer) receive(fd uintptr) bool {
	n, errno := receive(fd, t.buf)
	if errno == syscall.EAGAIN {
		return false
	}
	t.n, t.errno = n, errno
	return true
}

// send gives what there is room for, until nothing is left.
func (t *transfer) send(fd uintptr) bool {
	for t.n < len(t.buf) {
		n, errno := send(fd, t.buf[t.n:])
		if errno == syscall.EAGAIN {
			return false
		}
		if errno != 0 {
			t.errno = errno
			return true
		}
		t.n += n
	}
	return true
}

// fail gives a failed call the form that package net gives it.
func (c *Conn) fail(op string, err error) error {
	if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // a bare errno
		return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
	}
	return err
}
