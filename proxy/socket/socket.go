// Package socket makes small reads and writes of TCP connections cheap.
//
// Behaviour: what a connection's system calls do never waits, for the poller does that;
// so they need not be announced to Go's scheduler either. Each announcement is one to
// its monitor as well, which sleeps in a process that has just been waiting for a
// message: to wake it takes longer than the call. Large transfers, which copy for a
// while, are left to package net.
package socket

// small is the most bytes of a transfer that is made here: the scheduler cannot take the
// processor away meanwhile.
const small = 64 * 1024
