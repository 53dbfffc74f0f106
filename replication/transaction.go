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
)

// errDoubt says that a commit, or the checkpoint's own update, may or may not
// have happened.
var errDoubt = errors.New("the outcome of the commit is unknown")

// errMoved says that the checkpoint is not where this owner left it.
var errMoved = errors.New("the checkpoint has moved")

// crash is the error of a stop point: from there on the lane does nothing more,
// as if its process had died.
type crash struct{ error }

func (c *crash) Unwrap() error { return c.error }

// point passes a stop point.
func (l *Lane) point(ctx context.Context, name string) error {
	if err := l.cfg.Points.At(ctx, name); err != nil {
		l.crashed = true
		return &crash{err}
	}
	return nil
}

// goal is where a write of the checkpoint takes the lane.
type goal struct {
	pos     position
	marker  string
	applied int

	deltas, foreign int // see [Checkpoint].Foreign
}

// move is the update that takes the checkpoint to g if it is where this owner left
// it.
func (l *Lane) move(g goal) (filter, change bson.D) {
	filter = bson.D{{Key: "_id", Value: l.id}, {Key: "epoch", Value: l.epoch}, {Key: "seq", Value: l.saved.seq}, {Key: "turn", Value: l.turn}}
	inc := bson.D{{Key: "turn", Value: int64(1)}, {Key: "applied", Value: int64(g.applied)}}
	if g.deltas > 0 {
		inc = append(inc, bson.E{Key: "deltas", Value: int64(g.deltas)}, bson.E{Key: "foreign", Value: int64(g.foreign)})
	}
	return filter, bson.D{
		{Key: "$set", Value: bson.D{
			{Key: "seq", Value: g.pos.seq}, {Key: "offset", Value: g.pos.offset}, {Key: "since", Value: g.pos.since},
			{Key: "marker", Value: g.marker}, {Key: "at", Value: time.Now()},
		}},
		{Key: "$inc", Value: inc},
	}
}

// advance writes the checkpoint if it is where this owner left it. Within a
// transaction it is the first write, so that capture on the target's shard
// labels what follows, and a former owner's transaction can do nothing.
func (l *Lane) advance(ctx context.Context, g goal, alone bool) error {
	filter, change := l.move(g)
	cmd := bson.D{
		{Key: "update", Value: chunk.CheckpointsCollection},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "u", Value: change}}}},
	}
	if alone {
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}})
	}
	n, err := l.run(ctx, chunk.SystemDatabase, cmd)
	if err != nil {
		return fmt.Errorf("write checkpoint %s: %w", l.id, err)
	}
	if n != 1 {
		return errMoved
	}
	return nil
}

// run runs a write command and gives how many documents it matched.
func (l *Lane) run(ctx context.Context, database string, cmd bson.D) (int64, error) {
	reply, err := l.cfg.Target.Database(database).RunCommand(ctx, cmd).Raw()
	if err != nil {
		return 0, err //nolint:wrapcheck // the caller knows what was written
	}
	n, _ := reply.Lookup("n").AsInt64OK()
	return n, nil
}

// transact runs work, which moves the checkpoint, in one transaction.
//
// Before: this owner holds the lane. After: both took effect on a majority, or
// neither. If interrupted: an error; errDoubt when the effect is not known,
// which [Lane.settle] finds out.
func (l *Lane) transact(ctx context.Context, work func(context.Context) error) error {
	err := l.sess.StartTransaction(options.Transaction().SetWriteConcern(writeconcern.Majority()).SetReadConcern(readconcern.Local()))
	if err != nil {
		return fmt.Errorf("start transaction: %w", err)
	}
	inside := mongo.NewSessionContext(ctx, l.sess)
	if err := l.inTransaction(inside, work); err != nil {
		if !l.crashed {
			l.abort(ctx)
		}
		return err
	}
	if err := l.sess.CommitTransaction(inside); err != nil {
		// After a commit that timed out the driver keeps the transaction open, for the
		// commit to be tried again, and lets none begin. The checkpoint knows what
		// became of it.
		if l.sess.TransactionRunning() {
			l.abort(ctx)
		}
		return fmt.Errorf("commit: %w", errors.Join(errDoubt, err))
	}
	return l.point(ctx, "lane.committed")
}

// inTransaction does a transaction's work.
func (l *Lane) inTransaction(ctx context.Context, work func(context.Context) error) error {
	if err := l.point(ctx, "lane.begun"); err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		return err
	}
	return l.point(ctx, "lane.written")
}

// abort ends the open transaction. Where that fails the server ends it: the
// session's next transaction, the next owner or its own limit.
func (l *Lane) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := l.sess.AbortTransaction(ctx); err != nil {
		l.log.DebugContext(ctx, "a transaction was left to the server to abort", "error", err)
	}
}

// settle finds out, by the checkpoint itself, whether the move to g happened.
// It gives an error when this owner has lost the lane. A commit that the primary
// has and a majority has not yet counts as not done: the next try meets it.
func (l *Lane) settle(ctx context.Context) (done bool, err error) {
	c, err := readCheckpoint(ctx, l.cfg.Target, l.id)
	if err != nil {
		return false, err
	}
	if err := l.lostTo(c); err != nil {
		return false, err
	}
	switch {
	case c.Turn == l.turn && c.Seq == l.saved.seq:
		return false, nil
	case c.Turn == l.turn+1:
		return true, nil
	default:
		return false, failure.New(failure.Lost, "lane.lost", "the checkpoint of lane %s is at seq %d, turn %d, not %d, %d",
			l.id, c.Seq, c.Turn, l.saved.seq, l.turn)
	}
}

// attempt runs one try at a move to g, settling what an earlier try, or this
// one, left in doubt.
func (l *Lane) attempt(ctx context.Context, doubt *bool, try func(context.Context) error) error {
	if *doubt {
		done, err := l.settle(ctx)
		if err != nil || done {
			return err
		}
		*doubt = false
	}
	err := try(ctx)
	switch {
	case errors.Is(err, errDoubt):
		*doubt = true
	case errors.Is(err, errMoved):
		done, settleErr := l.settle(ctx)
		if settleErr != nil || done {
			return settleErr
		}
	}
	return err
}

// moved records a move that took effect.
func (l *Lane) moved(g goal) {
	l.turn++
	l.saved, l.marker = g.pos, g.marker
	if g.pos.seq > l.reached.seq {
		l.reached = g.pos
	}
	l.savedAt, l.ownedAt, l.beaten = time.Now(), time.Now(), false
	l.turns.Add(1)
}
