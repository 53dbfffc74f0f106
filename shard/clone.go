package shard

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
)

// ProvisionClone makes the collections of a clone with their options and without
// their indexes: those are built by [Set.Provision] once the documents are there.
// Expiry stays parked for good, or the clone would lose what it was made for.
func (s *Set) ProvisionClone(ctx context.Context, db string, collections []chunk.Collection) error {
	if !chunk.IsClone(db) {
		return failure.New(failure.Invalid, "clone.wrong_database", "%s is no name of a clone's database", db)
	}
	for _, c := range collections {
		if err := s.createCollection(ctx, db, c); err != nil {
			return err
		}
	}
	return nil
}

// IndexClone builds the indexes of a clone, each as it is defined, expiry parked. One
// that cannot be built keeps no other from being built, and is named.
func (s *Set) IndexClone(ctx context.Context, db string, collections []chunk.Collection) error {
	var broken []error
	for _, c := range collections {
		for _, spec := range c.Indexes {
			if err := s.createIndex(ctx, db, c, spec, true, bson.E{Key: "commitQuorum", Value: "majority"}); err != nil {
				broken = append(broken, err)
			}
		}
	}
	return errors.Join(broken...)
}

// DropClone drops a clone's database with the roles that were made to fill it. It may
// be run again.
func (s *Set) DropClone(ctx context.Context, id chunk.MigrationID, db string) error {
	if db != chunk.CloneName(chunk.CloneOf(db), id) {
		return failure.New(failure.Invalid, "clone.wrong_database", "%s is not the database of clone %d", db, id)
	}
	if err := s.DropCloneRoles(ctx, id); err != nil {
		return err
	}
	_, err := run(ctx, s.admin(), db, bson.D{{Key: "dropDatabase", Value: 1}, majority()})
	return s.wrap(err, "drop database %s", db)
}

// DropCloneRoles ends the right to write into a clone.
func (s *Set) DropCloneRoles(ctx context.Context, id chunk.MigrationID) error {
	names, _, err := s.roleNames(ctx)
	if err != nil {
		return err
	}
	for _, n := range names {
		if cloneRole(n, id) {
			if err := s.dropRole(ctx, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// cloneRole reports whether a role was made to fill a clone: those of placements
// have a placement's number.
func cloneRole(role string, id chunk.MigrationID) bool {
	loader := chunk.LoaderRole(0, id)
	prefix := fmt.Sprintf("a_p0_m%d_d", id)
	return role == loader || len(role) > len(prefix) && role[:len(prefix)] == prefix
}
