// Package validation compares two placements of a chunk while one of them is
// written to and the other one follows: no lane stops for it and no read needs
// a pinned snapshot.
//
// Both sides are read between two markers, V1 and V2, that are written to the
// source: the reads begin when the lane has passed V1 and end before V2 is
// written. A document that has no event in the captured log between the two did
// not change on the source in that time, nor did any lane change it on the
// target, so both sides must hold the same bytes. One that has an event is busy:
// it is read again in the next round, alone with the others like it. What is
// still busy at the end is left to be compared under the fence. Two slices are read at
// once where cuts say where the first one ends, and the next ones while V2 is on its way: the
// bracket of each goes from the marker before its read began to the one behind its end.
package validation

import (
	"context"
	"fmt"
	"iter"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// Side is one of the two placements.
type Side interface {
	// Scan yields raw documents of a collection in MongoDB's order of _id, those
	// behind after (all when it is zero), at most limit of them: fewer mean that
	// there are no more. A document is valid until the next one is asked for.
	Scan(ctx context.Context, r Read, after bson.RawValue, limit int) iter.Seq2[bson.Raw, error]
	// Get yields the documents with the given _ids, in any order, leaving out
	// those that are not there. A document is valid until the next one is asked for.
	Get(ctx context.Context, r Read, ids []bson.RawValue) iter.Seq2[bson.Raw, error]
}

// Read says what is read, and what the read must have seen.
type Read struct {
	Collection string
	Since      bson.Timestamp // zero on the target: lanes that have passed a marker have seen it
	// Until is the last _id that is wanted, zero for all: a side may give what lies
	// behind it, and nobody looks at that.
	Until bson.RawValue
	// Cuts are places before Until where a side may ask anew, in order: how it reads
	// may depend on them, and not what it gives.
	Cuts []bson.RawValue
	// Sort says that a side has to ask for the order. Without it what it gives is looked at, and
	// taken only where nothing was left out for the limit.
	Sort bool
}

// Mark is a marker that was written.
type Mark struct {
	Marker chunk.Marker
	At     bson.Timestamp // operation time of the write on the source's shard
	Seq    int64          // in the captured log, where it is known
}

// Markers brackets the reads.
type Markers interface {
	// Write writes a marker on the source's shard with majority, or waits for one that is
	// written after the call, and for its place in the captured log. Code where that takes
	// long: [Uncaptured].
	Write(ctx context.Context) (Mark, error)
	// Passed returns when the lane has passed the marker's place, by a majority read.
	Passed(ctx context.Context, m Mark) error
}

// Uncaptured is the code of a marker that was written and is not captured in time.
const Uncaptured = "validation.no_heartbeat"

// Log is the captured log, read by the validator itself.
type Log interface {
	// Touched adds what was changed in the source's database between two markers
	// to set. It returns when the log was read up to the second one.
	Touched(ctx context.Context, from, to Mark, set *Touched) error
}

// Parked knows the documents that wait for a unique key: on the target they
// count as present.
type Parked interface {
	Parked(ctx context.Context) ([]ParkedDocument, error)
}

// ParkedDocument is the image of a parked document.
type ParkedDocument struct {
	Collection string
	Image      bson.Raw
}

// Catalog compares collection options and index definitions.
type Catalog interface {
	CompareCatalog(ctx context.Context) ([]CatalogDifference, error)
}

// CatalogDifference is one difference between the two sides' catalogs.
type CatalogDifference struct {
	Collection string `json:"collection"`
	What       string `json:"what"`
}

// Cuts knows where the slices of a collection may end. Some servers look for all that
// lies behind a slice's beginning, however little is asked for, unless it has an end.
// Where they are decides how long a comparison takes, and nothing about what it finds.
type Cuts interface {
	Cuts(ctx context.Context, collection string) ([]Cut, error)
}

// Cut is an _id, and how many documents there are about from the cut before it.
type Cut struct {
	At        bson.RawValue
	Documents int64
}

// Settings bound a validation; zero values stand for the defaults.
type Settings struct {
	Slice    int // documents between two markers, 20,000; up to 16 times as many where little changes
	Few      int // busy documents that may be left for the fence, 200
	Rounds   int // rounds of rereading at most, 20
	Suspects int // documents remembered for rereading at most, 100,000
	Reports  int // mismatches reported one by one at most, 1,000

	KeepEvery      time.Duration // between two checkpoints at least, 5 s
	MarkerPatience time.Duration // until another marker is written, 30 s
	LanesPatience  time.Duration // until lanes that pass no marker at all end the comparison, 10 min
}

// withDefaults fills in what the caller left open.
func (s Settings) withDefaults() Settings {
	for _, f := range []struct {
		value *int
		usual int
	}{{&s.Slice, 20_000}, {&s.Few, 200}, {&s.Rounds, 20}, {&s.Suspects, 100_000}, {&s.Reports, 1_000}} {
		if *f.value <= 0 {
			*f.value = f.usual
		}
	}
	if s.KeepEvery <= 0 {
		s.KeepEvery = 5 * time.Second
	}
	if s.MarkerPatience <= 0 {
		s.MarkerPatience = 30 * time.Second
	}
	if s.LanesPatience <= 0 {
		s.LanesPatience = 10 * time.Minute
	}
	return s
}

// Validator compares the collections of one migration.
type Validator struct {
	Source, Target Side
	Markers        Markers
	Log            Log
	Parked         Parked  // nil where nothing is ever parked
	Catalog        Catalog // nil where nothing is to be compared
	Cuts           Cuts    // nil where none are known
	Database       string  // the source's physical one: whose events count
	TargetDatabase string  // of a [Watcher] that looks at the target's log too
	Settings       Settings
	// Progress is called after each slice and each round; nil is allowed.
	Progress func(context.Context, Progress)
	// Keep is given what another run needs to go on where this one is, which is told so
	// by From; nil keeps nothing, and begins anew.
	Keep func(context.Context, Checkpoint) error
	From *Checkpoint
}

// Progress is how far a validation has come.
type Progress struct {
	Collection string `json:"collection"`
	Round      int    `json:"round"` // 0 while everything is read for the first time
	Documents  int64  `json:"documents"`
	Bytes      int64  `json:"bytes"`
	Busy       int    `json:"busy"`
	Pending    int    `json:"pending"` // they differ and are to be checked once more
	Mismatches int64  `json:"mismatches"`
}

// Document names one document.
type Document struct {
	Collection string   `json:"collection"`
	ID         bson.Raw `json:"id"` // {_id: value}
}

// Mismatch is one document that differs.
type Mismatch struct {
	Document
	Difference
	SourceHash string    `json:"source_hash,omitempty"` // SHA-256 of the document, empty where there is none
	TargetHash string    `json:"target_hash,omitempty"`
	FirstSeen  time.Time `json:"first_seen"`
	Age        Seconds   `json:"age_seconds"`
}

// Seconds is a duration as people read it in reports.
type Seconds float64

// Result sums a validation up.
type Result struct {
	Documents    int64               `json:"documents"` // on the source, at the first reading
	Bytes        int64               `json:"bytes"`
	Target       int64               `json:"target_documents"`
	Collections  map[string]Counts   `json:"collections"`
	Rounds       int                 `json:"rounds"`
	Reread       int64               `json:"reread"`               // documents read again
	Busy         []Document          `json:"busy,omitempty"`       // to be compared under the fence, at most Settings.Few
	TooBusy      int64               `json:"too_busy,omitempty"`   // documents that were busy to the end, when there are more than that
	Mismatched   int64               `json:"mismatched"`           // all of them
	Unfinished   int64               `json:"unfinished,omitempty"` // those of them that differed but could not be checked once more
	Kinds        map[Kind]int64      `json:"kinds,omitempty"`
	Mismatches   []Mismatch          `json:"mismatches,omitempty"` // the first ones
	Catalog      []CatalogDifference `json:"catalog,omitempty"`
	First        Mark                `json:"-"` // what changed behind it may have been compared before: a [Watcher] begins there
	SecondsTaken Seconds             `json:"seconds"`
}

// Counts are the documents of one collection at the first reading. While the
// source is written to they need not be equal.
type Counts struct {
	Source int64 `json:"source"`
	Target int64 `json:"target"`
}

// Clean reports whether both sides are known to be the same, the busy documents
// aside that are left for the fence. What could not be compared is not clean.
func (r Result) Clean() bool {
	return r.Mismatched == 0 && r.TooBusy == 0 && len(r.Catalog) == 0
}

// Add takes the result of another leg into r.
func (r *Result) Add(o Result) {
	r.Documents, r.Target, r.Bytes = r.Documents+o.Documents, r.Target+o.Target, r.Bytes+o.Bytes
	r.Rounds, r.Reread, r.SecondsTaken = max(r.Rounds, o.Rounds), r.Reread+o.Reread, r.SecondsTaken+o.SecondsTaken
	r.Busy, r.TooBusy = append(r.Busy, o.Busy...), r.TooBusy+o.TooBusy
	r.Mismatched, r.Unfinished = r.Mismatched+o.Mismatched, r.Unfinished+o.Unfinished
	r.Mismatches, r.Catalog = append(r.Mismatches, o.Mismatches...), append(r.Catalog, o.Catalog...)
	if r.Kinds == nil {
		r.Kinds = map[Kind]int64{}
	}
	for k, n := range o.Kinds {
		r.Kinds[k] += n
	}
}

// String sums r up in one line.
func (r Result) String() string {
	return fmt.Sprintf("%d documents, %d rounds, %d busy, %d too busy, %d mismatched, %d catalog differences",
		r.Documents, r.Rounds, len(r.Busy), r.TooBusy, r.Mismatched, len(r.Catalog))
}
