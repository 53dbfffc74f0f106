package activities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bulkimport"
	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/metadata"
	"drover/replication"
)

// errCloneReached ends the replay of a clone: its time has come.
var errCloneReached = errors.New("the clone's time is reached")

// hopError ends the replay of one placement: an attempt led to another.
type hopError struct{ attempt metadata.Attempt }

func (e *hopError) Error() string {
	return fmt.Sprintf("attempt %d led to %s", e.attempt.ID, e.attempt.Target.Shard)
}

// cloneLog is the captured log of the placements of a chunk as a clone's lane reads
// it: up to a time, or to the final marker of an attempt that led away. Markers of
// the migration that it begins with bear the clone's number.
type cloneLog struct {
	read    func(ctx context.Context, shard string, partition int32, from int64, fn func(int64, *event.Event) error) error
	attempt func(context.Context, chunk.AttemptID) (metadata.Attempt, error)
	place   chunk.Placement   // whose log it is
	of      chunk.MigrationID // whose marker is the start
	began   chunk.AttemptID   // that marker's attempt; 0: the import's
	clone   chunk.MigrationID
	at      time.Time
	seek    int64 // where a lane without a checkpoint begins to read: at or before the start
}

var _ replication.Log = (*cloneLog)(nil)

// Read implements [replication.Log].
func (l *cloneLog) Read(ctx context.Context, shard string, partition int32, from int64, fn func(int64, *event.Event) error) error {
	begun := from > l.seek // a lane that goes on; what stands before its start is of earlier times that the placement served
	return l.read(ctx, shard, partition, from, func(offset int64, e *event.Event) error {
		if e == nil {
			return fn(offset, nil)
		}
		if e.Wall.After(l.at) {
			return errCloneReached
		}
		if begun = begun || l.starts(e.Marker); !begun {
			return fn(offset, e)
		}
		if m := e.Marker; m != nil && m.Kind == chunk.FinalMarker && m.Placement == l.place.ID {
			if err := l.left(ctx, m, shard, partition, offset+1); err != nil {
				return err
			}
		}
		e, err := l.seen(e)
		if err != nil {
			return err
		}
		return fn(offset, e)
	})
}

// starts reports whether m is the marker that the replay begins at.
func (l *cloneLog) starts(m *chunk.Marker) bool {
	return m != nil && m.Migration == l.of && m.Placement == l.place.ID && m.Attempt == l.began &&
		(m.Kind == chunk.StartMarker && l.began == 0 || m.Kind == chunk.OpenMarker && l.began != 0)
}

// seen gives an event as the clone's lane is to see it.
func (l *cloneLog) seen(e *event.Event) (*event.Event, error) {
	m := e.Marker
	switch {
	case l.starts(m):
		seen, marker := *e, *m
		marker.Migration = l.clone
		seen.Marker = &marker
		return &seen, nil
	case m != nil || e.Op.OnDocument() || e.Database != l.place.Database:
		return e, nil
	}
	switch e.Op { //nolint:exhaustive // those on documents were dealt with
	case "create", "createIndexes", "dropIndexes", "modify": // collections and indexes are made from the catalog
		seen := *e
		seen.Database, seen.Description = "", nil
		return &seen, nil
	}
	return e, failure.New(failure.Invalid, "clone.ddl", "%s of %s.%s at %s", e.Op, e.Database, e.Collection, e.Wall.UTC().Format(time.RFC3339)).
		WithHint("a clone cannot follow that: choose a time before it, or one after a later move of the chunk")
}

