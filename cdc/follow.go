package cdc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// session captures from the saved position with one producer. A produce error
// ends it: what Kafka did not acknowledge is read and numbered again.
func (r *run) session(ctx context.Context) error {
	parent := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, err := newProducer(ctx, r, cancel)
	if err != nil {
		return err
	}
	defer p.close()
	f := &follower{run: r, producer: p, numbering: numbering{position: r.base()}}
	saver := newSaver(ctx, r, p, cancel)
	defer saver.wait()
	defer cancel(nil)
	f.saver = saver
	pause := r.set.RetryEvery
	for {
		err := f.follow(ctx)
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
			if parent.Err() != nil && !final(err) {
				f.leave(ctx)
			}
			return err
		case err != nil && final(err):
			cancel(err)
			return err
		}
		r.Metrics.restarted(r.Shard)
		r.log.WarnContext(ctx, "change stream is opened again", "error", err)
		if !sleep(ctx, pause) {
			continue
		}
		pause = min(2*pause, 20*r.set.RetryEvery)
		if f.moved {
			f.moved, pause = false, r.set.RetryEvery
		}
	}
}

// follower reads the change stream and hands on what it reads.
type follower struct {
	*run
	numbering

	producer *producer
	saver    *saver
	looked   time.Time    // when a position was last handed to the saver
	moved    bool         // something came since the stream was opened
	halfway  bool         // a change is numbered whose records are not all sent
	heard    atomic.Int64 // when the newest heartbeat of this log came, unix nanoseconds
}

// errReopened ends the use of a stream which the driver resumed by itself: what
// it gives may not follow what was read before.
var errReopened = errors.New("the driver resumed the change stream")

// follow opens the stream and reads it until an error.
func (f *follower) follow(ctx context.Context) error {
	stream, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }()
	if err := f.at(ctx, "capture.opened"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer f.listen(ctx, cancel)()
	cursor := stream.ID()
	var parts assembler
	for {
		some := stream.TryNext(ctx)
		if err := stream.Err(); err != nil {
			return f.broken(ctx, err)
		}
		if stream.ID() != cursor {
			return errReopened
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !some {
			if !parts.pending() {
				f.idle(stream.ResumeToken())
			}
			continue
		}
		raw, whole, err := parts.add(stream.Current)
		if err != nil {
			return fmt.Errorf("change stream of %s: %w", f.Shard, err) // opened again before the first part
		}
		if !whole {
			continue
		}
		if err := f.one(ctx, raw, stream.ResumeToken()); err != nil {
			return err
		}
	}
}

// errSilent ends the use of a stream in which heartbeats do not come back that
// the shard has acknowledged.
var errSilent = errors.New("heartbeats do not come back in the change stream")

// listen ends the use of a stream that has fallen silent, until the function that
// it gives is called. A stream may wait for ever for an answer that is lost.
func (f *follower) listen(ctx context.Context, cancel context.CancelCauseFunc) (end func()) {
	f.heard.Store(time.Now().UnixNano())
	done := make(chan struct{})
	stop, endStop := context.WithCancel(ctx)
	go func() {
		defer close(done)
		for sleep(stop, f.set.SilentAfter/8) {
			if f.beaten.Load()-f.heard.Load() > int64(f.set.SilentAfter) {
				cancel(errSilent)
				return
			}
		}
	}()
	return func() { endStop(); <-done }
}

// open checks that the shard still has what the log tells, and opens the stream
// right after it.
func (f *follower) open(ctx context.Context) (*mongo.ChangeStream, error) {
	p := &f.position
	if err := f.heart.check(ctx, p); err != nil {
		if failure.HasCode(err, "capture.history_lost") {
			err = f.lose(ctx, err)
		}
		return nil, err
	}
	opts := options.ChangeStream().
		SetShowExpandedEvents(true).
		SetBatchSize(f.set.BatchSize).
		SetMaxAwaitTime(f.set.Await)
	if p.Token != nil {
		opts.SetResumeAfter(p.Token)
	} else {
		opts.SetStartAtOperationTime(&p.Start)
	}
	pipeline := mongo.Pipeline{}
	if p.Split {
		pipeline = splitStage
	}
	stream, err := f.Client.Watch(ctx, pipeline, opts)
	if err != nil {
		return nil, f.broken(ctx, err)
	}
	return stream, nil
}

// broken gives a stream's error its meaning.
func (f *follower) broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil: // errSilent too
		return context.Cause(ctx)
	case mongocode.IsHistoryLost(err), mongocode.Has(err, invalidTokens...):
		return f.lose(ctx, historyLost(f.Shard, err))
	case mongocode.Has(err, mongocode.BSONObjectTooLarge) && !f.position.Split:
		f.position.Split = true
		return fmt.Errorf("a change of %s after seq %d is too large, its parts are asked for: %w", f.Shard, f.position.Seq, err)
	case mongocode.Has(err, mongocode.BSONObjectTooLarge), f.position.Split && mongocode.Has(err, unknownStage):
		return failure.New(failure.Invalid, "capture.event_too_large",
			"a change of shard %s after seq %d is larger than a change event may be: %w", f.Shard, f.position.Seq, err).
			WithHint("this server cannot send it in parts (MongoDB 6.0.9 and newer can): shrink the document, clear the capture position and copy again")
	}
	return fmt.Errorf("change stream of %s: %w", f.Shard, err)
}

