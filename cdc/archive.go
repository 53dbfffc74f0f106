package cdc

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/stoppoint"
)

// ArchivePositions keeps how far each partition of a topic is archived.
type ArchivePositions interface {
	// Archived gives the next offset to archive, 0 when nothing is archived.
	Archived(ctx context.Context, topic string, partition int32) (next int64, err error)
	// SaveArchived moves it from one offset to another, and fails with
	// [failure.Lost] when it is not at from. manifest is the newest one's key.
	SaveArchived(ctx context.Context, topic string, partition int32, from, to int64, manifest string) error
}

// Archive copies a shard's captured log from Kafka to S3, so that replaying it
// does not depend on Kafka's retention. A position is saved after the upload: a
// crash between them leaves a segment that the next ones overlap, which readers
// expect; a hole is impossible.
type Archive struct {
	Shard     string
	Log       *Log
	Objects   *Objects
	Positions ArchivePositions
	Settings  ArchiveSettings
	// Keep gives the time from which on changes must stay; what is older is removed
	// now and then. The zero time keeps everything, and so does nil.
	Keep    func(ctx context.Context) (time.Time, error)
	Metrics *ArchiveMetrics // nil counts nothing
	Logger  *slog.Logger
	Stops   *stoppoint.Points
}

// ArchiveSettings say when a segment is closed; zero means the default.
type ArchiveSettings struct {
	SegmentBytes int64         // compressed, 32 MB
	SegmentAge   time.Duration // since its first record was read, 1 minute
	RetryEvery   time.Duration // pause after an error, 1 s
	PruneEvery   time.Duration // how often what is too old is removed, 1 hour
}

// orDefault fills in what is zero.
func (s ArchiveSettings) orDefault() ArchiveSettings {
	if s.SegmentBytes == 0 {
		s.SegmentBytes = 32 << 20
	}
	if s.SegmentAge == 0 {
		s.SegmentAge = time.Minute
	}
	if s.RetryEvery == 0 {
		s.RetryEvery = time.Second
	}
	if s.PruneEvery == 0 {
		s.PruneEvery = time.Hour
	}
	return s
}

// ArchiveMetrics tells how the archive does. A nil one does nothing.
type ArchiveMetrics struct{ segments, records, bytes, errors *prometheus.CounterVec }

// NewArchiveMetrics registers them; one set serves every archive of a process.
func NewArchiveMetrics(r prometheus.Registerer) *ArchiveMetrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_archive_" + name + "_total", Help: help}, []string{"shard"})
	}
	m := &ArchiveMetrics{
		segments: counter("segments", "Segments stored."),
		records:  counter("records", "Records stored."),
		bytes:    counter("bytes", "Bytes stored, compressed."),
		errors:   counter("errors", "Errors after which archiving was tried again."),
	}
	r.MustRegister(m.segments, m.records, m.bytes, m.errors)
	return m
}

// stored counts a segment.
func (m *ArchiveMetrics) stored(shard string, about *Manifest) {
	if m != nil {
		m.segments.WithLabelValues(shard).Inc()
		m.records.WithLabelValues(shard).Add(float64(about.Count))
		m.bytes.WithLabelValues(shard).Add(float64(about.Bytes))
	}
}

// failed counts an error.
func (m *ArchiveMetrics) failed(shard string) {
	if m != nil {
		m.errors.WithLabelValues(shard).Inc()
	}
}

