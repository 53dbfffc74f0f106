package cdc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
)

// ErrStop ends a read from inside its callback, without an error.
var ErrStop = errors.New("stop reading")

// Log reads captured logs. It belongs to no consumer group and never moves to
// another offset by itself.
type Log struct {
	brokers []string
	opts    []kgo.Opt
	client  *kgo.Client
	tails   tails
	logger  *slog.Logger
}

// NewLog connects to Kafka when it is first used.
func NewLog(brokers []string, opts ...kgo.Opt) (*Log, error) {
	l := &Log{brokers: brokers, opts: opts, tails: tails{open: map[tailKey]*tail{}}, logger: slog.New(slog.DiscardHandler)}
	var err error
	if l.client, err = kgo.NewClient(l.options(kgo.MetadataMinAge(topicKnownFor))...); err != nil {
		return nil, failure.New(failure.Invalid, "log.bad_settings", "connect to Kafka: %w", err)
	}
	return l, nil
}

// topicKnownFor is how long the client believes what it has heard of a topic, also
// that there is none: a move that begins with its shard must not wait for seconds.
const topicKnownFor = 250 * time.Millisecond

// LogTo says where trouble with reading is told; before the first read.
func (l *Log) LogTo(logger *slog.Logger) { l.logger = logger }

// Close ends the connections. Reads under way have their own.
func (l *Log) Close() {
	l.tails.close()
	l.client.Close()
}

// options are those of every client.
func (l *Log) options(more ...kgo.Opt) []kgo.Opt {
	return append(append([]kgo.Opt{kgo.SeedBrokers(l.brokers...)}, l.opts...), more...)
}

// Read calls fn for each record of the partition from offset from on, in order,
// and with a nil event each time all that was fetched has been handed out, so
// that a batch can be closed at once, and every second in which nothing came; the
// offset is then the next one. It ends with ctx's error, with fn's, or with nil
// when fn returns [ErrStop].
//
// Records may be repetitions: see [event.Counter]. An offset that the partition
// does not hold is the failure log.offset_out_of_range.
//
// The end of a partition is read from Kafka once, however many read it here.
func (l *Log) Read(ctx context.Context, shard string, partition int32, from int64, fn func(offset int64, e *event.Event) error) error {
	next := from
	follow := func(offset int64, e *event.Event) error {
		if err := fn(offset, e); err != nil {
			return stopRead{err}
		}
		if e != nil {
			next = offset + 1
		}
		return nil
	}
	for {
		err := l.readOn(ctx, tailKey{shard, partition}, &next, follow)
		var own stopRead
		switch {
		case errors.As(err, &own):
			return ended(own.error)
		case errors.Is(err, errElsewhere):
		case errors.Is(err, errStalled):
			l.logger.WarnContext(ctx, "a reader of a captured log stood still and is opened again", "topic", chunk.Topic(shard), "partition", partition, "offset", next)
		default:
			return err
		}
	}
}

// readOn reads from the shared end where it reaches back to *next, else by itself
// until it does.
func (l *Log) readOn(ctx context.Context, key tailKey, next *int64, fn func(int64, *event.Event) error) error {
	t := l.join(ctx, key)
	if t != nil {
		defer l.leave(t)
		if t.holds(*next) {
			return t.read(ctx, next, fn)
		}
	}
	return l.raw(ctx, key.shard, key.partition, *next, func(offset int64, _ int, e *event.Event) error {
		if err := fn(offset, e); err != nil || e != nil || t == nil {
			return err
		}
		if t.holds(*next) {
			return errElsewhere
		}
		return nil
	})
}

// raw reads with a connection of its own.
func (l *Log) raw(ctx context.Context, shard string, partition int32, from int64, fn func(offset int64, size int, e *event.Event) error) error {
	next := from
	return l.records(ctx, shard, partition, from, func(rec *kgo.Record) error {
		if rec == nil {
			return fn(next, 0, nil)
		}
		e, err := event.Decode(rec.Value)
		if err != nil {
			return badRecord(rec.Topic, partition, rec.Offset, err)
		}
		next = rec.Offset + 1
		return fn(rec.Offset, len(rec.Value), e)
	})
}

