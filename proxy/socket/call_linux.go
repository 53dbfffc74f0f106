//go:build !race

package socket

import (
	"runtime"
	"syscall"
	"unsafe"
)

// receive reads what is there into b.
func receive(fd uintptr, b []byte) (int, syscall.Errno) {
	return call(syscall.SYS_RECVFROM, fd, b, syscall.MSG_DONTWAIT)
}

// send writes of b what there is room for.
func send(fd uintptr, b []byte) (int, syscall.Errno) {
	return call(syscall.SYS_SENDTO, fd, b, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
}

// call makes one system call about b, which does not wait.
func call(trap, fd uintptr, b []byte, flags uintptr) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags, 0, 0) //nolint:gosec // memory that lives as long as the call
		runtime.KeepAlive(b)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}