// Run archives until ctx ends or an error leaves nothing to try: another archive
// has moved the position ([failure.Lost]), or Kafka dropped what was not archived
// (log.offset_out_of_range).
func (a *Archive) Run(ctx context.Context) error {
	topic := chunk.Topic(a.Shard)
	log := a.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	set := a.Settings.orDefault()
	var partitions int
	var id string
	for {
		ends, err := a.Log.EndOffsets(ctx, a.Shard)
		if err == nil {
			partitions = len(ends)
			id, err = a.Log.topicID(ctx, topic)
		}
		if err == nil {
			break
		}
		log.WarnContext(ctx, "archive waits for its topic", slog.String("topic", topic), slog.Any("error", err))
		if !sleep(ctx, set.RetryEvery) {
			return context.Cause(ctx)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for p := range partitions {
		w := &archiver{Archive: a, set: set, log: log, topic: topic, topicID: id, partition: int32(p)}
		group.Go(func() error { return w.run(ctx) })
	}
	if a.Keep != nil {
		group.Go(func() error { return a.prune(ctx, set, log, id, partitions) })
	}
	return group.Wait()
}

// prune removes, now and then, what is older than what must stay. Trouble with it
// leaves more than is needed, and stops nothing.
func (a *Archive) prune(ctx context.Context, set ArchiveSettings, log *slog.Logger, id string, partitions int) error {
	for sleep(ctx, set.PruneEvery) {
		before, err := a.Keep(ctx)
		for p := 0; p < partitions && err == nil && !before.IsZero(); p++ {
			var n int
			n, err = a.Objects.Prune(ctx, chunk.Topic(a.Shard), id, int32(p), before)
			if n > 0 {
				log.InfoContext(ctx, "archive removed segments", slog.String("shard", a.Shard), slog.Int("partition", p), slog.Int("segments", n), slog.Time("before", before))
			}
		}
		if err != nil && ctx.Err() == nil {
			a.Metrics.failed(a.Shard)
			log.WarnContext(ctx, "archive was not pruned", slog.String("shard", a.Shard), slog.Any("error", err))
		}
	}
	return context.Cause(ctx)
}

// archiver works on one partition.
type archiver struct {
	*Archive
	set       ArchiveSettings
	log       *slog.Logger
	topic     string
	topicID   string
	partition int32

	saved   int64 // position as it is saved
	segment *segment
	begun   time.Time
}

// run starts again after each error that may pass.
func (w *archiver) run(ctx context.Context) error {
	for {
		err := w.once(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case final(err):
			return err
		}
		w.Metrics.failed(w.Shard)
		w.log.WarnContext(ctx, "archive tries again", "topic", w.topic, "partition", w.partition, "error", err)
		if !sleep(ctx, w.set.RetryEvery) {
			return context.Cause(ctx)
		}
	}
}

// once archives from the saved position until an error.
func (w *archiver) once(ctx context.Context) error {
	saved, err := w.Positions.Archived(ctx, w.topic, w.partition)
	if err != nil {
		return fmt.Errorf("read archive position of %s/%d: %w", w.topic, w.partition, err)
	}
	w.saved, w.segment = saved, nil
	from := saved
	if saved == 0 { // nothing is archived: begin with what Kafka has
		starts, err := w.Log.StartOffsets(ctx, w.Shard)
		if err != nil {
			return err
		}
		from = starts[w.partition]
	}
	return w.Log.records(ctx, w.Shard, w.partition, from, func(rec *kgo.Record) error {
		if rec != nil {
			if err := w.add(rec); err != nil {
				return err
			}
		}
		return w.cut(ctx)
	}, kgo.FetchMinBytes(1<<20), kgo.FetchMaxWait(time.Second))
}

// add puts a record into the segment.
func (w *archiver) add(rec *kgo.Record) error {
	if w.segment == nil {
		s, err := newSegment(w.topic, w.topicID, w.partition)
		if err != nil {
			return err
		}
		w.segment, w.begun = s, time.Now()
	}
	return w.segment.add(rec.Offset, rec.Value)
}

// cut stores the segment when it is large or old enough.
func (w *archiver) cut(ctx context.Context) error {
	if w.segment == nil || (w.segment.size() < w.set.SegmentBytes && time.Since(w.begun) < w.set.SegmentAge) {
		return nil
	}
	body, about := w.segment.finish()
	key, err := w.Objects.put(ctx, body, about)
	if err != nil {
		return err
	}
	if err := w.Stops.At(ctx, "archive.stored"); err != nil {
		return stopped{err}
	}
	if err := w.save(ctx, about.Last+1, key); err != nil {
		return err
	}
	w.Metrics.stored(w.Shard, &about)
	w.segment = nil
	if err := w.Stops.At(ctx, "archive.saved"); err != nil {
		return stopped{err}
	}
	return nil
}

// save moves the position. Refused, the position is asked: an answer may have
// been lost.
func (w *archiver) save(ctx context.Context, to int64, manifest string) error {
	err := w.Positions.SaveArchived(ctx, w.topic, w.partition, w.saved, to, manifest)
	if failure.Is(err, failure.Lost) {
		if at, aerr := w.Positions.Archived(ctx, w.topic, w.partition); aerr == nil && at == to {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("save archive position of %s/%d: %w", w.topic, w.partition, err)
	}
	w.saved = to
	return nil
}

// topicID tells a topic from an earlier one of its name.
func (l *Log) topicID(ctx context.Context, topic string) (string, error) {
	details, err := kadm.NewClient(l.client).ListTopics(ctx, topic)
	if err == nil {
		err = details[topic].Err
	}
	if err != nil {
		return "", fmt.Errorf("look up topic %s: %w", topic, err)
	}
	id := details[topic].ID
	return hex.EncodeToString(id[:]), nil
}
