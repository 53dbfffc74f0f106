package proxy

import (
	"context"
	"os"
	"runtime"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
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

// stats answers dbStats and collStats with the sums over the chunks.
//
// Behaviour: counts and sizes are added, scaled as asked; averages are made anew.
//
// Not supported: what a sum says nothing about, such as wiredTiger.
func stats(ctx context.Context, p *Proxy, q *request) error {
	database := strings.EqualFold(string(q.cmd.Name), "dbStats")
	db, err := p.routing.database(ctx, q.cmd.DB)
	if err != nil {
		return err
	}
	if !database {
		var coll *collection
		if db, coll, err = p.place(ctx, q); err != nil {
			return err
		}
		if coll == nil {
			db = nil
		}
	}
	var answers []answer
	if db != nil && len(db.entries) > 0 {
		answers, err = p.gather(ctx, q, db.entries, edit{})
		defer releaseAll(answers)
		if err != nil {
			return err
		}
	}
	q.build(func(dst []byte) []byte {
		if database {
			dst = bsoncore.AppendStringElement(dst, "db", string(q.cmd.DB))
		} else {
			dst = bsoncore.AppendStringElement(dst, "ns", string(q.cmd.DB)+"."+string(q.cmd.Collection()))
		}
		return appendSums(dst, answers)
	})
	return nil
}

// summed are the numbers of stats that add up; those that every chunk has alike
// are not among them.
var summed = []string{"views", "objects", "count", "size", "dataSize", "storageSize", "totalIndexSize", "indexSize", "totalSize", "numOrphanDocs"}

// alike are the numbers of stats that every chunk has the same.
var alike = []string{"collections", "nindexes", "indexes", "scaleFactor"}

// appendSums appends what some chunks' stats come to.
func appendSums(dst []byte, answers []answer) []byte {
	sums := map[string]int64{}
	for _, name := range summed {
		known := false
		for i := range answers {
			if e, ok := wire.Find(answers[i].raw, name); ok {
				n, _ := e.Number()
				sums[name] += n
				known = true
			}
		}
		if known || len(answers) == 0 {
			dst = appendCount(dst, name, sums[name])
		}
	}
	for _, name := range alike {
		for i := range answers {
			if e, ok := wire.Find(answers[i].raw, name); ok {
				dst = append(dst, e.Raw...)
				break
			}
		}
	}
	objects, bytes := max(sums["objects"], sums["count"]), max(sums["size"], sums["dataSize"])
	average := 0.0
	if objects > 0 {
		average = float64(bytes) / float64(objects)
	}
	return bsoncore.AppendDoubleElement(dst, "avgObjSize", average)
}

// refusedCommands are MongoDB's commands that are not served for a reason that a
// person can act on; all others are CommandNotFound.
var refusedCommands = map[string]string{
	"dropDatabase":            "databases are dropped with drover db",
	"renameCollection":        "a collection keeps its name",
	"mapReduce":               "use aggregate",
	"currentOp":               "it would show shards; see drover status",
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
