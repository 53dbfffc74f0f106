package proxy

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// hello makes a driver take the proxy for a mongos: msg is isdbgrid, and no set
// name and no host is named, so that it dials nobody but the proxy.
//
// Behaviour: hello, isMaster and ismaster, as OP_MSG or OP_QUERY; helloOk;
// compressors that both sides know; one reply, also when exhaust is allowed.
//
// Not supported: topologyVersion and awaitable hello are left out on purpose,
// so that drivers poll; loadBalanced is refused.
func hello(ctx context.Context, p *Proxy, q *request) error {
	if q.option("loadBalanced").Truth() && q.option("loadBalanced").Type != 0 {
		p.metrics.refused("load_balanced")
		return refuse(codeInvalidOptions, "this proxy does not serve loadBalanced connections: list every proxy's own address as a seed instead")
	}
	p.slowDown(ctx, q.client)
	q.client.introduce(q)
	primary := "ismaster"
	if string(q.cmd.Name) == "hello" {
		primary = "isWritablePrimary"
	}
	q.build(func(dst []byte) []byte {
		if q.option("helloOk").Type != 0 && q.option("helloOk").Truth() {
			dst = bsoncore.AppendBooleanElement(dst, "helloOk", true)
		}
		dst = bsoncore.AppendBooleanElement(dst, primary, true)
		dst = bsoncore.AppendStringElement(dst, "msg", "isdbgrid")
		dst = bsoncore.AppendInt32Element(dst, "maxBsonObjectSize", wire.MaxDocument)
		dst = bsoncore.AppendInt32Element(dst, "maxMessageSizeBytes", advertisedMessage)
		dst = bsoncore.AppendInt32Element(dst, "maxWriteBatchSize", maxWriteBatch)
		dst = bsoncore.AppendDateTimeElement(dst, "localTime", time.Now().UnixMilli())
		dst = bsoncore.AppendInt32Element(dst, "logicalSessionTimeoutMinutes", int32(sessionLife/time.Minute))
		dst = bsoncore.AppendInt32Element(dst, "connectionId", q.client.id)
		dst = bsoncore.AppendInt32Element(dst, "minWireVersion", leastWireVersion)
		dst = bsoncore.AppendInt32Element(dst, "maxWireVersion", p.pools.wireVersion())
		dst = p.appendSpeculative(ctx, dst, q)
		return appendCompressors(dst, q.option("compression"))
	})
	return nil
}

const (
	// advertisedMessage leaves room for what the proxy adds to a message.
	advertisedMessage = wire.MaxMessage - 64*1024
	// maxWriteBatch is the number of statements in a batch, as mongod has it.
	maxWriteBatch = 100_000
)

// appendCompressors appends the offered compressors that the proxy knows.
func appendCompressors(dst []byte, offered wire.Element) []byte {
	if offered.Type != bson.TypeArray {
		return dst
	}
	at, out := bsoncore.AppendArrayElementStart(dst, "compression")
	n := 0
	for w := wire.Walk(offered.Document()); w.Next(); {
		if _, known := wire.CompressorNamed(string(w.Text())); known {
			out = bsoncore.AppendStringElement(out, index(n), string(w.Text()))
			n++
		}
	}
	if n == 0 {
		return dst
	}
	out, _ = bsoncore.AppendArrayEnd(out, at)
	return out
}

// ping answers ok and nothing else.
func ping(_ context.Context, _ *Proxy, q *request) error {
	q.build(func(dst []byte) []byte { return dst })
	return nil
}

// shownVersion is the server version that fits the wire version.
func shownVersion(wireVersion int32) (text string, numbers [4]int32) {
	switch {
	case wireVersion >= 25:
		return "8.0.0", [4]int32{8, 0, 0, 0}
	case wireVersion >= 21:
		return "7.0.0", [4]int32{7, 0, 0, 0}
	default:
		return "6.0.0", [4]int32{6, 0, 0, 0}
	}
}

// buildInfo answers what shells and tools look at: the version that the
// advertised wire version stands for.
func buildInfo(_ context.Context, p *Proxy, q *request) error {
	text, numbers := shownVersion(p.pools.wireVersion())
	q.build(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "version", text)
		dst = bsoncore.AppendStringElement(dst, "gitVersion", "drover")
		at, dst := bsoncore.AppendArrayElementStart(dst, "modules")
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		at, dst = bsoncore.AppendArrayElementStart(dst, "versionArray")
		for i, n := range numbers {
			dst = bsoncore.AppendInt32Element(dst, index(i), n)
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		dst = bsoncore.AppendInt32Element(dst, "bits", 64)
		dst = bsoncore.AppendBooleanElement(dst, "debug", false)
		return bsoncore.AppendInt32Element(dst, "maxBsonObjectSize", wire.MaxDocument)
	})
	return nil
}

// whatsMyURI tells the client its own address.
func whatsMyURI(_ context.Context, _ *Proxy, q *request) error {
	q.build(func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "you", q.client.nc.RemoteAddr().String())
	})
	return nil
}

// getParameter knows the one parameter that shells ask for.
func getParameter(_ context.Context, p *Proxy, q *request) error {
	if q.option("featureCompatibilityVersion").Type == 0 {
		return refuse(codeInvalidOptions, "no option found to get")
	}
	text, _ := shownVersion(p.pools.wireVersion())
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendDocumentElementStart(dst, "featureCompatibilityVersion")
		dst = bsoncore.AppendStringElement(dst, "version", text[:3])
		dst, _ = bsoncore.AppendDocumentEnd(dst, at)
		return dst
	})
	return nil
}

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

// startSession makes an id, as drivers do by themselves.
func startSession(_ context.Context, _ *Proxy, q *request) error {
	id := bson.NewObjectID()
	var uuid [16]byte
	copy(uuid[:], id[:])
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendDocumentElementStart(dst, "id")
		dst = bsoncore.AppendBinaryElement(dst, "id", bson.TypeBinaryUUID, uuid[:])
		dst, _ = bsoncore.AppendDocumentEnd(dst, at)
		return bsoncore.AppendInt32Element(dst, "timeoutMinutes", int32(sessionLife/time.Minute))
	})
	return nil
}

// listDatabases lists the logical databases. Sizes are not known here.
func listDatabases(_ context.Context, p *Proxy, q *request) error {
	nameOnly := q.option("nameOnly").Type != 0 && q.option("nameOnly").Truth()
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendArrayElementStart(dst, "databases")
		for i, name := range q.visible(p.routing.databaseNames()) {
			var doc int32
			doc, dst = bsoncore.AppendDocumentElementStart(dst, index(i))
			dst = bsoncore.AppendStringElement(dst, "name", name)
			if !nameOnly {
				dst = bsoncore.AppendInt64Element(dst, "sizeOnDisk", 0)
				dst = bsoncore.AppendBooleanElement(dst, "empty", false)
			}
			dst, _ = bsoncore.AppendDocumentEnd(dst, doc)
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		if !nameOnly {
			dst = bsoncore.AppendInt64Element(dst, "totalSize", 0)
			dst = bsoncore.AppendInt64Element(dst, "totalSizeMb", 0)
		}
		return dst
	})
	return nil
}
