package replication

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/internal/failure"
)

// A split has a target for each part of the source's range, and each target its
// own lanes, which read the whole of the source's log. An event that brings the
// document tells by its shard key whose it is. A deletion goes to all. An update
// carries no shard key: the target that has the document applies it, and each of
// the others counts it as foreign. Every update has exactly one target, so with n
// targets the foreign ones of all lanes of a partition together must be n - 1
// times the updates. That is looked at when all lanes have passed the final
// marker: an update that no target, or more than one, had a document for is found
// by it, though not which one.

// countForeign is what a batch adds to [Checkpoint].Foreign.
func countForeign(docs []*document) (deltas, foreign int) {
	for _, d := range docs {
		deltas += d.deltas
		foreign += d.foreign
	}
	return deltas, foreign
}

// Tally is the lanes of one leg on its target.
type Tally struct {
	Client    *mongo.Client
	Migration chunk.MigrationID
}

// CheckForeign proves that each update of a source had exactly one target, once
// every lane of all its legs has passed the same marker and nothing is written on
// the source any more.
func CheckForeign(ctx context.Context, direction chunk.AttemptID, legs []Tally) error {
	type sum struct{ deltas, foreign, lanes int64 }
	byPartition := map[int32]sum{}
	for i, leg := range legs {
		all, err := ReadCheckpoints(ctx, leg.Client, leg.Migration, direction)
		if err != nil {
			return err
		}
		for _, c := range all {
			s := byPartition[c.Partition]
			if i > 0 && s.deltas != c.Deltas {
				return tallyError("lanes of partition %d met %d and %d updates", c.Partition, s.deltas, c.Deltas)
			}
			byPartition[c.Partition] = sum{deltas: c.Deltas, foreign: s.foreign + c.Foreign, lanes: s.lanes + 1}
		}
	}
	for p, s := range byPartition {
		if s.lanes != int64(len(legs)) && (s.deltas > 0 || s.foreign > 0) { // an older worker has lanes in every partition
			return tallyError("partition %d has %d lanes for %d targets", p, s.lanes, len(legs))
		}
		if want := s.deltas * (s.lanes - 1); s.foreign != want {
			return tallyError("of %d updates in partition %d, %d were of other targets: they should be %d", s.deltas, p, s.foreign, want)
		}
	}
	return nil
}

// tallyError is a split whose targets together are not the source.
func tallyError(format string, args ...any) error {
	return failure.New(failure.Mismatch, "lane.foreign_count", format, args...).
		WithHint("an update had no target that holds its document, or more than one: the next validation names the documents")
}

// enters reports whether an update may bring a document into what keep has: it
// sets the shard key to a value there, or changes it in a way that the update alone
// does not tell.
func enters(keep *chunk.Keep, collection string, change []byte) (bool, error) {
	c, err := parseContainer(change, false)
	if err != nil {
		return false, fmt.Errorf("its update description: %w", err)
	}
	shardKey := keep.ShardKeys[collection]
	for i := range c.fields {
		part, ok, err := c.fields[i].into()
		if err != nil {
			return false, fmt.Errorf("its update description: %w", err)
		}
		if !ok {
			continue
		}
		for j := range part.fields {
			f := &part.fields[j]
			path := f.name
			switch c.fields[i].name {
			case "updatedFields":
				// One field of several does not tell where the document then lies.
				if rest, above := strings.CutPrefix(shardKey, path); above && (rest == "" || rest[0] == '.') && !strings.Contains(shardKey, ",") {
					in, err := setsWithin(keep, f, rest)
					if err != nil || in {
						return in, err
					}
					continue
				}
			case "removedFields":
				path, _ = bson.RawValue{Type: bson.Type(f.kind), Value: f.raw}.StringValueOK()
			case "truncatedArrays":
				path, _ = bson.Raw(f.raw).Lookup("field").StringValueOK()
			default:
				continue
			}
			if keep.Touches(collection, path) {
				return true, nil
			}
		}
	}
	return false, nil
}

// setsWithin reports whether a shard key's new value, at rest behind what f sets,
// lies in what keep has.
func setsWithin(keep *chunk.Keep, f *field, rest string) (bool, error) {
	doc, err := bson.Marshal(bson.D{{Key: "v", Value: bson.RawValue{Type: bson.Type(f.kind), Value: f.raw}}})
	if err != nil {
		return false, fmt.Errorf("its shard key: %w", err)
	}
	at := *keep
	at.ShardKeys = map[string]string{"": "v" + rest}
	return at.Has("", doc) //nolint:wrapcheck // says what it is about
}
