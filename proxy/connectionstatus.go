package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// connectionStatus tells who is logged in.
//
// Behaviour: the user of the connection; the lists that a server gives are there.
//
// Not supported: roles and privileges, which are empty: drover user shows the grants.
func connectionStatus(_ context.Context, p *Proxy, q *request) error {
	show := q.option("showPrivileges")
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendDocumentElementStart(dst, "authInfo")
		names := []string{"authenticatedUsers", "authenticatedUserRoles"}
		if show.Type != 0 && show.Truth() {
			names = append(names, "authenticatedUserPrivileges")
		}
		for _, name := range names {
			var list int32
			list, dst = bsoncore.AppendArrayElementStart(dst, name)
			if p.book != nil && q.client.user != "" && name == "authenticatedUsers" {
				dst = bsoncore.AppendDocumentElement(dst, "0", document(func(dst []byte) []byte {
					dst = bsoncore.AppendStringElement(dst, "user", q.client.user)
					return bsoncore.AppendStringElement(dst, "db", "admin")
				}))
			}
			dst, _ = bsoncore.AppendArrayEnd(dst, list)
		}
		dst, _ = bsoncore.AppendDocumentEnd(dst, at)
		return dst
	})
	return nil
}