// badRecord is a record that is no event. Nobody reads over it.
func badRecord(topic string, partition int32, offset int64, err error) error {
	return failure.New(failure.Mismatch, "log.bad_record", "%s/%d at offset %d: %w", topic, partition, offset, err).
		WithHint("somebody else wrote into the topic, or Kafka gave back what was not stored: nothing is applied beyond it; find out who, then abort the shard's moves and start them again")
}

// Follow is [Log.Read] without repetitions: counter accepts each record that fn
// is given. A record that can't be accounted for ends it with counter's error.
func (l *Log) Follow(ctx context.Context, shard string, partition int32, from int64, counter *event.Counter,
	fn func(offset int64, e *event.Event) error,
) error {
	return l.Read(ctx, shard, partition, from, accepted(counter, partition, fn))
}

// accepted passes to fn what counter accepts.
func accepted(counter *event.Counter, partition int32, fn func(int64, *event.Event) error) func(int64, *event.Event) error {
	return func(offset int64, e *event.Event) error {
		if e == nil {
			return fn(offset, nil)
		}
		ok, err := counter.Accept(e)
		if err != nil {
			return fmt.Errorf("partition %d at offset %d: %w", partition, offset, err)
		}
		if !ok {
			return nil
		}
		return fn(offset, e)
	}
}

// ended takes [ErrStop] for the end it is.
func ended(err error) error {
	if errors.Is(err, ErrStop) {
		return nil
	}
	return err
}

// idleTick is how often a reader is told that there is nothing.
const idleTick = time.Second

// poll waits for records, but not longer than [idleTick].
func poll(ctx context.Context, client *kgo.Client) kgo.Fetches {
	ctx, cancel := context.WithTimeout(ctx, idleTick)
	defer cancel()
	return client.PollFetches(ctx)
}

// records calls fn for each raw record, and with nil at the end of each fetch and
// when there is nothing. more is for readers that are in no hurry.
func (l *Log) records(ctx context.Context, shard string, partition int32, from int64, fn func(*kgo.Record) error, more ...kgo.Opt) error {
	topic := chunk.Topic(shard)
	if from < 0 {
		return outOfRange(topic, partition, from, errors.New("negative"))
	}
	client, err := kgo.NewClient(l.options(append([]kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NoResetOffset().At(from)}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMinBytes(1),
		kgo.FetchMaxBytes(32 << 20),
		kgo.FetchMaxPartitionBytes(8 << 20),
		kgo.KeepRetryableFetchErrors(),
	}, more...)...)...)
	if err != nil {
		return failure.New(failure.Invalid, "log.bad_settings", "connect to Kafka: %w", err)
	}
	defer client.Close()
	next, came := from, time.Now()
	for {
		fetches := poll(ctx, client)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, f := range fetches.Errors() {
			if err := fetchError(topic, partition, next, f.Err); err != nil {
				return err
			}
		}
		for it := fetches.RecordIter(); !it.Done(); {
			rec := it.Next()
			if rec.Offset != next { // nothing is ever taken out of the middle of a log
				return outOfRange(topic, partition, next, fmt.Errorf("offset %d came instead", rec.Offset))
			}
			if err := fn(rec); err != nil {
				return err
			}
			next, came = rec.Offset+1, time.Now()
		}
		if err := fn(nil); err != nil {
			return err
		}
		if time.Since(came) > stallAfter {
			if err := l.stalled(ctx, shard, partition, next); err != nil {
				return err
			}
			came = time.Now()
		}
	}
}

// stallAfter is how long a reader believes that nothing comes. Heartbeats come
// all the time while capture runs.
const stallAfter = 5 * time.Second

// errStalled ends a read to which nothing comes although there is something.
var errStalled = errors.New("the reader stands still")

// stalled asks whether the log goes on behind a reader to which nothing comes.
func (l *Log) stalled(ctx context.Context, shard string, partition int32, next int64) error {
	ctx, cancel := context.WithTimeout(ctx, stallAfter)
	defer cancel()
	ends, err := l.EndOffsets(ctx, shard)
	switch {
	case err != nil || int(partition) >= len(ends): // Kafka does not answer: the client goes on trying
		return nil
	case ends[partition] > next:
		return errStalled
	case ends[partition] < next:
		return outOfRange(chunk.Topic(shard), partition, next, fmt.Errorf("it ends at %d", ends[partition]))
	}
	return nil
}

