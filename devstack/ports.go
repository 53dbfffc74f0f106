package devstack

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/big"
	"net"
	"sync"

	"drover/internal/failure"
)

// The range that ports are chosen from. It lies below the one that Linux gives
// to outgoing connections, so that nothing takes a stopped part's port by chance.
const (
	firstPort = 20000
	lastPort  = 31999
)

// portPicker chooses free ports; the first error stays.
type portPicker struct {
	taken map[int]bool
	err   error
}

// given are the ports that this process was given: one whose server is down for a
// moment belongs to it all the same.
var given struct { //nolint:gochecknoglobals // ports are the process's
	sync.Mutex
	picker portPicker
}

// FreePort gives a port that nobody listens on now, and that was not given before.
func FreePort() (int, error) {
	given.Lock()
	defer given.Unlock()
	p := &given.picker
	if p.taken == nil {
		p.taken = map[int]bool{}
	}
	p.err = nil
	return p.pick(), p.err
}

// pick is a port that nobody listens on now.
func (p *portPicker) pick() int {
	for range 200 {
		port := firstPort + randomInt(lastPort-firstPort+1)
		if p.taken[port] || !portFree(port) {
			continue
		}
		p.taken[port] = true
		return port
	}
	p.err = failure.New(failure.Transient, "devstack.ports", "no free port between %d and %d", firstPort, lastPort)
	return 0
}

// portFree reports whether one can listen on port.
func portFree(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)) //nolint:noctx // bound and closed at once
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// randomInt is a number in [0, n).
func randomInt(n int) int {
	v, err := rand.Int(rand.Reader, big.NewInt(int64(n)))
	if err != nil {
		panic("devstack: no randomness: " + err.Error())
	}
	return int(v.Int64())
}

// randomBytes never fails: the runtime stops the program where there is no randomness.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// randomHex is a password of n random bytes.
func randomHex(n int) string { return hex.EncodeToString(randomBytes(n)) }

// randomUUID is a Kafka cluster id: 16 bytes in URL-safe base64.
func randomUUID() string {
	for {
		// Kafka refuses an id that starts with a dash: its tools take it for a flag.
		if id := base64.RawURLEncoding.EncodeToString(randomBytes(16)); id[0] != '-' {
			return id
		}
	}
}
