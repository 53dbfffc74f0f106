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
// compressors that both sides know; one reply, also when exhaust is allowed; a field
// drover with the proxy's name and region, for people.
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
		dst = p.appendSelf(dst)
		dst = bsoncore.AppendInt32Element(dst, "minWireVersion", leastWireVersion)
		dst = bsoncore.AppendInt32Element(dst, "maxWireVersion", p.pools.wireVersion())
		dst = p.appendSpeculative(ctx, dst, q)
		return appendCompressors(dst, q.option("compression"))
	})
	return nil
}

// appendSelf tells people which proxy they have reached, and where it stands.
func (p *Proxy) appendSelf(dst []byte) []byte {
	at, dst := bsoncore.AppendDocumentElementStart(dst, "drover")
	dst = bsoncore.AppendStringElement(dst, "proxy", p.cfg.ID)
	if p.cfg.Region != "" {
		dst = bsoncore.AppendStringElement(dst, "region", p.cfg.Region)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
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