// invalidTokens are the codes for a resume token that the server can't read:
// InvalidResumeToken, and the nameless ones for its parts.
var invalidTokens = []int{260, 40647, 40648, 40649, 50811}

// one numbers a change and sends its records.
func (f *follower) one(ctx context.Context, raw, token bson.Raw) error {
	c, err := parseChange(raw)
	if err != nil {
		return failure.New(failure.Invalid, "capture.bad_event", "change of %s after seq %d: %w", f.Shard, f.position.Seq, err)
	}
	if f.boundary(&c) {
		f.offer()
	}
	round := f.position.Round
	out, err := f.take(&c, token)
	if err != nil {
		return failure.New(failure.Invalid, "capture.bad_event", "change of %s after seq %d: %w", f.Shard, f.position.Seq-1, err)
	}
	if err := f.beats(ctx, &out, round); err != nil {
		return err
	}
	f.moved, f.halfway = true, true
	if out.reprieve != nil {
		if err := f.Stragglers.Withdraw(ctx, *out.reprieve); err != nil {
			err = fmt.Errorf("take back stragglers of placement %d of %s: %w", out.reprieve.Placement, f.Shard, err)
			f.producer.fail(err) // numbered already: only a new session numbers it again
			return err
		}
	}
	if out.straggler != 0 {
		if err := f.straggler(ctx, &out, raw); err != nil {
			// numbered already: only a new session numbers it again
			f.producer.fail(err)
			return err
		}
	}
	for _, rec := range out.records {
		f.producer.send(rec)
	}
	if m := out.event.Marker; m != nil && m.Kind != chunk.HeartbeatMarker { // somebody waits for it, in a fence all applications
		f.producer.hurry()
	}
	f.halfway = false
	f.Metrics.captured(f.Shard, out.event, out.records)
	return f.at(ctx, "capture.sent")
}

// beats looks at heartbeats: every round is written and comes back, so one that is
// missing says that changes are missing too.
func (f *follower) beats(ctx context.Context, out *outcome, round int64) error {
	m := out.event.Marker
	if m == nil || m.Kind != chunk.HeartbeatMarker || f.position.Round == round {
		return nil
	}
	f.heard.Store(time.Now().UnixNano())
	if round > 0 && f.position.Round > round+1 {
		return f.lose(ctx, historyLost(f.Shard, fmt.Errorf("heartbeat %d came after heartbeat %d", f.position.Round, round)))
	}
	return nil
}

// idle takes note that everything up to token has been read. An open
// transaction has ended: its changes come in one piece.
func (f *follower) idle(token bson.Raw) {
	if token != nil {
		f.position.Token = append(bson.Raw(nil), token...)
	}
	f.offer()
}

// offer hands the position to the saver when it is time. It must only be called
// where a restart may begin.
func (f *follower) offer() {
	now := time.Now()
	if now.Sub(f.looked) >= f.set.SaveEvery && f.saver.offer(&f.position, f.producer) {
		f.looked = now
	}
}

// leave saves the position once more so that the next owner has little to do.
func (f *follower) leave(ctx context.Context) {
	f.saver.wait()
	if f.halfway || len(f.position.Open.Session) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
	defer cancel()
	if f.producer.flush(ctx) == nil {
		_ = f.save(ctx, f.position.clone()) // the next owner starts from the one before
	}
}

// straggler reports a change that should not exist, before the log goes past it.
func (f *follower) straggler(ctx context.Context, out *outcome, raw bson.Raw) error {
	e := out.event
	s := Straggler{
		Shard: f.Shard, Placement: out.straggler, Seq: e.Seq, Time: e.ClusterTime, Kind: "write",
		Event: append(bson.Raw(nil), raw...),
	}
	if e.Op == event.Delete && f.hasTTL(ctx, e.Database, e.Collection) {
		s.Kind = "ttl-suspect"
	}
	f.Metrics.straggler(f.Shard, s.Kind)
	f.log.ErrorContext(ctx, "a closed placement was changed", "placement", out.straggler, "seq", e.Seq, "op", string(e.Op), "kind", s.Kind)
	if err := f.Stragglers.Report(ctx, s); err != nil {
		return fmt.Errorf("report straggler %d of %s: %w", e.Seq, f.Shard, err)
	}
	return nil
}

// hasTTL reports whether a TTL index may have deleted from the collection; not
// knowing, it says no.
func (f *follower) hasTTL(ctx context.Context, database, collection string) bool {
	cursor, err := f.Client.Database(database).Collection(collection).Indexes().List(ctx)
	if err != nil {
		return false
	}
	var indexes []bson.Raw
	if err := cursor.All(ctx, &indexes); err != nil {
		return false
	}
	for _, index := range indexes {
		if _, err := index.LookupErr("expireAfterSeconds"); err == nil {
			return true
		}
	}
	return false
}

// at passes a stop point.
func (r *run) at(ctx context.Context, name string) error {
	if err := r.Stops.At(ctx, name); err != nil {
		return stopped{fmt.Errorf("%s: %w", name, err)}
	}
	return nil
}
