package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// oldest gives when the oldest change was made that the shard's own log still has,
// on the member that the client reads from. ok is false where it does not say.
func (h *heart) oldest(ctx context.Context) (at time.Time, ok bool, err error) {
	var first struct {
		TS bson.Timestamp `bson:"ts"`
	}
	err = h.client.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: 1}}).SetProjection(bson.D{{Key: "ts", Value: 1}})).Decode(&first)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return at, false, nil
	}
	if err != nil {
		return at, false, fmt.Errorf("read the beginning of the log of %s: %w", h.shard, err)
	}
	return time.Unix(int64(first.TS.T), 0), first.TS.T > 0, nil
}

// forecast says how long a shard's own log will hold what capture has not read
// yet: at the pace of the changes that it holds, its beginning reaches the position
// in as much time as lies between the two.
func forecast(oldest, position time.Time) time.Duration { return position.Sub(oldest) }

// watchWindow measures, now and then, how long the shard's log lasts. Less than
// the limit is an alarm: once it is over, every move of the shard starts anew.
func (r *run) watchWindow(ctx context.Context) {
	var first time.Time
	for {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		oldest, ok, err := r.heart.oldest(bounded)
		cancel()
		p := r.base()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.log.DebugContext(ctx, "it is not known how long the shard's log lasts", "error", err)
		case ok && !p.Time.IsZero():
			if first.IsZero() {
				first = oldest
			}
			left := forecast(oldest, time.Unix(int64(p.Time.T), 0))
			short := left < r.set.ShortLog && oldest.After(first) // a young log that is not full is short too, and no alarm
			r.Metrics.window(r.Shard, left, short)
			if short {
				r.log.WarnContext(ctx, "the shard's log is short: should capture stop for so long, every move of the shard starts anew; make the oplog larger",
					"lasts", left.String(), "alarm_below", r.set.ShortLog.String())
			}
		}
		if !sleep(ctx, r.set.WindowEvery) {
			return
		}
	}
}
