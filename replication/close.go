package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/internal/pause"
)

// CloseLanes ends every lane of a direction for attempt by: their owners are
// refused by the server from then on, and no new owner can take them, unless by
// goes back: see [ReopenLanes]. It may be run again. Too late, after by's way
// back, it closes nothing and is failure.Lost.
func CloseLanes(ctx context.Context, client *mongo.Client, sessions Sessions, m chunk.MigrationID, direction, by chunk.AttemptID) error {
	err := setClosed(ctx, client, sessions, m, direction, "close",
		bson.D{
			{Key: "reopened", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gte", Value: by}}}}},
			{Key: "$or", Value: bson.A{
				bson.D{{Key: "closed", Value: bson.D{{Key: "$ne", Value: true}}}},
				bson.D{{Key: "closedBy", Value: bson.D{{Key: "$lt", Value: by}}}},
			}},
		},
		bson.D{
			{Key: "$inc", Value: bson.D{{Key: "epoch", Value: int64(1)}, {Key: "turn", Value: int64(1)}}},
			{Key: "$set", Value: bson.D{{Key: "closed", Value: true}, {Key: "closedBy", Value: by}, {Key: "at", Value: time.Now()}}},
		})
	if err != nil {
		return err
	}
	err = checkpoints(client).FindOne(ctx, bson.D{
		{Key: "migration", Value: m}, {Key: "direction", Value: direction}, {Key: "closed", Value: bson.D{{Key: "$ne", Value: true}}},
	}).Err()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return nil
	case err != nil:
		return fmt.Errorf("see lanes m%d/d%d closed: %w", m, direction, err)
	default:
		return failure.New(failure.Lost, "lane.reopened", "attempt %d has gone back: lanes m%d/d%d run on", by, m, direction)
	}
}

// ReopenLanes lets the lanes be taken again that attempt by has closed, and lets
// by close none any more. Only the way back of that attempt, seen to its end,
// justifies it. It may be run again.
func ReopenLanes(ctx context.Context, client *mongo.Client, sessions Sessions, m chunk.MigrationID, direction, by chunk.AttemptID) error {
	err := setClosed(ctx, client, sessions, m, direction, "bar from closing",
		bson.D{{Key: "reopened", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gte", Value: by}}}}}},
		bson.D{{Key: "$max", Value: bson.D{{Key: "reopened", Value: by}}}})
	if err != nil {
		return err
	}
	return setClosed(ctx, client, sessions, m, direction, "reopen",
		bson.D{{Key: "closed", Value: true}, {Key: "closedBy", Value: by}},
		bson.D{
			{Key: "$inc", Value: bson.D{{Key: "epoch", Value: int64(1)}, {Key: "turn", Value: int64(1)}}},
			{Key: "$unset", Value: bson.D{{Key: "closed", Value: ""}, {Key: "closedBy", Value: ""}}},
			{Key: "$set", Value: bson.D{{Key: "at", Value: time.Now()}}},
		})
}

// setClosed changes the checkpoints of a direction that match. Transactions that hold
// one of them for long are aborted.
func setClosed(ctx context.Context, client *mongo.Client, sessions Sessions, m chunk.MigrationID, direction chunk.AttemptID, verb string, match, change bson.D) error {
	filter := append(bson.D{{Key: "migration", Value: m}, {Key: "direction", Value: direction}}, match...)
	defer abortOwners(ctx, client, sessions, m, direction)()
	for attempt := 0; ; attempt++ {
		_, err := checkpoints(client).UpdateMany(ctx, filter, change)
		if err == nil {
			return nil
		}
		if !mongocode.IsWriteConflict(err) || attempt >= 1000 { // a lane's transaction holds it for a moment
			return fmt.Errorf("%s lanes m%d/d%d: %w", verb, m, direction, err)
		}
		if err := pause.For(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// ownersTime is for how long transactions of lanes' owners may keep others from the
// checkpoints. One of an owner that lives ends sooner, or is begun again when it was
// aborted; one of an owner that died in the middle of a batch stands until the server
// ends it, after a minute.
const ownersTime = 100 * time.Millisecond

// abortOwners aborts what is open of a direction's owners whenever their time is over,
// until the function that it gives is called.
func abortOwners(ctx context.Context, client *mongo.Client, sessions Sessions, m chunk.MigrationID, direction chunk.AttemptID) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var aborting sync.WaitGroup
	aborting.Go(func() {
		for pause.For(ctx, ownersTime) == nil {
			_ = AbortOwners(ctx, client, sessions, m, direction) // again in a moment; whoever waits for the checkpoints says what is wrong
		}
	})
	return func() {
		cancel()
		aborting.Wait()
	}
}

// AbortOwners aborts the open transactions of the sessions in which a direction's owners
// saved last. It takes no lane away: an owner that lives begins its batch again. A lane that
// ended has given its session back to its driver's pool: what the same client does in it by
// now is aborted too.
func AbortOwners(ctx context.Context, client *mongo.Client, sessions Sessions, m chunk.MigrationID, direction chunk.AttemptID) error {
	all, err := ReadCheckpoints(ctx, client, m, direction)
	if err != nil {
		return err
	}
	for _, c := range all {
		if len(c.Session.Data) == 0 {
			continue
		}
		if err := sessions.KillSession(ctx, chunk.ApplierUser, c.Session.Data); err != nil {
			return fmt.Errorf("kill session of lane %s's owner: %w", c.ID, err)
		}
	}
	return nil
}
