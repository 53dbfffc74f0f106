package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/internal/pause"
)

// Checkpoint is a lane's durable state, on its target shard.
type Checkpoint struct {
	ID        string            `bson:"_id"`
	Migration chunk.MigrationID `bson:"migration"`
	Direction chunk.AttemptID   `bson:"direction"`
	Partition int32             `bson:"partition"`
	Epoch     int64             `bson:"epoch"`             // grows with every owner
	Seq       int64             `bson:"seq"`               // of the newest record that is dealt with; 0: the start marker was not met
	Offset    int64             `bson:"offset"`            // of that record
	Marker    string            `bson:"marker"`            // key of the newest marker of the migration that was passed
	Since     int64             `bson:"since"`             // records since the newest marker of any kind
	Session   bson.Binary       `bson:"session"`           // the owner's lsid id
	Applied   int64             `bson:"applied"`           // events applied, ever
	Turn      int64             `bson:"turn"`              // grows with every write of the lane
	Deltas    int64             `bson:"deltas,omitempty"`  // of a leg: updates of the source since all legs apply strictly
	Foreign   int64             `bson:"foreign,omitempty"` // those of them whose document this leg's target does not have
	At        time.Time         `bson:"at"`
	Closed    bool              `bson:"closed,omitempty"` // no owner may take it any more
	ClosedBy  chunk.AttemptID   `bson:"closedBy,omitempty"`
	Reopened  chunk.AttemptID   `bson:"reopened,omitempty"` // the newest attempt that went back: it can close nothing any more
}

// laneID is the _id of a lane's checkpoint: "m7/d0/p3". Capture reads the
// migration out of it.
func laneID(l chunk.Lane) string {
	return fmt.Sprintf("m%d/d%d/p%d", l.Migration, l.Direction, l.Partition)
}

// checkpoints is the collection, written and read with majority.
func checkpoints(client *mongo.Client) *mongo.Collection {
	return client.Database(chunk.SystemDatabase).Collection(chunk.CheckpointsCollection,
		options.Collection().SetWriteConcern(writeconcern.Majority()).SetReadConcern(readconcern.Majority()))
}

// readCheckpoint reads a lane's checkpoint; nil when there is none.
func readCheckpoint(ctx context.Context, client *mongo.Client, id string) (*Checkpoint, error) {
	var c Checkpoint
	err := checkpoints(client).FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&c)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoint %s: %w", id, err)
	}
	return &c, nil
}

// takeCheckpoint makes the session the lane's owner. first is the checkpoint of
// a lane that was never owned.
//
// Before: nothing. After: no transaction of a former owner is open, and none
// that it begins can commit: the epoch is another. If interrupted: the former
// owner may be cut off; run again.
func takeCheckpoint(ctx context.Context, cfg *Config, lane chunk.Lane, session bson.Binary, from int64) (*Checkpoint, error) {
	id := laneID(lane)
	first := bson.D{
		{Key: "migration", Value: lane.Migration}, {Key: "direction", Value: lane.Direction}, {Key: "partition", Value: lane.Partition},
		{Key: "seq", Value: int64(0)}, {Key: "offset", Value: from - 1}, {Key: "marker", Value: ""}, {Key: "since", Value: int64(0)},
		{Key: "applied", Value: int64(0)},
	}
	for attempt := 0; ; attempt++ {
		old, err := readCheckpoint(ctx, cfg.Target, id)
		if err != nil {
			return nil, err
		}
		if old != nil && old.Closed {
			return nil, closedError(id)
		}
		// The session may be this owner's own, out of the client's pool: what is open
		// in it is the former owner's all the same.
		if old != nil && len(old.Session.Data) > 0 {
			if err := cfg.Sessions.KillSession(ctx, chunk.ApplierUser, old.Session.Data); err != nil {
				return nil, fmt.Errorf("kill session of lane %s's former owner: %w", id, err)
			}
		}
		c, err := claim(ctx, cfg.Target, id, old, session, first)
		if err == nil {
			return c, nil
		}
		// Made, taken or closed meanwhile; or held by a transaction that the former
		// owner began after its session was killed.
		again := errors.Is(err, mongo.ErrNoDocuments) || mongocode.IsDuplicateKey(err) || mongocode.IsWriteConflict(err) || mongocode.IsTimeout(err)
		if ctx.Err() != nil || !again || attempt >= 100 {
			return nil, fmt.Errorf("take lane %s: %w", id, err)
		}
		if err := pause.For(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// claimTimeout bounds one try to claim a checkpoint that a transaction holds.
const claimTimeout = 2 * time.Second

// claim raises a checkpoint's epoch and names the new owner's session. It does
// so only to the checkpoint that was read, so that a claim that comes late, of
// one who gave up long ago, changes nothing.
func claim(ctx context.Context, client *mongo.Client, id string, old *Checkpoint, session bson.Binary, first bson.D) (*Checkpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	filter := bson.D{{Key: "_id", Value: id}, {Key: "epoch", Value: bson.D{{Key: "$exists", Value: false}}}}
	change := bson.D{
		{Key: "$inc", Value: bson.D{{Key: "epoch", Value: int64(1)}, {Key: "turn", Value: int64(1)}}},
		{Key: "$set", Value: bson.D{{Key: "session", Value: session}, {Key: "at", Value: time.Now()}}},
	}
	if old != nil {
		filter = bson.D{{Key: "_id", Value: id}, {Key: "epoch", Value: old.Epoch}}
	} else {
		change = append(change, bson.E{Key: "$setOnInsert", Value: first})
	}
	var c Checkpoint
	err := checkpoints(client).FindOneAndUpdate(ctx, filter, change,
		options.FindOneAndUpdate().SetUpsert(old == nil).SetReturnDocument(options.After)).Decode(&c)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller names the lane
	}
	return &c, nil
}

// closedError says that nobody may own the lane any more.
func closedError(id string) error {
	return failure.New(failure.Lost, "lane.closed", "lane %s is closed", id)
}

// ReadCheckpoints gives the checkpoints of one direction, by partition, read
// with majority.
func ReadCheckpoints(ctx context.Context, client *mongo.Client, m chunk.MigrationID, direction chunk.AttemptID) ([]Checkpoint, error) {
	cur, err := checkpoints(client).Find(ctx, bson.D{{Key: "migration", Value: m}, {Key: "direction", Value: direction}},
		options.Find().SetSort(bson.D{{Key: "partition", Value: 1}}))
	if err != nil {
		return nil, fmt.Errorf("read checkpoints m%d/d%d: %w", m, direction, err)
	}
	var all []Checkpoint
	if err := cur.All(ctx, &all); err != nil {
		return nil, fmt.Errorf("read checkpoints m%d/d%d: %w", m, direction, err)
	}
	return all, nil
}