// left tells what became of the attempt whose final marker was met: nil where it
// went back and the placement served on, and where the marker was not the last one of
// its attempt, as what lies between two of them was applied.
func (l *cloneLog) left(ctx context.Context, m *chunk.Marker, shard string, partition int32, next int64) error {
	for {
		at, err := l.attempt(ctx, m.Attempt)
		if err != nil {
			return err
		}
		switch at.State { //nolint:exhaustive // the others are under way
		case chunk.AttemptAborted:
			return nil
		case chunk.Open, chunk.AttemptDone:
			if again, err := l.again(ctx, m, at.ChangedAt, shard, partition, next); again || err != nil {
				return err
			}
			if at.Target.Chunk != l.place.Chunk {
				return failure.New(failure.Invalid, "clone.reshaped", "chunk %s was split or merged by attempt %d at %s", l.place.Chunk, at.ID, at.ChangedAt.UTC().Format(time.RFC3339)).
					WithHint("choose a time before that")
			}
			return &hopError{at}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}

// again reports whether another final marker of the same attempt follows: a switch
// writes one in each of its rounds.
func (l *cloneLog) again(ctx context.Context, m *chunk.Marker, over time.Time, shard string, partition int32, next int64) (found bool, err error) {
	until := over.Add(cloneMargin)
	if l.at.Before(until) {
		until = l.at
	}
	err = l.read(ctx, shard, partition, next, func(_ int64, e *event.Event) error {
		switch {
		case e == nil:
			return nil
		case e.Wall.After(until):
			return cdc.ErrStop
		case e.Marker != nil && e.Marker.Kind == chunk.FinalMarker && e.Marker.Placement == m.Placement && e.Marker.Attempt == m.Attempt:
			found = true
			return cdc.ErrStop
		}
		return nil
	})
	return found, err
}

// replay applies what followed the import, placement by placement.
func (w *cloning) replay(ctx context.Context) error {
	imp := &bulkimport.Importer{Migration: w.plan.Base, Slices: slicesPort{w.a.Store}}
	windows, err := imp.Windows(ctx)
	if err != nil {
		return err
	}
	log := &cloneLog{
		read: w.a.replay().Read, attempt: w.a.Store.Attempt,
		place: w.plan.Source, of: w.plan.Base, clone: w.clone.ID, at: w.plan.At,
	}
	start := w.plan.Start
	var rules replication.Windows = cloneWindows{windows}
	for events := int64(0); ; {
		n, err := w.replayOne(ctx, log, start, rules, events)
		events += n
		hop, hops := errors.AsType[*hopError](err)
		switch {
		case errors.Is(err, errCloneReached):
			w.report(events, w.plan.Documents, w.plan.Bytes, "builds indexes")
			return nil
		case !hops:
			return err
		}
		log.place, log.of, log.began, start, rules = hop.attempt.Target, hop.attempt.Migration, hop.attempt.ID, hop.attempt.CreatedAt, nil
	}
}

// replayOne applies the log of one placement with a lane of its own, which goes on
// where its checkpoint stands.
func (w *cloning) replayOne(ctx context.Context, log *cloneLog, start time.Time, windows replication.Windows, before int64) (events int64, err error) {
	p, err := partitionOf(log.place.Database, w.a.Settings.Partitions)
	if err != nil {
		return 0, err
	}
	seek, err := w.a.replay().Seek(ctx, log.place.Shard, p, start.Add(-cloneMargin))
	if err != nil {
		return 0, err
	}
	from := make([]int64, w.a.Settings.Partitions)
	from[p], log.seek = seek, seek
	if err := w.to.EnsureApplierRole(ctx, w.place, w.clone.ID, log.began); err != nil {
		return 0, err
	}
	side, err := w.a.Sides.side(ctx, w.clone.Shard)
	if err != nil {
		return 0, err
	}
	applier, err := w.to.Client(chunk.ApplierUser)
	if err != nil {
		return 0, err
	}
	source, err := w.a.Store.Shard(ctx, log.place.Shard)
	if err != nil {
		return 0, err
	}
	lane, err := replication.NewLane(replication.Config{
		Direction: replication.Direction{
			Migration: w.clone.ID, Attempt: log.began, Source: log.place, Target: w.place,
			Partitions: w.a.Settings.Partitions, From: from, Group: []chunk.MigrationID{log.of},
		},
		Target: applier, Log: log, Sessions: side, Reports: cloneReports{w.a.Logger}, Windows: windows,
		Fold:                 replication.FoldOptions{SortNewFields: source.Capabilities.SortsNewFields},
		KeepsEmptyTimestamps: w.to.Shard().Capabilities.KeepsEmptyTimestamps,
		JoinsWrites:          w.to.Shard().Capabilities.JoinsWrites,
		Metrics:              w.a.Metrics.Lanes, Points: w.a.Stops, Logger: w.a.Logger,
	}, p)
	if err != nil {
		return 0, err
	}
	if err := lane.Take(ctx); err != nil {
		return 0, err
	}
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				s := lane.Status()
				w.report(before+s.Applied, w.plan.Documents, w.plan.Bytes, fmt.Sprintf("replays %s, %d changes, at %s", log.place.Shard, before+s.Applied, w.plan.At.Add(-s.Lag).UTC().Format(time.RFC3339)))
			}
		}
	}()
	err = lane.Run(ctx)
	close(done)
	<-watched
	s := lane.Status()
	if _, hops := errors.AsType[*hopError](err); (hops || errors.Is(err, errCloneReached)) && s.Seq == 0 {
		return s.Applied, failure.New(failure.Invalid, "clone.log_gone", "the log of shard %s does not have the marker that the replay begins at", log.place.Shard).
			WithHint("the archive's retention is over: choose a time after a later move of the chunk")
	}
	return s.Applied, err
}

// partitionOf gives the partition, of n, that holds a physical database's events.
func partitionOf(database string, n int32) (int32, error) {
	e := event.Event{Database: database}
	return e.Partition(n, event.ByDatabase)
}

// cloneWindows are an import's windows; what was not imported all comes from events.
type cloneWindows struct{ windows bulkimport.Windows }

var _ replication.Windows = cloneWindows{}

// Window implements [replication.Windows].
func (p cloneWindows) Window(collection string, id bson.RawValue) (replication.Window, bool) {
	lo, hi, err := p.windows.Window(collection, id)
	return replication.Window{Lo: lo, Hi: hi}, err == nil
}

// cloneReports tells of events that a clone's lane could not apply: the clone fails.
type cloneReports struct{ log *slog.Logger }

var _ replication.Reports = cloneReports{}

// Quarantine implements [replication.Reports].
func (r cloneReports) Quarantine(ctx context.Context, x replication.Report) error {
	r.log.WarnContext(ctx, "A change does not fit a clone", slog.String("collection", x.Collection), slog.Int64("seq", x.Seq), slog.String("code", x.Code))
	return nil
}

// Diverged implements [replication.Reports].
func (r cloneReports) Diverged(ctx context.Context, x replication.Report) error {
	return r.Quarantine(ctx, x)
}

// guarded is a value that several goroutines share.
type guarded[T any] struct {
	mu sync.Mutex
	v  T
}

func (g *guarded[T]) set(v T) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.v = v
}

func (g *guarded[T]) get() T {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.v
}
