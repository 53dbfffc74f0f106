package replication

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/event"
	"drover/internal/stoppoint"
)

// Log is the captured log of a shard.
type Log interface {
	// Read calls fn for each record of the partition from offset from on, in
	// order, and with a nil event each time all that was fetched has been handed
	// out. It ends with ctx's error or fn's. An offset that the log no longer has
	// is an error, never a jump.
	Read(ctx context.Context, shard string, partition int32, from int64, fn func(offset int64, e *event.Event) error) error
}

// Sessions ends other clients' sessions on the target shard.
type Sessions interface {
	// KillSession aborts the open transaction of exactly that session of user, if
	// there is one. lsid is the session's id, 16 bytes.
	KillSession(ctx context.Context, user string, lsid []byte) error
}

// Window tells how an event relates to the import of its document's slice: at
// or before Lo its effect is in the copy, up to Hi it may be, after Hi it is not.
type Window struct{ Lo, Hi bson.Timestamp }

// Windows knows the window of each slice of an import.
type Windows interface {
	// Window gives the window of the slice that holds the _id; ok is false when
	// no slice does.
	Window(collection string, id bson.RawValue) (w Window, ok bool)
}

// Report is an event that a lane could not apply, with where it stands.
type Report struct {
	Lane       chunk.Lane
	Collection string
	ID         bson.RawValue
	Seq        int64
	Offset     int64
	Op         event.Op
	Code       string // of the failure that stops the lane
	Reason     string // one sentence, without contents of documents
	Event      *event.Event
	At         time.Time
}

// Reports keeps what a lane could not apply. Both calls return only once the
// report is kept; the lane stops then.
type Reports interface {
	// Diverged is told of a change that does not fit the target's document.
	Diverged(ctx context.Context, r Report) error
	// Quarantine is told of an event that cannot be understood.
	Quarantine(ctx context.Context, r Report) error
}

// Direction is what the lanes of one direction of a migration have in common.
type Direction struct {
	Migration  chunk.MigrationID
	Attempt    chunk.AttemptID // whose open marker is the start; 0: the import's start marker
	Source     chunk.Placement
	Target     chunk.Placement
	Partitions int32
	Spread     event.Spread // of the source's log

	// From gives, for each partition, an offset of the source's log at or before
	// the start marker. It is used by a lane that has no checkpoint.
	From []int64

	// What follows is for the legs of a split or merge, of which this is one.
	Lead    chunk.MigrationID   // names the switch's markers; 0: Migration itself
	Group   []chunk.MigrationID // every leg's, of whose labels none is applied; empty: Migration alone
	Keep    *chunk.Keep         // the documents that the target is to have; nil: all of the source's
	Settled bson.Timestamp      // every leg applies strictly what comes later, see [Checkpoint].Foreign
}

// lane names one of the lanes.
func (d Direction) lane(partition int32) chunk.Lane {
	return chunk.Lane{Migration: d.Migration, Direction: d.Attempt, Partition: partition}
}

// partitions are those that can hold events of the source's database. In the others
// there would be nothing to apply, but every marker to save.
func (d Direction) partitions() ([]int32, error) {
	if d.Spread == event.ByDatabase {
		p, err := d.partition()
		return []int32{p}, err
	}
	all := make([]int32, d.Partitions)
	for p := range all {
		all[p] = int32(p)
	}
	return all, nil
}

// partition is the one that holds all events of the source's database where events
// are spread by database.
func (d Direction) partition() (int32, error) {
	placed := event.Event{Database: d.Source.Database}
	p, err := placed.Partition(d.Partitions, event.ByDatabase)
	return p, err //nolint:wrapcheck // says what it is about
}

// begins reports whether m is the marker that the direction's lanes start at.
func (d Direction) begins(m *chunk.Marker) bool {
	if !d.owns(m) {
		return false
	}
	if d.Attempt == 0 {
		return m.Kind == chunk.StartMarker
	}
	return m.Kind == chunk.OpenMarker && m.Attempt == d.Attempt
}

