package shard

import (
	"context"
	"errors"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// The states of a fence document.
const (
	FenceUp   = "fenced" // the attempt has taken the placement's grants away, is taking them, or is about to: it is prepared
	FenceOpen = "open"   // the attempt has opened the placement
	FenceGone = "gone"   // the placement is being dropped, or was: no attempt can ever change this any more
)

// Forward is where a placement that was left sends its proxies while the
// metadata cannot be read.
type Forward struct {
	Shard     string            `bson:"shard"`
	Placement chunk.PlacementID `bson:"placement"`
	Database  string            `bson:"database"`
	Token     chunk.Token       `bson:"token"`
}

// Home is where keys of a placement that is gone live: in a split or merge they are
// those of other chunks.
type Home struct {
	Chunk   chunk.ID `bson:"chunk"`
	Forward `bson:",inline"`
}

// Fence is what a shard itself remembers of the newest attempt on a placement of
// its own. It informs (proxies, the watchdog, people); the grants decide.
type Fence struct {
	Placement chunk.PlacementID `bson:"_id"`
	Attempt   chunk.AttemptID   `bson:"attempt"`
	Deadline  time.Time         `bson:"deadline,omitempty"`
	State     string            `bson:"state"`
	Opened    chunk.AttemptID   `bson:"opened,omitempty"` // the newest attempt that opened the placement; a fence leaves it
	Token     chunk.Token       `bson:"token,omitempty"`  // of the route, once open
	Forward   *Forward          `bson:"forward,omitempty"`
	Homes     []Home            `bson:"homes,omitempty"`    // of a placement that is gone
	Lease     int64             `bson:"lease,omitempty"`    // the newest lease epoch that acted on the placement
	Database  string            `bson:"database,omitempty"` // of a placement that was adopted: proof that it is the placement's
}

// fences is the collection of the fence documents.
func (s *Set) fences(o ...options.Lister[options.CollectionOptions]) *mongo.Collection {
	return s.drover().Collection(chunk.FencesCollection, o...)
}

// ReadFence reads a placement's fence document from a majority; ok is false when
// no attempt ever touched it.
func (s *Set) ReadFence(ctx context.Context, p chunk.PlacementID) (f Fence, ok bool, err error) {
	err = s.fences(majorityRead()).FindOne(ctx, bson.D{{Key: "_id", Value: p}}).Decode(&f)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return Fence{}, false, nil
	}
	return f, err == nil, s.wrap(err, "read fence of placement %d", p)
}

