package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/internal/pause"
)

// Lane applies one partition of one direction of a migration. Take makes it the
// lane's owner; Run applies until it is stopped, closed or refused.
type Lane struct {
	cfg      *Config
	lane     chunk.Lane
	id       string // of the checkpoint
	log      *slog.Logger
	sess     *mongo.Session
	lsid     bson.Binary
	epoch    int64
	saved    position // by the checkpoint
	marker   string   // by the checkpoint
	turn     int64    // by the checkpoint
	savedAt  time.Time
	ownedAt  time.Time // the target last said that this is the owner
	reached  position  // at or beyond saved: what follows saved changes nothing here
	changed  time.Time // the last batch
	beaten   bool      // a marker lies between saved and reached
	queue    *queue
	parked   parkedSet
	uniques  map[string][]*unique // by collection: the unique indexes that were broken
	gauge    *gauge
	kick     chan struct{} // another lane may have released a key
	released func()        // tells the others that this one may have
	hold     *hold
	turns    atomic.Int64 // writes of the checkpoint by this owner
	crashed  bool         // by a stop point

	internals int // internal errors of joined writes in a row
}

// NewLane makes a lane of the direction; nothing is read or written.
func NewLane(cfg Config, partition int32) (*Lane, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Limits = cfg.Limits.withDefaults()
	cfg.Fold.Lenient = false
	if cfg.Backoff == nil {
		cfg.Backoff = backoff
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	lane := cfg.Direction.lane(partition)
	return &Lane{
		cfg: &cfg, lane: lane, id: laneID(lane),
		log:   cfg.Logger.With(slog.String("lane", laneID(lane))),
		queue: newQueue(cfg.Limits.QueueBytes),
		gauge: newGauge(), kick: make(chan struct{}, 1), released: func() {}, hold: newHold(),
	}, nil
}

// validate says what is missing.
func (c *Config) validate() error {
	var errs []error
	if c.Target == nil || c.Log == nil || c.Sessions == nil || c.Reports == nil {
		errs = append(errs, errors.New("a client, a log, sessions and reports are needed"))
	}
	d := c.Direction
	if d.Migration <= 0 || d.Partitions <= 0 || d.Source.Database == "" || d.Target.Database == "" {
		errs = append(errs, errors.New("a direction names a migration, two databases and the partitions"))
	}
	if len(d.From) != 0 && len(d.From) != int(d.Partitions) {
		errs = append(errs, fmt.Errorf("%d offsets for %d partitions", len(d.From), d.Partitions))
	}
	if len(errs) > 0 {
		return failure.New(failure.Invalid, "lane.bad_settings", "lanes of migration %d: %w", d.Migration, errors.Join(errs...))
	}
	return nil
}

// backoff doubles from 10 ms to 2 s, with jitter.
func backoff(try int) time.Duration {
	d := min(10*time.Millisecond<<min(try, 10), 2*time.Second)
	return d/2 + rand.N(d/2+1) //nolint:gosec // no secret
}

// Take makes this the lane's owner: any former owner is cut off. It must be
// called once, before Run. A lane that was closed is failure.Lost lane.closed.
func (l *Lane) Take(ctx context.Context) error {
	sess, err := l.cfg.Target.StartSession()
	if err != nil {
		return fmt.Errorf("start session of lane %s: %w", l.id, err)
	}
	subtype, id, ok := sess.ID().Lookup("id").BinaryOK()
	if !ok {
		sess.EndSession(ctx)
		return fmt.Errorf("session of lane %s has no id", l.id)
	}
	l.sess, l.lsid = sess, bson.Binary{Subtype: subtype, Data: id}
	var from int64
	if len(l.cfg.Direction.From) > 0 {
		from = l.cfg.Direction.From[l.lane.Partition]
	}
	var c *Checkpoint
	err = l.patiently(ctx, func(ctx context.Context) error {
		c, err = takeCheckpoint(ctx, l.cfg, l.lane, l.lsid, from)
		return err
	})
	if err != nil {
		sess.EndSession(context.WithoutCancel(ctx))
		return err
	}
	l.owns(c)
	l.gauge.started(c)
	return l.cfg.Points.At(ctx, "lane.taken")
}

// owns takes over what the checkpoint says.
func (l *Lane) owns(c *Checkpoint) {
	l.epoch, l.turn, l.marker = c.Epoch, c.Turn, c.Marker
	l.saved = position{seq: c.Seq, offset: c.Offset, since: c.Since}
	l.reached, l.savedAt, l.ownedAt = l.saved, time.Now(), time.Now()
}

// Run applies until ctx ends or the lane has to stop, and returns why. Whoever
// takes the lane then goes on where it stood.
func (l *Lane) Run(ctx context.Context) error {
	if l.sess == nil {
		return failure.New(failure.Invalid, "lane.not_taken", "lane %s was not taken", l.id)
	}
	defer l.release(ctx)
	if err := l.loadParked(ctx); err != nil {
		return err
	}
	readCtx, stop := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.queue.end(l.read(readCtx))
	}()
	err := l.apply(ctx)
	stop(errStopped)
	<-done
	l.gauge.stopped(err)
	return err
}

