package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// buildInfo answers what shells and tools look at.
//
// Behaviour: version and versionArray are those that the advertised wire version stands
// for: the lowest of the shards, and 8.0 at most; modules, bits, debug, maxBsonObjectSize.
//
// Not supported: what a server was built with.
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
