package proxy

import (
	"context"
	"os"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// started is when this process began to serve.
var started = time.Now() //nolint:gochecknoglobals // a constant of the process

// serverStatus shows what tools and shells read of a mongos.
//
// Behaviour: host is the proxy's id, process is mongos; version, uptime,
// connections and localTime are real.
//
// Not supported: every other section; the proxy's metrics tell more.
func serverStatus(_ context.Context, p *Proxy, q *request) error {
	version, _ := shownVersion(p.pools.wireVersion())
	p.mu.Lock()
	clients := len(p.clients)
	p.mu.Unlock()
	up := time.Since(started)
	q.build(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "host", p.cfg.ID)
		dst = bsoncore.AppendStringElement(dst, "version", version)
		dst = bsoncore.AppendStringElement(dst, "process", "mongos")
		dst = bsoncore.AppendInt64Element(dst, "pid", int64(os.Getpid()))
		dst = bsoncore.AppendDoubleElement(dst, "uptime", up.Seconds())
		dst = bsoncore.AppendInt64Element(dst, "uptimeMillis", up.Milliseconds())
		dst = bsoncore.AppendDateTimeElement(dst, "localTime", time.Now().UnixMilli())
		return bsoncore.AppendDocumentElement(dst, "connections", document(func(dst []byte) []byte {
			dst = appendCount(dst, "current", int64(clients))
			dst = appendCount(dst, "available", int64(max(0, p.cfg.MaxClients-clients)))
			return appendCount(dst, "totalCreated", int64(p.lastID.Load()))
		}))
	})
	return nil
}
