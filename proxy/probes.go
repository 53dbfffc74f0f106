package proxy

import (
	"context"
	"runtime"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// What shells and tools ask besides, and what is refused for a reason.
//
// Behaviour: getCmdLineOpts, getLog and hostInfo have the form that shells read.
//
// Not supported: telling anything of a shard or of the proxy's machine.

// getCmdLineOpts answers shells with nothing.
func getCmdLineOpts(_ context.Context, _ *Proxy, q *request) error {
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendArrayElementStart(dst, "argv")
		dst = bsoncore.AppendStringElement(dst, "0", "drover")
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		return bsoncore.AppendDocumentElement(dst, "parsed", bsoncore.Document(emptyDocument))
	})
	return nil
}

// getLog answers shells with an empty log: the proxy's own is not for clients.
func getLog(_ context.Context, _ *Proxy, q *request) error {
	q.build(func(dst []byte) []byte {
		dst = bsoncore.AppendInt32Element(dst, "totalLinesWritten", 0)
		at, dst := bsoncore.AppendArrayElementStart(dst, "log")
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		return dst
	})
	return nil
}

// hostInfo names the proxy and no machine of a shard.
func hostInfo(_ context.Context, p *Proxy, q *request) error {
	q.build(func(dst []byte) []byte {
		dst = bsoncore.AppendDocumentElement(dst, "system", document(func(dst []byte) []byte {
			dst = bsoncore.AppendDateTimeElement(dst, "currentTime", time.Now().UnixMilli())
			dst = bsoncore.AppendStringElement(dst, "hostname", p.cfg.ID)
			return appendCount(dst, "numCores", int64(runtime.NumCPU()))
		}))
		return bsoncore.AppendDocumentElement(dst, "os", document(func(dst []byte) []byte {
			return bsoncore.AppendStringElement(dst, "type", runtime.GOOS)
		}))
	})
	return nil
}

// refusedCommands are MongoDB's commands that are not served for a reason that a
// person can act on; all others are CommandNotFound.
var refusedCommands = map[string]string{
	"dropDatabase":            "drop its collections; the database itself stays",
	"renameCollection":        "a collection keeps its name",
	"mapReduce":               "use aggregate",
	"currentOp":               "it would show what shards do; `drover migrate status` and `drover db clients` tell what concerns applications",
	"killOp":                  "it would need a shard",
	"replSetGetStatus":        "this is a router, no replica set",
	"bulkWrite":               "send insert, update and delete commands",
	"convertToCapped":         "a capped collection could not be moved",
	"cloneCollectionAsCapped": "a capped collection could not be moved",
}

// refuseKnown answers what is not served, with the reason.
func refuseKnown(_ context.Context, p *Proxy, q *request) error {
	p.metrics.refused("not_supported")
	return refuse(codeNotSupported, "%s is not supported: %s", q.cmd.Name, refusedCommands[string(q.cmd.Name)])
}