// release ends the session, and with it what is open in it.
func (l *Lane) release(ctx context.Context) {
	if !l.crashed {
		l.sess.EndSession(context.WithoutCancel(ctx))
	}
}

// errStopped ends a lane's reader.
var errStopped = errors.New("the lane has stopped")

// read puts what the partition holds after the checkpoint into the queue. Until
// the start marker nothing is for this lane.
func (l *Lane) read(ctx context.Context) error {
	counter := event.Resume(l.saved.seq, l.saved.since)
	begun := l.saved.seq > 0
	return l.cfg.Log.Read(ctx, l.cfg.Direction.Source.Shard, l.lane.Partition, l.saved.offset+1, func(offset int64, e *event.Event) error {
		if e == nil {
			return nil
		}
		next, err := counter.Accept(e)
		if err != nil {
			return fmt.Errorf("lane %s at offset %d: %w", l.id, offset, err)
		}
		if !next {
			return nil
		}
		l.gauge.heard()
		begun = begun || e.Op == event.Mark && l.cfg.Direction.begins(e.Marker)
		if !begun {
			return nil
		}
		r, err := l.classify(e)
		if err != nil {
			return err
		}
		r.pos = position{seq: e.Seq, offset: offset, since: counter.Since}
		if !l.queue.put(ctx.Done(), r) {
			return context.Cause(ctx)
		}
		return nil
	})
}

// classify tells what an event is to this lane.
func (l *Lane) classify(e *event.Event) (record, error) {
	r := record{wall: e.Wall}
	d := &l.cfg.Direction
	switch {
	case e.Op == event.Mark:
		r.beats = true
		if d.owns(e.Marker) {
			r.marker = e.Marker
		}
	case e.Op.OnDocument() && e.Database == d.Source.Database:
		if d.labels(e.Label) {
			if d.Attempt != 0 {
				return r, nil // what the other direction's lanes wrote
			}
			return r, failure.New(failure.Mismatch, "lane.own_label", "%s carries the label of its own migration", describe(e)).
				WithHint("the source placement was written by this migration's lanes: abort the migration")
		}
		r.event, r.size = e, eventSize(e)
	case !e.Op.OnDocument() && l.concerns(e):
		if action, _ := l.dealsWith(e); action != ddlIgnore {
			r.event, r.size = e, eventSize(e)
		}
	}
	return r, nil
}

// concerns reports whether DDL touches the placement.
func (l *Lane) concerns(e *event.Event) bool {
	if e.Database == l.cfg.Direction.Source.Database {
		return true
	}
	to, ok := rawLookup(e.Description, "to") // a rename may come from another database
	if !ok {
		return false
	}
	db, _ := bson.Raw(to).Lookup("db").StringValueOK()
	return db == l.cfg.Direction.Source.Database
}

