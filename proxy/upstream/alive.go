package upstream

import (
	"crypto/tls"
	"syscall"
	"time"
)

// restBeforeCheck is how long a connection must have been idle before it is
// worth a system call to see whether the other side has closed it.
const restBeforeCheck = 50 * time.Millisecond

// alive reports whether an idle connection may be used. A server that went away
// has mostly left the end of the stream behind, and a request that is not sent
// into it is one whose outcome is known.
func (c *Conn) alive() bool {
	if c.broken {
		return false
	}
	if c.idleSince.IsZero() || time.Since(c.idleSince) < restBeforeCheck {
		return true
	}
	nc := c.nc
	if tc, ok := nc.(*tls.Conn); ok {
		nc = tc.NetConn()
	}
	tcp, ok := nc.(syscall.Conn)
	if !ok {
		return true
	}
	// A deadline of the last exchange would end this read at once.
	if err := nc.SetReadDeadline(time.Time{}); err != nil {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		// Nothing to read is the only good sign: a server never speaks first.
		quiet = n <= 0 && (err == syscall.EAGAIN || err == syscall.EWOULDBLOCK) // a bare errno
		return true
	})
	return err == nil && quiet
}
