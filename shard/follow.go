package shard

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// Follow makes in db the change of a collection's definition that a change stream
// described: op createIndexes, dropIndexes or modify with its operationDescription.
// Indexes are built as they were listed; a build waits for a majority of the set, so
// that a member that is down does not hold it.
//
// Before: db is a placement's database on this shard. After: db has the change. If
// interrupted: run again; what is so already is no error. Codes:
// collection.index_conflict, collection.index_unbuildable, collection.not_followed.
func (s *Set) Follow(ctx context.Context, db, collection, op string, description bson.Raw) error {
	switch op {
	case "createIndexes":
		return s.followIndexes(ctx, db, collection, description)
	case "dropIndexes":
		for _, spec := range described(description) {
			_, err := run(ctx, s.admin(), db, bson.D{{Key: "dropIndexes", Value: collection}, {Key: "index", Value: indexName(spec)}, majority()})
			if err != nil && !mongocode.Has(err, mongocode.IndexNotFound, mongocode.NamespaceNotFound) {
				return s.wrap(err, "drop index %s of %s.%s", indexName(spec), db, collection)
			}
		}
		return nil
	case "modify":
		cmd := bson.D{{Key: "collMod", Value: collection}}
		for k, v := range ordered(description) {
			cmd = append(cmd, bson.E{Key: k, Value: v})
		}
		_, err := run(ctx, s.admin(), db, append(cmd, majority()))
		return s.wrap(err, "change %s.%s", db, collection)
	default:
		return failure.New(failure.Invalid, "collection.not_followed", "%s of %s.%s is not followed", op, db, collection)
	}
}

// followIndexes builds indexes that were built on the source.
func (s *Set) followIndexes(ctx context.Context, db, collection string, description bson.Raw) error {
	infos, err := s.Definitions(ctx, db)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(infos, func(x CollectionInfo) bool { return x.Name == collection })
	if i < 0 {
		return failure.New(failure.Invalid, "collection.not_followed", "there is no %s.%s on shard %s to be indexed", db, collection, s.Name())
	}
	for _, spec := range described(description) {
		if err := s.createIndex(ctx, db, chunk.Collection{Name: collection, Options: infos[i].Options}, spec, true, bson.E{Key: "commitQuorum", Value: "majority"}); err != nil {
			return fmt.Errorf("follow index %s: %w", indexName(spec), err)
		}
	}
	return nil
}

// described gives the specifications in a description of DDL on indexes.
func described(description bson.Raw) []bson.Raw {
	list, _ := description.Lookup("indexes").ArrayOK()
	values, err := list.Values()
	if err != nil {
		return nil
	}
	var specs []bson.Raw
	for _, v := range values {
		if spec, ok := v.DocumentOK(); ok {
			specs = append(specs, spec)
		}
	}
	return specs
}
