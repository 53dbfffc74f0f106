package cdc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"drover/chunk"
	"drover/internal/failure"
)

// heartbeatDocument is the shard's one heartbeat: a marker, and the name of the
// log that the shard's changes go to. A shard that was put back to an earlier
// state, or another shard, shows itself by it.
type heartbeatDocument struct {
	ID           string `bson:"_id"`
	chunk.Marker `bson:",inline"`
	Log          string `bson:"log"`
}

// heart reads and writes a shard's heartbeat document.
type heart struct {
	shard   string
	client  *mongo.Client
	markers *mongo.Collection
}

// newHeart works on the primary, whatever the client prefers for reading.
func newHeart(shard string, client *mongo.Client) *heart {
	db := client.Database(chunk.SystemDatabase, options.Database().
		SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Majority()).
		SetWriteConcern(writeconcern.Majority()))
	return &heart{shard: shard, client: client, markers: db.Collection(chunk.MarkersCollection)}
}

// read gives the heartbeat document as the majority has it, ok false when there is none.
func (h *heart) read(ctx context.Context) (doc heartbeatDocument, ok bool, err error) {
	err = h.markers.FindOne(ctx, bson.D{{Key: "_id", Value: heartbeatID}}).Decode(&doc)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return doc, false, nil
	}
	if err != nil {
		return doc, false, fmt.Errorf("read heartbeat of %s: %w", h.shard, err)
	}
	return doc, true, nil
}

// begin writes the first heartbeat of a new log and gives its round and a time
// that is not after it.
func (h *heart) begin(ctx context.Context, log string) (round int64, at bson.Timestamp, err error) {
	session, err := h.client.StartSession()
	if err != nil {
		return 0, at, fmt.Errorf("start session on %s: %w", h.shard, err)
	}
	defer session.EndSession(ctx)
	ctx = mongo.NewSessionContext(ctx, session)
	before, there, err := h.read(ctx)
	if err != nil {
		return 0, at, err
	}
	// The operation time of the read, not of the write: a write that had to be
	// retried may report a time after its own event.
	if t := session.OperationTime(); t != nil {
		at = *t
	}
	if at.IsZero() {
		return 0, at, failure.New(failure.Invalid, "capture.no_operation_time",
			"%s does not tell its operation time", h.shard).WithHint("a shard must be a replica set")
	}
	round = before.Round + 1
	if !there {
		if _, err := h.markers.InsertOne(ctx, next(log, round)); err != nil {
			return 0, at, fmt.Errorf("write first heartbeat of %s: %w", h.shard, err)
		}
		return round, at, nil
	}
	replaced, err := h.replace(ctx, before.Log, before.Round, next(log, round))
	if err == nil && !replaced {
		err = fmt.Errorf("heartbeat of %s is written by somebody else too", h.shard)
	}
	return round, at, err
}

// next is the heartbeat document for round.
func next(log string, round int64) heartbeatDocument {
	return heartbeatDocument{
		ID:     heartbeatID,
		Log:    log,
		Marker: chunk.Marker{Kind: chunk.HeartbeatMarker, Round: round, At: time.Now()},
	}
}

// replace puts doc in the place of the heartbeat with this log and round, and of
// no other: one that was put back to an earlier round must stay to be seen.
func (h *heart) replace(ctx context.Context, log string, round int64, doc heartbeatDocument) (bool, error) {
	filter := bson.D{{Key: "_id", Value: heartbeatID}, {Key: "log", Value: log}, {Key: "round", Value: round}}
	result, err := h.markers.ReplaceOne(ctx, filter, doc)
	if err != nil {
		return false, fmt.Errorf("write heartbeat %d of %s: %w", doc.Round, h.shard, err)
	}
	return result.MatchedCount == 1, nil
}

// beat writes the heartbeat after round, the newest that is known, and gives its round.
func (h *heart) beat(ctx context.Context, log string, round int64) (int64, error) {
	replaced, err := h.replace(ctx, log, round, next(log, round+1))
	if err != nil || replaced {
		return round + 1, err
	}
	// an answer was lost, somebody else beats too, or the shard lost its history
	if err := h.check(ctx, &Position{Shard: h.shard, Log: log, Round: round}); err != nil {
		return round, err
	}
	doc, _, err := h.read(ctx)
	if err != nil {
		return round, err
	}
	if replaced, err = h.replace(ctx, log, doc.Round, next(log, doc.Round+1)); err != nil || !replaced {
		return doc.Round, err
	}
	return doc.Round + 1, nil
}

// Waiting for a new primary to show what the old one had shown already.
const (
	lookAgain = 20
	lookPause = 150 * time.Millisecond
)

// check refuses a position whose newest published marker is not on the shard:
// the shard lost what the log already tells, or is another one.
func (h *heart) check(ctx context.Context, p *Position) error {
	var missing error
	for range lookAgain {
		err := h.checkOnce(ctx, p)
		if err == nil || !failure.Is(err, failure.Invalid) {
			return err
		}
		missing = err
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lookPause):
		}
	}
	return missing
}

// checkOnce looks once.
func (h *heart) checkOnce(ctx context.Context, p *Position) error {
	doc, ok, err := h.read(ctx)
	switch {
	case err != nil:
		return err
	case !ok:
		return historyLost(p.Shard, errors.New("its heartbeat document is gone"))
	case doc.Log != p.Log:
		return wrongSource(p.Shard, p.Log, doc.Log)
	case doc.Round < p.Round:
		return historyLost(p.Shard, fmt.Errorf("heartbeat %d was captured, the shard has %d", p.Round, doc.Round))
	case p.Marker == "":
		return nil
	}
	err = h.markers.FindOne(ctx, bson.D{{Key: "_id", Value: p.Marker}}).Err()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return historyLost(p.Shard, fmt.Errorf("marker %s was captured, the shard lacks it", p.Marker))
	}
	if err != nil {
		return fmt.Errorf("look for marker %s of %s: %w", p.Marker, p.Shard, err)
	}
	return nil
}

// historyLost says that the log of shard can't go on.
func historyLost(shard string, cause error) error {
	return failure.New(failure.Invalid, "capture.history_lost", "changes of shard %s are lost: %w", shard, cause).
		WithHint("recopy: abort the migrations from this shard, clear its capture position, start them again")
}

// wrongSource says that the server is not the one that was captured so far.
func wrongSource(shard, want, have string) error {
	return failure.New(failure.Invalid, "capture.wrong_source",
		"shard %s is captured in log %s, the server belongs to log %q", shard, want, have).
		WithHint("check the shard's URI; if the server is right, clear the shard's capture position and copy again")
}

// newLog names a log.
func newLog() string { return rand.Text() }