// owns reports whether m concerns the direction: a marker of its migration
// about the placement that it copies from. The markers of a switch are those of
// the leg that leads.
func (d Direction) owns(m *chunk.Marker) bool {
	of := d.Migration
	if d.Lead != 0 && (m.Kind == chunk.DrainedMarker || m.Kind == chunk.FinalMarker || m.Kind == chunk.OpenMarker) {
		of = d.Lead
	}
	return m.Kind != chunk.HeartbeatMarker && m.Migration == of && (m.Placement == 0 || m.Placement == d.Source.ID)
}

// labels reports whether a label is of this migration, by whichever leg.
func (d Direction) labels(m chunk.MigrationID) bool {
	return m != 0 && (m == d.Migration || slices.Contains(d.Group, m))
}

// Config is what the lanes of a direction work with.
type Config struct {
	Direction Direction
	Target    *mongo.Client // connected as [chunk.ApplierUser]
	Log       Log
	Sessions  Sessions
	Reports   Reports
	Windows   Windows // of the import; nil: every event is applied strictly

	// Definitions follows changes of indexes and options; nil: lanes stop at them.
	Definitions Definitions

	// OwnExpiry reports whether an index of a collection is given the expiry that Drover
	// gives it; nil: none is. index is as a collMod has it.
	OwnExpiry func(collection string, index bson.Raw) bool

	// Fold tells how the source's server describes updates. Its Lenient is ignored.
	Fold FoldOptions
	// KeepsEmptyTimestamps is the target's capability of that name.
	KeepsEmptyTimestamps bool
	// JoinsWrites is the target's capability of that name.
	JoinsWrites bool

	Limits  Limits
	Metrics *Metrics                // nil: none
	Points  *stoppoint.Points       // nil: none
	Logger  *slog.Logger            // nil: silent
	Backoff func(int) time.Duration // nil: doubling from 10 ms to 2 s, with jitter
	// IdleSave says what Limits.IdleSave is now, for a process with many lanes; nil: as it is there.
	IdleSave func() time.Duration
}

// idleSave is how often an idle lane saves its position.
func (c *Config) idleSave() time.Duration {
	if c.IdleSave == nil {
		return c.Limits.IdleSave
	}
	return c.IdleSave()
}

// longestUnasked is how rarely a lane of a crowd looks whether it was closed.
const longestUnasked = 3 * time.Second

// idleCheck is how often a quiet lane looks whether it was closed: a read, so more often
// than it saves where it stands.
func (c *Config) idleCheck() time.Duration {
	return max(c.Limits.IdleCheck, min(c.idleSave()/4, longestUnasked))
}

// Limits bound a lane's batches. Zero values take the default.
type Limits struct {
	Docs             int           // events of a batch; 1,000
	Bytes            int           // of a batch's events; 8 MB
	TransactionDocs  int           // events up to which a source transaction stays whole; 2,000
	TransactionBytes int           // and its bytes; 16 MB
	ImageBytes       int           // of the documents a batch reads; more splits it; 32 MB
	QueueBytes       int           // read ahead of what is applied; 32 MB
	IdleSave         time.Duration // how often the position is saved when only others' events come; 1 s
	IdleCheck        time.Duration // how often a quiet lane looks whether it was closed, at most; 500 ms
	ParkedRetry      time.Duration // how often parked documents are tried when nothing wakes the lane; 20 ms
	Try              time.Duration // deadline of one try of a transaction; 60 s
}

// withDefaults fills in what is not set.
func (l Limits) withDefaults() Limits {
	set(&l.Docs, 1000)
	set(&l.Bytes, 8<<20)
	set(&l.TransactionDocs, 2000)
	set(&l.TransactionBytes, 16<<20)
	set(&l.ImageBytes, 32<<20)
	set(&l.QueueBytes, 32<<20)
	set(&l.IdleSave, time.Second)
	set(&l.IdleCheck, 500*time.Millisecond)
	set(&l.ParkedRetry, 20*time.Millisecond)
	set(&l.Try, time.Minute)
	return l
}

// set gives *p a value if it has none.
func set[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
