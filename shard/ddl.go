package shard

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/mongocode"
)

// Define runs a command that changes the definition of a collection in one
// placement's database: create, drop, createIndexes, dropIndexes or collMod.
// done is false when the server says that there was nothing to change.
//
// Before: no move of the placement's chunk is under way. After: the change is on a
// majority. If interrupted: run again. A server's error stays one.
func (s *Set) Define(ctx context.Context, db string, cmd bson.Raw) (reply bson.Raw, done bool, err error) {
	var doc bson.D
	if err := bson.Unmarshal(cmd, &doc); err != nil {
		return nil, false, fmt.Errorf("read command: %w", err)
	}
	reply, err = run(ctx, s.admin(), db, append(doc, majority()))
	if mongocode.IsNamespaceExists(err) || mongocode.IsNamespaceNotFound(err) || mongocode.IsIndexNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("%s of %s on shard %s: %w", doc[0].Key, db, s.Name(), err)
	}
	return reply, true, nil
}
