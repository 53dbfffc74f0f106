package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// getParameter knows the one parameter that shells ask for.
//
// Behaviour: featureCompatibilityVersion, as buildInfo's version has it.
//
// Not supported: any other parameter, '*', allParameters (InvalidOptions, 72).
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
