package shard

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
)

const (
	// quietFor is how long nothing may land on a placement before it counts as quiet.
	quietFor = 250 * time.Millisecond
	// quietProbes is how many writes of ours must have gone through meanwhile: a
	// server on which nothing is written, because its disk stands still, is not quiet.
	quietProbes = 3
	// quietAwait is how long the server may wait for a change before it answers: a probe
	// is on its way all the time.
	quietAwait = 20 * time.Millisecond
	// quietCollection holds the probes, in Drover's own database.
	quietCollection = "quiet"
)

// awaitQuiet returns once no change of the placement has been seen between
// [quietProbes] acknowledged writes that span [quietFor]. It is evidence and no
// proof: the way of last resort, for a server that cannot list its operations while
// a proxy gives no word. ctx bounds it.
func (s *Set) awaitQuiet(ctx context.Context, p chunk.Placement) error {
	stream, err := s.watchQuiet(ctx, p)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }()
	quiet := calm{since: time.Now()}
	for {
		landed, err := s.probeQuiet(ctx, stream, p.ID)
		if err != nil {
			return err
		}
		if quiet.note(landed, time.Now()) {
			return nil
		}
	}
}

// watchQuiet follows the changes of a placement, and its probes.
func (s *Set) watchQuiet(ctx context.Context, p chunk.Placement) (*mongo.ChangeStream, error) {
	match := bson.D{{Key: "$match", Value: bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "ns.db", Value: p.Database}},
		bson.D{{Key: "ns.db", Value: chunk.SystemDatabase}, {Key: "ns.coll", Value: quietCollection}, {Key: "documentKey._id", Value: p.ID}},
	}}}}}
	capture, err := s.Client(chunk.CaptureUser) // who may watch
	if err != nil {
		return nil, err
	}
	stream, err := capture.Watch(ctx, mongo.Pipeline{match}, options.ChangeStream().SetMaxAwaitTime(quietAwait))
	return stream, s.wrap(err, "watch placement %d", p.ID)
}

// calm counts probes since a change was last seen.
type calm struct {
	since  time.Time
	probes int
}

// note takes one probe, and whether a change came before it; true says that it has
// been quiet long enough.
func (c *calm) note(landed bool, now time.Time) bool {
	if landed {
		*c = calm{since: now}
		return false
	}
	c.probes++
	return c.probes >= quietProbes && now.Sub(c.since) >= quietFor
}

// probeQuiet writes a probe and reads the stream up to it. It reports whether
// another change came before it.
func (s *Set) probeQuiet(ctx context.Context, stream *mongo.ChangeStream, p chunk.PlacementID) (landed bool, err error) {
	probe := bson.NewObjectID()
	_, err = run(ctx, s.admin(), chunk.SystemDatabase, bson.D{
		{Key: "update", Value: quietCollection},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: p}}},
			{Key: "u", Value: bson.D{{Key: "_id", Value: p}, {Key: "probe", Value: probe}}}, // a replacement: the event has all of it
			{Key: "upsert", Value: true},
		}}},
		majority(),
	})
	if err != nil {
		return false, s.wrap(err, "write a probe of placement %d", p)
	}
	for stream.Next(ctx) {
		var e struct {
			NS struct {
				DB string `bson:"db"`
			} `bson:"ns"`
			Document struct {
				Probe bson.ObjectID `bson:"probe"`
			} `bson:"fullDocument"`
		}
		if err := stream.Decode(&e); err != nil {
			return false, fmt.Errorf("read a change of placement %d: %w", p, err)
		}
		if e.NS.DB != chunk.SystemDatabase {
			landed = true
		} else if e.Document.Probe == probe {
			return landed, nil
		}
	}
	if err := stream.Err(); err != nil {
		return false, s.wrap(err, "watch placement %d", p)
	}
	return false, context.Cause(ctx)
}
