package shard

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/failure"
)

// KillSession aborts the open transaction of exactly one session of one of
// Drover's users, if there is one. lsid is the session's id, 16 bytes.
func (s *Set) KillSession(ctx context.Context, user string, lsid []byte) error {
	if len(lsid) != 16 {
		return failure.New(failure.Invalid, "shard.bad_session", "a session id has 16 bytes, not %d", len(lsid))
	}
	return s.killSessions(ctx, []session{{ID: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: lsid}, UID: userDigest(user)}})
}
