package shard

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"drover/chunk"
	"drover/internal/mongocode"
)

// markerDocument is a marker as it is stored.
type markerDocument struct {
	ID           string `bson:"_id"`
	chunk.Marker `bson:",inline"`
}

// WriteMarker inserts a marker, acknowledged by a majority, and gives its cluster
// time, or a time after it. Writing it a second time changes nothing, so it comes
// back once in the captured log.
//
// Before: for a drained or final marker, the fence is up and the drain is over.
// If interrupted: run again with the same marker.
func (s *Set) WriteMarker(ctx context.Context, m chunk.Marker) (bson.Timestamp, error) {
	r, err := run(ctx, s.admin(), chunk.SystemDatabase, bson.D{
		{Key: "insert", Value: chunk.MarkersCollection},
		{Key: "documents", Value: []markerDocument{{ID: m.Key(), Marker: m}}},
		majority(),
	})
	if mongocode.IsDuplicateKey(err) {
		return s.confirmMarker(ctx, m)
	}
	if err != nil {
		return bson.Timestamp{}, s.wrap(err, "write marker %s", m.Key())
	}
	return operationTime(r), nil
}

// confirmMarker waits until a marker that exists already is on a majority: who
// wrote it may have died before it knew.
func (s *Set) confirmMarker(ctx context.Context, m chunk.Marker) (bson.Timestamp, error) {
	// An update of nothing is the documented way to wait for what is already there.
	r, err := run(ctx, s.admin(), chunk.SystemDatabase, bson.D{
		{Key: "update", Value: chunk.MarkersCollection},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: m.Key()}}},
			{Key: "u", Value: bson.D{{Key: "$setOnInsert", Value: bson.D{{Key: "kind", Value: m.Kind}}}}},
		}}},
		majority(),
	})
	if err != nil {
		return bson.Timestamp{}, s.wrap(err, "confirm marker %s", m.Key())
	}
	return operationTime(r), nil
}

// HasMarker reports whether a majority of the shard has a marker: one that was
// captured and is not there any more means that the shard lost its history.
func (s *Set) HasMarker(ctx context.Context, key string) (bool, error) {
	n, err := s.drover().Collection(chunk.MarkersCollection, majorityRead()).
		CountDocuments(ctx, bson.D{{Key: "_id", Value: key}})
	return n > 0, s.wrap(err, "look for marker %s", key)
}

// LaneState is the checkpoint of one lane, as it is on the lane's target shard.
type LaneState struct {
	ID        string            `bson:"_id"`
	Migration chunk.MigrationID `bson:"migration"`
	Direction chunk.AttemptID   `bson:"direction"`
	Partition int32             `bson:"partition"`
	Epoch     int64             `bson:"epoch"`
	Seq       int64             `bson:"seq"`    // last applied
	Marker    string            `bson:"marker"` // newest marker of its migration that it passed
	Applied   int64             `bson:"applied"`
}

// Lanes reads the checkpoints of one direction of a migration with majority, in
// the order of their partitions.
func (s *Set) Lanes(ctx context.Context, m chunk.MigrationID, d chunk.AttemptID) ([]LaneState, error) {
	cur, err := s.drover().Collection(chunk.CheckpointsCollection, majorityRead()).Find(ctx,
		bson.D{{Key: "migration", Value: m}, {Key: "direction", Value: d}},
		options.Find().SetSort(bson.D{{Key: "partition", Value: 1}}))
	if err != nil {
		return nil, s.wrap(err, "read lanes of migration %d", m)
	}
	var lanes []LaneState
	if err := cur.All(ctx, &lanes); err != nil {
		return nil, s.wrap(err, "read lanes of migration %d", m)
	}
	return lanes, nil
}

// PassedMarker reports whether the direction's lane of a partition has the marker as
// the newest that it passed, read with majority.
func (s *Set) PassedMarker(ctx context.Context, m chunk.MigrationID, d chunk.AttemptID, partition int32, key string) (bool, error) {
	lanes, err := s.Lanes(ctx, m, d)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(lanes, func(l LaneState) bool { return l.Partition == partition && l.Marker == key }), nil
}

// ParkedCount counts the documents of a migration that wait for a unique key,
// read with majority.
func (s *Set) ParkedCount(ctx context.Context, m chunk.MigrationID) (int64, error) {
	n, err := s.drover().Collection(chunk.ParkedCollection, majorityRead()).
		CountDocuments(ctx, bson.D{{Key: "migration", Value: m}})
	if err != nil {
		return 0, s.wrap(err, "count parked documents of migration %d", m)
	}
	return n, nil
}

// RemoveMigration deletes what a migration left in Drover's database on this
// shard: checkpoints and parked documents. The markers stay: capture checks them.
func (s *Set) RemoveMigration(ctx context.Context, m chunk.MigrationID) error {
	for _, name := range []string{chunk.CheckpointsCollection, chunk.ParkedCollection} {
		if _, err := s.drover().Collection(name).DeleteMany(ctx, bson.D{{Key: "migration", Value: m}}); err != nil {
			return s.wrap(fmt.Errorf("%s: %w", name, err), "remove migration %d", m)
		}
	}
	return nil
}

// majorityRead are the options of a collection that is read with majority.
func majorityRead() *options.CollectionOptionsBuilder {
	return options.Collection().SetReadConcern(readconcern.Majority())
}

// Heartbeat gives the round of the shard's newest heartbeat as its primary has
// it. Capture writes every round, so the next one is written after this read.
func (s *Set) Heartbeat(ctx context.Context) (int64, error) {
	var doc chunk.Marker
	err := s.drover().Collection(chunk.MarkersCollection).FindOne(ctx, bson.D{{Key: "_id", Value: "heartbeat"}}).Decode(&doc)
	if err != nil {
		return 0, s.wrap(err, "read the heartbeat")
	}
	return doc.Round, nil
}
