//go:build race

package socket

import (
	"errors"
	"syscall"
)

// The race detector takes what one goroutine writes to a connection and another one
// reads for an order between them, and sees it in package syscall only.

// receive reads what is there into b.
func receive(fd uintptr, b []byte) (int, syscall.Errno) { return call(syscall.Read, fd, b) }

// send writes of b what there is room for.
func send(fd uintptr, b []byte) (int, syscall.Errno) { return call(syscall.Write, fd, b) }

// call makes one system call about b.
func call(do func(fd int, b []byte) (int, error), fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, err := do(int(fd), b) //nolint:gosec // a descriptor is small
		errno, _ := errors.AsType[syscall.Errno](err)
		if errno != syscall.EINTR {
			return n, errno
		}
	}
}