// fetchError gives a fetch's error its meaning; nil means that the client goes
// on by itself.
func fetchError(topic string, partition int32, at int64, err error) error {
	var lost *kgo.ErrDataLoss
	switch {
	case errors.Is(err, kerr.OffsetOutOfRange), errors.As(err, &lost):
		return outOfRange(topic, partition, at, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, kerr.UnknownTopicOrPartition), kerr.IsRetriable(err):
		return nil
	}
	return fmt.Errorf("fetch %s/%d at offset %d: %w", topic, partition, at, err)
}

// outOfRange says that the log does not reach to where its reader stands.
func outOfRange(topic string, partition int32, at int64, err error) error {
	return failure.New(failure.Invalid, "log.offset_out_of_range", "%s/%d has no offset %d: %w", topic, partition, at, err).
		WithHint("the captured log was cut before it was read: replay from the archive or copy the chunk again")
}

// EndOffsets gives for each partition the offset that its next record will
// have. Taken before a marker is written, it is where [Log.FindMarker] begins.
func (l *Log) EndOffsets(ctx context.Context, shard string) ([]int64, error) {
	return offsets(ctx, l.client, shard, (*kadm.Client).ListEndOffsets)
}

// StartOffsets gives for each partition the first offset that Kafka still has.
func (l *Log) StartOffsets(ctx context.Context, shard string) ([]int64, error) {
	return offsets(ctx, l.client, shard, (*kadm.Client).ListStartOffsets)
}

// offsets lists one offset for each partition.
func offsets(ctx context.Context, client *kgo.Client, shard string,
	list func(*kadm.Client, context.Context, ...string) (kadm.ListedOffsets, error),
) ([]int64, error) {
	topic := chunk.Topic(shard)
	listed, err := list(kadm.NewClient(client), ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list offsets of %s: %w", topic, err)
	}
	out := make([]int64, len(listed[topic]))
	for p := range out {
		o, ok := listed.Lookup(topic, int32(p))
		if !ok {
			return nil, fmt.Errorf("list offsets of %s: no partition %d", topic, p)
		}
		out[p] = o.Offset
	}
	return out, nil
}

// Seam is where a marker stands in one partition.
type Seam struct {
	Offset int64
	Seq    int64
	Time   bson.Timestamp // cluster time of the marker
}

// FindMarker gives a place of a marker in each partition, the first one when it
// searches forward from the given offsets, and waits until it is everywhere. Without
// offsets it looks back too, from recent to old.
func (l *Log) FindMarker(ctx context.Context, shard, key string, from []int64) ([]Seam, error) {
	return l.find(ctx, shard, key, from, nil)
}