// apply is the lane's main loop.
func (l *Lane) apply(ctx context.Context) error {
	for {
		if err := l.hold.wait(ctx); err != nil {
			return err
		}
		_, ok, err := l.queue.peek()
		switch {
		case ok:
			err = l.step(ctx, l.collect(ctx))
		case err == nil:
			err = l.idle(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// step deals with one batch and what it brings with it.
func (l *Lane) step(ctx context.Context, b *batch) error {
	if len(b.items) > 0 || b.marker != nil {
		if err := l.commitAll(ctx, b); err != nil {
			return err
		}
		if len(b.items) > 0 {
			l.changed = time.Now()
		}
	} else if b.pos.seq > l.reached.seq {
		l.reached, l.beaten = b.pos, l.beaten || b.beats
		l.gauge.passed(b, 0)
	}
	if b.ddl != nil {
		if err := l.define(ctx, b); err != nil {
			return err
		}
	}
	if err := l.retryParked(ctx, b.marker != nil); err != nil {
		return err
	}
	return l.stillOwner(ctx)
}

// idle waits for something to do.
func (l *Lane) idle(ctx context.Context) error {
	wait := l.cfg.Limits.IdleCheck
	if l.parked.len() > 0 {
		wait = l.cfg.Limits.ParkedRetry
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.queue.ready:
		return nil
	case <-l.kick:
	case <-t.C:
	}
	if l.parked.len() > 0 {
		if err := l.retryParked(ctx, false); err != nil {
			return err
		}
	}
	return l.stillOwner(ctx)
}

// stillOwner saves a position that moved without a batch, at most once in a while, and
// looks more often whether the lane was closed or taken: a switch waits for lanes that
// have not noticed it yet.
func (l *Lane) stillOwner(ctx context.Context) error {
	if l.reached.seq > l.saved.seq && time.Since(l.savedAt) >= l.saveEvery() {
		return l.save(ctx)
	}
	if time.Since(l.ownedAt) < l.cfg.idleCheck() {
		return nil
	}
	return l.owned(ctx)
}

// owned asks the target whether this is still the lane's owner.
func (l *Lane) owned(ctx context.Context) error {
	return l.patiently(ctx, func(ctx context.Context) error {
		c, err := readCheckpoint(ctx, l.cfg.Target, l.id)
		if err != nil {
			return err
		}
		if err := l.lostTo(c); err != nil {
			return err
		}
		l.ownedAt = time.Now()
		return nil
	})
}

// freshFor is for how long behind a batch every marker is saved soon: a verification of
// what has changed begins within 5 s, waits for one or two of the heartbeats, which come
// each 5 s at least, and then for the lane.
const freshFor = 20 * time.Second

// saveEvery is how often a position is saved that moved without a batch. A marker behind
// one is saved soon even where there are many lanes: who compares what has changed waits
// for it.
func (l *Lane) saveEvery() time.Duration {
	if l.beaten && time.Since(l.changed) < freshFor {
		return min(l.cfg.idleSave(), l.cfg.Limits.IdleSave)
	}
	return l.cfg.idleSave()
}

// save saves the position that was reached.
func (l *Lane) save(ctx context.Context) error {
	if l.reached.seq == l.saved.seq {
		return nil
	}
	return l.commitAll(ctx, &batch{pos: l.reached})
}

// patiently runs one piece of work against the target until it is done or can't
// be: while the target is down the lane waits.
func (l *Lane) patiently(ctx context.Context, work func(context.Context) error) error {
	internals := 0 // in a row: an outage before them says nothing about them
	for try := 0; ; try++ {
		attempt, cancel := unhurried(ctx, l.cfg.Limits.Try)
		err := work(attempt)
		timedOut := attempt.Err() != nil
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		internals++
		if !mongocode.Has(err, internalError) {
			internals = 0
		}
		if !timedOut && !passing(err, internals) {
			return l.refused(err)
		}
		l.cfg.Metrics.retries.Inc()
		l.gauge.troubled(err)
		l.log.WarnContext(ctx, "work on the target is tried again", slog.Int("try", try), slog.Any("error", err))
		if err := pause.For(ctx, l.cfg.Backoff(try)); err != nil {
			return err
		}
	}
}

// grace is how long a command under way may go on once the lane is to stop.
const grace = 3 * time.Second

// unhurried gives a context that ends after limit, or some time after ctx. A
// command that is cut off goes on at the server, where it could open, or hold
// on to, a transaction that nobody waits for any more.
func unhurried(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	free, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	stop := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(grace, cancel)
		context.AfterFunc(free, func() { late.Stop() })
	})
	return free, func() {
		stop()
		cancel()
	}
}

// A server that goes down or comes up may answer with an internal error; one
// that stays so is no outage.
const (
	internalError  = 1
	internalErrors = 30
)

// passing reports whether an error of the target, the last of so many internal ones in a
// row, may be gone at the next try.
func passing(err error, internals int) bool {
	return mongocode.IsRetryable(err) || mongocode.IsNoSuchTransaction(err) || errors.Is(err, errMoved) || errors.Is(err, errApart) ||
		mongocode.Has(err, internalError) && !isTooLarge(err) && internals <= internalErrors
}

// refused gives an error of the target its meaning for the lane.
func (l *Lane) refused(err error) error {
	if mongocode.IsUnauthorized(err) {
		return failure.New(failure.Lost, "lane.refused", "lane %s may not write on its target: %w", l.id, err).
			WithHint("the lane's role was dropped because its work is over, or was never made")
	}
	return err
}

// lostTo tells from a checkpoint that is not this owner's who has the lane now.
func (l *Lane) lostTo(c *Checkpoint) error {
	switch {
	case c == nil:
		return failure.New(failure.Lost, "lane.lost", "the checkpoint of lane %s is gone", l.id)
	case c.Epoch == l.epoch:
		return nil
	case c.Closed:
		return closedError(l.id)
	default:
		return failure.New(failure.Lost, "lane.lost", "lane %s has a newer owner, epoch %d after %d", l.id, c.Epoch, l.epoch)
	}
}