// WriteFence records that an attempt fences the placement, or is about to. Kind Lost when a newer
// attempt did already, when this one has opened it again, and under a lease epoch
// older than one that the document has seen: a newer run of the coordinator, or an
// exclusive holder ([Set.RaiseLease]), was there.
func (s *Set) WriteFence(ctx context.Context, p chunk.PlacementID, a chunk.AttemptID, lease int64, deadline time.Time) error {
	current := bson.E{Key: "lease", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gt", Value: lease}}}}}
	return s.changeFence(ctx, p, a, bson.D{
		{Key: "$set", Value: bson.D{{Key: "attempt", Value: a}, {Key: "deadline", Value: deadline}, {Key: "state", Value: FenceUp}, {Key: "lease", Value: lease}}},
		{Key: "$unset", Value: bson.D{{Key: "forward", Value: ""}, {Key: "token", Value: ""}}},
	}, bson.A{
		bson.D{{Key: "attempt", Value: bson.D{{Key: "$lt", Value: a}}}, current},
		bson.D{{Key: "attempt", Value: a}, {Key: "state", Value: FenceUp}, {Key: "forward", Value: bson.D{{Key: "$exists", Value: false}}}, current},
	})
}

// RaiseLease makes every fence document of the shard refuse a fence under an older
// lease. An exclusive holder runs it before its work, and so keeps out a switch that
// took its own lease before, whatever it still believes. Kind Lost when a newer
// lease was there already.
func (s *Set) RaiseLease(ctx context.Context, lease int64) error {
	_, err := s.fences().UpdateMany(ctx,
		bson.D{{Key: "lease", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gte", Value: lease}}}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "lease", Value: lease}}}})
	if err != nil {
		return s.wrap(err, "raise the lease to %d", lease)
	}
	n, err := s.fences(majorityRead()).CountDocuments(ctx, bson.D{{Key: "lease", Value: bson.D{{Key: "$gt", Value: lease}}}})
	if err == nil && n > 0 {
		return failure.New(failure.Lost, "shard.lease_overtaken", "lease %d of shard %s is over: a newer one has acted on it", lease, s.Name())
	}
	return s.wrap(err, "see the lease raised to %d", lease)
}

// WriteOpenRecord records that an attempt has opened the placement, under the
// route's token: the target after a publish, the source after an abort. Kind Lost
// when a newer attempt did something since.
func (s *Set) WriteOpenRecord(ctx context.Context, p chunk.PlacementID, a chunk.AttemptID, t chunk.Token) error {
	return s.changeFence(ctx, p, a, bson.D{
		{Key: "$set", Value: bson.D{{Key: "attempt", Value: a}, {Key: "state", Value: FenceOpen}, {Key: "opened", Value: a}, {Key: "token", Value: t}}},
		{Key: "$unset", Value: bson.D{{Key: "forward", Value: ""}, {Key: "deadline", Value: ""}}},
	}, bson.A{bson.D{{Key: "attempt", Value: bson.D{{Key: "$lte", Value: a}}}}})
}

// SetForward notes on a fenced placement where its chunk is served now.
func (s *Set) SetForward(ctx context.Context, p chunk.PlacementID, a chunk.AttemptID, to Forward) error {
	return s.changeFence(ctx, p, a, bson.D{
		{Key: "$set", Value: bson.D{{Key: "attempt", Value: a}, {Key: "state", Value: FenceUp}, {Key: "forward", Value: to}}},
	}, bson.A{
		bson.D{{Key: "attempt", Value: bson.D{{Key: "$lt", Value: a}}}},
		bson.D{{Key: "attempt", Value: a}, {Key: "state", Value: FenceUp}},
	})
}

// changeFence updates, or makes, the fence document where it still matches one of
// the conditions. A document that matches none makes the upsert collide on _id.
func (s *Set) changeFence(ctx context.Context, p chunk.PlacementID, a chunk.AttemptID, change bson.D, conditions bson.A) error {
	filter := bson.D{{Key: "_id", Value: p}, {Key: "$or", Value: conditions}}
	_, err := s.fences().UpdateOne(ctx, filter, change, options.UpdateOne().SetUpsert(true))
	if mongocode.IsDuplicateKey(err) {
		return failure.New(failure.Lost, "shard.overtaken", "attempt %d no longer owns the fence of placement %d on shard %s", a, p, s.Name())
	}
	return s.wrap(err, "write fence of placement %d", p)
}

// MarkGone notes in place that a placement is being dropped, or was, and where its
// keys live. Where they are still one chunk, that is its forwarding address too. No
// attempt, however new or late, can fence or open it afterwards. The document stays
// for ever: a proxy with an old route, and a metadata that forgot, read it.
func (s *Set) MarkGone(ctx context.Context, p chunk.Placement, homes []Home) error {
	set := bson.D{{Key: "attempt", Value: int64(math.MaxInt64)}, {Key: "state", Value: FenceGone}, {Key: "homes", Value: homes}}
	unset := bson.D{{Key: "deadline", Value: ""}}
	if len(homes) == 1 && homes[0].Chunk == p.Chunk {
		set = append(set, bson.E{Key: "forward", Value: homes[0].Forward})
	} else {
		unset = append(unset, bson.E{Key: "forward", Value: ""})
	}
	change := bson.D{{Key: "$set", Value: set}, {Key: "$unset", Value: unset}}
	_, err := s.fences().UpdateOne(ctx, bson.D{{Key: "_id", Value: p.ID}}, change, options.UpdateOne().SetUpsert(true))
	return s.wrap(err, "mark placement %d as gone", p.ID)
}

// MaxToken gives the greatest route token that the shard remembers; 0 for none. A
// metadata store that lost its newest rows must not give such a token again.
func (s *Set) MaxToken(ctx context.Context) (chunk.Token, error) {
	cur, err := s.fences(majorityRead()).Find(ctx, bson.D{})
	if err != nil {
		return 0, s.wrap(err, "read tokens")
	}
	var all []Fence
	if err := cur.All(ctx, &all); err != nil {
		return 0, s.wrap(err, "read tokens")
	}
	var top chunk.Token
	for _, f := range all {
		top = max(top, f.Token)
		if f.Forward != nil {
			top = max(top, f.Forward.Token)
		}
		for _, h := range f.Homes {
			top = max(top, h.Token)
		}
	}
	return top, nil
}
