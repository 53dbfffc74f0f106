package proxy

import (
	"context"
)

// ping answers ok and nothing else.
//
// Behaviour: the proxy itself answers, without a login too.
//
// Not supported: telling anything of a shard.
func ping(_ context.Context, _ *Proxy, q *request) error {
	q.build(func(dst []byte) []byte { return dst })
	return nil
}
