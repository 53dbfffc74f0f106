package bulkimport

import (
	"context"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// What one turn of a read brings, while others use the shard: so little that nobody waits
// long behind it.
const (
	firstTurn     = 50 // documents whose size is not known yet
	turnDocuments = 500
	turnBytes     = 128 * KiB
	idsTurn       = 1000 // documents of which only the _id is asked for
)

// turns are how a read takes what it reads from the server: bit by bit and when it may.
// The zero value takes all as it comes.
type turns struct {
	piece func() float64 // see [piece]
	take  func(work func(context.Context) error) error
}

// first bounds what the command that begins a read brings.
func (t turns) first(cmd bson.D, documents int32) bson.D {
	if t.piece == nil {
		return cmd
	}
	if share := t.piece(); share > 0 {
		cmd = append(cmd, bson.E{Key: "batchSize", Value: partOf(documents, share)})
	}
	return cmd
}

// open begins a read.
func (t turns) open(begin func() (*mongo.Cursor, error)) (cursor *mongo.Cursor, err error) {
	if t.take == nil {
		return begin()
	}
	err = t.take(func(context.Context) (err error) {
		cursor, err = begin()
		return err
	})
	return cursor, err
}

// next goes on to the next document; why there is none, [cutOff] says. ctx is the read's
// own, it may be in a transaction; what takes turns has another one.
func (t turns) next(ctx context.Context, cursor *mongo.Cursor, documents int32) (more bool) {
	if t.take == nil || cursor.RemainingBatchLength() > 0 || cursor.ID() == 0 {
		return cursor.Next(ctx)
	}
	cursor.SetBatchSize(partOf(documents, t.piece())) // 0: as many as the server likes
	if err := t.take(func(context.Context) error {
		more = cursor.Next(ctx)
		return nil
	}); err != nil {
		return false
	}
	return more
}

// cutOff is why a read ended early, nil when it came to its end. A turn that was not given
// leaves no error with the cursor.
func cutOff(ctx context.Context, cursor *mongo.Cursor) error {
	if err := cursor.Err(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// partOf is a share of a number of documents, at least one of them unless the share is 0.
func partOf(documents int32, share float64) int32 {
	return int32(math.Ceil(share * float64(documents)))
}
