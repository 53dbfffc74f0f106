package cdc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/internal/failure"
	"drover/internal/stoppoint"
)

// Capture writes every change of one shard to the shard's topic in Kafka, in
// the shard's order within each partition, at least once, numbered so that the
// second time can be told from the first.
type Capture struct {
	Shard string
	// Client is logged in as [chunk.CaptureUser]. Its read preference says where
	// the stream is read: secondaryPreferred spares the primary.
	Client     *mongo.Client
	Brokers    []string
	Kafka      []kgo.Opt // further options, for TLS and the like
	Topic      TopicSettings
	Positions  Positions
	Stragglers Stragglers
	Settings   CaptureSettings
	Metrics    *CaptureMetrics // nil counts nothing
	Logger     *slog.Logger
	Stops      *stoppoint.Points
}

// CaptureSettings are times and sizes; zero means the default.
type CaptureSettings struct {
	HeartbeatEvery time.Duration // 500 ms
	SaveEvery      time.Duration // how often the position is saved at most, 200 ms
	Await          time.Duration // how long the shard waits for a change before it answers, 200 ms
	BatchSize      int32         // changes in one answer of the shard, 1000
	Linger         time.Duration // how long a change may wait for others that go to Kafka with it, 5 ms; for a marker none waits, but for a heartbeat
	RetryEvery     time.Duration // first pause after an error, doubled up to 20 times, 100 ms
	WindowEvery    time.Duration // how often it is measured how long the shard's log lasts, 1 minute
	ShortLog       time.Duration // a shard's log that lasts less is an alarm, 6 h
	SilentAfter    time.Duration // a stream is opened again when acknowledged heartbeats are not seen for so long, 20 s
}

// orDefault fills in what is zero.
func (s CaptureSettings) orDefault() CaptureSettings {
	def := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	def(&s.HeartbeatEvery, 500*time.Millisecond)
	def(&s.SaveEvery, 200*time.Millisecond)
	def(&s.Await, 200*time.Millisecond)
	def(&s.Linger, 5*time.Millisecond)
	def(&s.RetryEvery, 100*time.Millisecond)
	def(&s.SilentAfter, 20*time.Second)
	def(&s.WindowEvery, time.Minute)
	def(&s.ShortLog, 6*time.Hour)
	if s.BatchSize == 0 {
		s.BatchSize = 1000
	}
	return s
}

// stopped is the error of a stop point: it takes the place of a crash.
type stopped struct{ error }

// Unwrap gives the error that the test chose.
func (s stopped) Unwrap() error { return s.error }

// run is one ownership of a shard's position.
type run struct {
	*Capture
	set   CaptureSettings
	log   *slog.Logger
	heart *heart
	epoch int64

	beaten atomic.Int64 // when the newest heartbeat was acknowledged, unix nanoseconds

	saving sync.Mutex // held while a position is saved
	mu     sync.Mutex
	saved  Position // what a restart would begin with
	lost   string   // why there will be no restart
}

// Run captures until ctx ends or an error leaves nothing to try: a newer owner
// ([failure.Lost]) or a history that can't be resumed ([failure.Invalid]). Any
// other trouble is waited out. Whoever calls Run becomes the owner.
func (c *Capture) Run(ctx context.Context) error {
	r := &run{Capture: c, set: c.Settings.orDefault(), heart: newHeart(c.Shard, c.Client)}
	r.Topic = c.Topic.orDefault()
	r.log = c.Logger
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.log = r.log.With("shard", c.Shard)
	if err := r.retry(ctx, "start", r.start); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var beating sync.WaitGroup
	beating.Go(func() { r.beat(ctx, cancel) })
	beating.Go(func() { r.watchWindow(ctx) })
	err := r.retry(ctx, "capture", r.session)
	cancel(err)
	beating.Wait()
	return err
}

// retry calls step until it ends for good.
func (r *run) retry(ctx context.Context, what string, step func(context.Context) error) error {
	pause := r.set.RetryEvery
	for {
		begun := time.Now()
		err := step(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case final(err):
			return err
		}
		r.Metrics.restarted(r.Shard)
		r.log.WarnContext(ctx, "capture tries again", "step", what, "error", err)
		if time.Since(begun) > 20*r.set.RetryEvery {
			pause = r.set.RetryEvery
		}
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
		pause = min(2*pause, 20*r.set.RetryEvery)
	}
}

// final reports whether trying again is of no use.
func final(err error) bool {
	var s stopped
	return errors.As(err, &s) || !failure.Is(err, failure.Transient)
}

