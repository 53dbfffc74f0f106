package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// whatsMyURI tells the client its own address.
//
// Behaviour: the address from which the connection comes, as the proxy sees it.
//
// Not supported: addresses behind what forwards connections.
func whatsMyURI(_ context.Context, _ *Proxy, q *request) error {
	q.build(func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "you", q.client.nc.RemoteAddr().String())
	})
	return nil
}