// find is [Log.FindMarker]. What Kafka no longer has is looked through by older, which is
// given a partition and its first offset there; nil: by nobody.
func (l *Log) find(ctx context.Context, shard, key string, from []int64, older func(ctx context.Context, partition int32, first int64) (Seam, error)) ([]Seam, error) {
	end, err := l.EndOffsets(ctx, shard)
	if err != nil {
		return nil, err
	}
	if from != nil && len(from) != len(end) {
		return nil, failure.New(failure.Invalid, "log.partitions_differ", "%d offsets for the %d partitions of %s", len(from), len(end), shard)
	}
	seams := make([]Seam, len(end))
	group, ctx := errgroup.WithContext(ctx)
	for p := range end {
		group.Go(func() error {
			var err error
			if from != nil {
				seams[p], err = l.forward(ctx, shard, int32(p), from[p], key) //nolint:gosec // a number of partitions
			} else {
				seams[p], err = l.around(ctx, shard, int32(p), end[p], key, older) //nolint:gosec // a number of partitions
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("find marker %s of %s: %w", key, shard, err)
	}
	return seams, nil
}

// forward reads until the marker comes.
func (l *Log) forward(ctx context.Context, shard string, partition int32, from int64, key string) (Seam, error) {
	var found Seam
	err := l.Read(ctx, shard, partition, from, func(offset int64, e *event.Event) error {
		if !marks(e, key) {
			return nil
		}
		found = Seam{Offset: offset, Seq: e.Seq, Time: e.ClusterTime}
		return ErrStop
	})
	return found, err
}

// around looks before end and after it at once: a marker of just now is found as
// soon as it comes, however long the log is.
func (l *Log) around(ctx context.Context, shard string, partition int32, end int64, key string, older func(context.Context, int32, int64) (Seam, error)) (Seam, error) {
	var found Seam
	var once sync.Once
	group, ctx := errgroup.WithContext(ctx)
	back := func(ctx context.Context, shard string, partition int32, end int64, key string) (Seam, error) {
		seam, first, err := l.backward(ctx, shard, partition, end, key)
		if err != nil || seam.Seq != 0 || older == nil || first == 0 {
			return seam, err
		}
		return older(ctx, partition, first)
	}
	for _, look := range []func(context.Context, string, int32, int64, string) (Seam, error){l.forward, back} {
		group.Go(func() error {
			seam, err := look(ctx, shard, partition, end, key)
			if err != nil || seam.Seq == 0 {
				return err
			}
			once.Do(func() { found = seam }) // a repetition is as good: all that follows is repeated too
			return ErrStop
		})
	}
	return found, ended(group.Wait())
}

// backward looks through stretches of growing length before end, to the first offset
// that Kafka has; Seq is 0 when the marker is in none.
func (l *Log) backward(ctx context.Context, shard string, partition int32, end int64, key string) (seam Seam, first int64, err error) {
	starts, err := l.StartOffsets(ctx, shard)
	if err != nil {
		return seam, 0, err
	}
	first = starts[partition]
	held := l.heldFrom(tailKey{shard, partition})
	for to, length := end, int64(1024); to > first; length *= 4 {
		from := max(first, to-length)
		if to == end && held > first && held < end { // what is in memory needs no connection
			from = held
		}
		var found Seam
		err := l.stretch(ctx, shard, partition, from, to, func(offset int64, e *event.Event) {
			if found.Seq == 0 && marks(e, key) {
				found = Seam{Offset: offset, Seq: e.Seq, Time: e.ClusterTime}
			}
		})
		if err != nil || found.Seq != 0 {
			return found, first, err
		}
		to = from
	}
	return seam, first, nil
}

// marks reports whether e is the marker.
func marks(e *event.Event, key string) bool {
	return e != nil && e.Marker != nil && e.Marker.Key() == key
}

// stretch reads the records in [from, to).
func (l *Log) stretch(ctx context.Context, shard string, partition int32, from, to int64, fn func(int64, *event.Event)) error {
	if from >= to {
		return nil
	}
	return l.Read(ctx, shard, partition, from, func(offset int64, e *event.Event) error {
		if e == nil {
			if offset >= to {
				return ErrStop
			}
			return nil
		}
		if offset < to {
			fn(offset, e)
		}
		if offset >= to-1 {
			return ErrStop
		}
		return nil
	})
}

// lastSeq gives the highest number that the end of shard's topic shows, 0 for
// an empty one: a log that begins anew goes on above it.
func lastSeq(ctx context.Context, client *kgo.Client, opts []kgo.Opt, brokers []string, shard string) (int64, error) {
	l := &Log{brokers: brokers, opts: opts, client: client, tails: tails{closed: true}, logger: slog.New(slog.DiscardHandler)} // reads once: no shared ends
	end, err := l.EndOffsets(ctx, shard)
	if err != nil {
		return 0, err
	}
	starts, err := l.StartOffsets(ctx, shard)
	if err != nil {
		return 0, err
	}
	var seq int64
	for p := range end {
		err := l.stretch(ctx, shard, int32(p), max(starts[p], end[p]-1), end[p], func(_ int64, e *event.Event) {
			seq = max(seq, e.Seq)
		})
		if err != nil {
			return 0, fmt.Errorf("read the end of %s: %w", chunk.Topic(shard), err)
		}
	}
	return seq, nil
}