// sleep waits for d; false means that ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// start takes the position and, at the very first start, makes one.
func (r *run) start(ctx context.Context) error {
	client, err := kgo.NewClient(r.kafka()...)
	if err != nil {
		return failure.New(failure.Invalid, "log.bad_settings", "connect to Kafka: %w", err)
	}
	defer client.Close()
	if err := EnsureTopic(ctx, client, r.Shard, r.Topic); err != nil {
		return err
	}
	epoch, value, err := r.Positions.Take(ctx, r.Shard)
	if err != nil {
		return fmt.Errorf("take position of %s: %w", r.Shard, err)
	}
	r.epoch = epoch
	if value != nil {
		if r.saved, err = DecodePosition(value); err != nil {
			return failure.New(failure.Invalid, "capture.bad_position", "position of %s: %w", r.Shard, err)
		}
	} else if err := r.create(ctx, client); err != nil {
		return err
	}
	if err := r.accept(&r.saved); err != nil {
		return err
	}
	if r.saved.Start.IsZero() {
		return r.begin(ctx)
	}
	return nil
}

// create names the log before anything is done on the shard, so that two
// first starts at once agree on it.
func (r *run) create(ctx context.Context, client *kgo.Client) error {
	seq, err := lastSeq(ctx, client, r.Kafka, r.Brokers, r.Shard)
	if err != nil {
		return err
	}
	n := r.Topic.Partitions
	r.saved = Position{
		Shard: r.Shard, Log: newLog(), Partitions: n, Seq: seq,
		Last: make([]int64, n), Counts: make([]int64, n),
	}
	return r.save(ctx, r.saved)
}

// accept refuses a position that is not this capture's.
func (r *run) accept(p *Position) error {
	switch {
	case p.Lost != "":
		return historyLost(r.Shard, errors.New(p.Lost))
	case p.Shard != r.Shard:
		return failure.New(failure.Invalid, "capture.bad_position", "position of %s belongs to %s", r.Shard, p.Shard).
			WithHint("one position per shard: clear it and copy again")
	case p.Partitions != r.Topic.Partitions || len(p.Last) != int(p.Partitions) || len(p.Counts) != int(p.Partitions):
		return failure.New(failure.Invalid, "log.partitions_differ", "position of %s is for %d partitions, not %d",
			r.Shard, p.Partitions, r.Topic.Partitions).
			WithHint("the number of partitions of a captured log never changes; set it back")
	}
	return nil
}

// begin writes the first heartbeat and lets the log start before it.
func (r *run) begin(ctx context.Context) error {
	p := r.saved.clone()
	var err error
	if p.Round, p.Start, err = r.heart.begin(ctx, p.Log); err != nil {
		return err
	}
	return r.save(ctx, p)
}

// save replaces the saved position; refused, somebody else owns it. Once the
// history is lost, every position says so.
func (r *run) save(ctx context.Context, p Position) error {
	r.saving.Lock()
	defer r.saving.Unlock()
	r.mu.Lock()
	p.Lost = r.lost
	r.mu.Unlock()
	value, err := p.encode()
	if err != nil {
		return err
	}
	if err := r.Positions.Save(ctx, r.Shard, r.epoch, value); err != nil {
		return fmt.Errorf("save position of %s: %w", r.Shard, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.saved = p
	return nil
}

// base gives the newest saved position, to be changed freely.
func (r *run) base() Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.saved.clone()
}

// lose writes down that the history is lost, so that no restart goes on as if
// nothing had happened.
func (r *run) lose(ctx context.Context, err error) error {
	r.mu.Lock()
	r.lost = err.Error()
	r.mu.Unlock()
	if serr := r.save(ctx, r.base()); serr != nil {
		r.log.ErrorContext(ctx, "lost history was not recorded", "error", serr)
	}
	return err
}

// beat writes heartbeats until ctx ends. A shard that takes no writes is waited
// for: its silence shows as lag.
func (r *run) beat(ctx context.Context, cancel context.CancelCauseFunc) {
	p := r.base()
	round := p.Round
	for sleep(ctx, r.set.HeartbeatEvery) {
		bctx, done := context.WithTimeout(ctx, 10*time.Second)
		newest, err := r.heart.beat(bctx, p.Log, round)
		done()
		switch {
		case err == nil:
			round = newest
			r.beaten.Store(time.Now().UnixNano())
		case ctx.Err() != nil:
		case failure.HasCode(err, "capture.history_lost"):
			cancel(r.lose(ctx, err))
		case final(err):
			cancel(err)
		default:
			r.log.WarnContext(ctx, "heartbeat was not written", "error", err)
		}
	}
}

// kafka gives the options common to every client.
func (r *run) kafka() []kgo.Opt {
	return append([]kgo.Opt{kgo.SeedBrokers(r.Brokers...)}, r.Kafka...)
}
