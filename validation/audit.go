package validation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/failure"
)

// Questions are what an audit asks one placement. They share no command and no
// code with the reads of a validation: a fault there must show here.
type Questions interface {
	// Listing gives the collections with their options and indexes, as one line
	// for each thing that is defined.
	Listing(ctx context.Context) (map[string][]string, error)
	// Sums counts and sums a collection through each of its indexes, leaving out
	// some documents. Equal contents give equal sums. It has seen all up to since.
	Sums(ctx context.Context, collection string, since bson.Timestamp, without []bson.RawValue) (map[string]Sum, error)
	// Hash gives the server's own hash of each collection, nil where it has none.
	Hash(ctx context.Context) (map[string]string, error)
}

// Sum is what one way through a collection comes to, for one BSON type of the
// index's first field.
type Sum struct {
	Documents int64
	Bytes     int64 // of the field's values
	Total     int64 // of the whole numbers among them
}

// plus adds up sums of several placements.
func plus(a, b Sum) Sum { return Sum{a.Documents + b.Documents, a.Bytes + b.Bytes, a.Total + b.Total} }

// Auditor asks other questions than the validator before a switch: it lists
// definitions anew, and compares counts and sums of what no write touches
// meanwhile. Several targets together must hold what the sources hold.
type Auditor struct {
	Sources, Targets []Questions
	Feeds            []Feed // one for each pair of a source and a target with lanes between them; none: only definitions are listed
	Settings         Settings
	// Expected are the collections that the metadata knows.
	Expected []string
	// HashUpTo is the number of documents up to which the servers are asked for
	// their own hash, which may keep writers waiting; 0: never.
	HashUpTo int64
	// Canaries are read through a proxy; nil: none.
	Canaries Canaries
}

// Feed is the log that lanes bring from a source to a target.
type Feed struct {
	Markers  Markers // of the pair
	Log      Log     // of the source
	Database string  // the source's physical one
	Source   int     // in [Auditor.Sources]
}

// AuditResult is what an audit found.
type AuditResult struct {
	Documents   int64    `json:"documents"`
	Ways        int      `json:"ways"`        // indexes and types that were summed
	LeftOut     int      `json:"leftOut"`     // documents that changed all the time
	Approximate []string `json:"approximate"` // collections whose sums never stood still
	Hashed      bool     `json:"hashed"`      // the servers' own hashes were compared
	Canaries    int      `json:"canaries"`    // documents that were read through a proxy
	Differences []string `json:"differences,omitempty"`
}

// auditRounds is how often a collection is summed until what changes is known.
const auditRounds = 8

// Run asks. Differences are no error; an error means that the audit did not finish.
func (a *Auditor) Run(ctx context.Context) (AuditResult, error) {
	whole := *a
	whole.Settings = a.Settings.withDefaults()
	var r AuditResult
	if err := whole.listings(ctx, &r); err != nil {
		return r, err
	}
	if len(a.Feeds) == 0 {
		return r, nil
	}
	for _, c := range whole.Expected {
		if err := whole.sums(ctx, c, &r); err != nil {
			return r, fmt.Errorf("audit %s: %w", c, err)
		}
	}
	if whole.HashUpTo > 0 && r.Documents <= whole.HashUpTo && len(whole.Feeds) == 1 {
		if err := whole.hashes(ctx, &r); err != nil {
			return r, err
		}
	}
	if whole.Canaries != nil {
		if err := whole.sing(ctx, &r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// differs notes a difference.
func (r *AuditResult) differs(format string, args ...any) {
	r.Differences = append(r.Differences, fmt.Sprintf(format, args...))
}

// listings compares what is defined, on every side, and with the metadata.
func (a *Auditor) listings(ctx context.Context, r *AuditResult) error {
	var first map[string][]string
	for i, side := range slices.Concat(a.Sources, a.Targets) {
		have, err := side.Listing(ctx)
		if err != nil {
			return fmt.Errorf("list collections: %w", err)
		}
		for _, c := range a.Expected {
			if _, ok := have[c]; !ok {
				r.differs("%s has no collection %s", a.name(i), c)
			}
		}
		if i == 0 {
			first = have
			continue
		}
		for c := range have {
			if _, ok := first[c]; !ok {
				r.differs("collection %s is on the %s only", c, a.name(i))
			}
		}
		for c, lines := range first {
			other, ok := have[c]
			if !ok && !slices.Contains(a.Expected, c) {
				r.differs("the %s has no collection %s", a.name(i), c)
			}
			if ok && !slices.Equal(slices.Sorted(slices.Values(lines)), slices.Sorted(slices.Values(other))) {
				r.differs("%s is defined as %s on the source, as %s on the %s", c, strings.Join(lines, "; "), strings.Join(other, "; "), a.name(i))
			}
		}
	}
	return nil
}

// name says which side the i-th one is.
func (a *Auditor) name(i int) string {
	if i < len(a.Sources) {
		return "source"
	}
	return "target"
}

// sums compares one collection: what changes between two markers is left out of
// the next try, until nothing else has changed.
func (a *Auditor) sums(ctx context.Context, collection string, r *AuditResult) error {
	without := map[docKey]bson.RawValue{}
	marks, err := a.mark(ctx)
	if err != nil {
		return err
	}
	for round := 1; ; round++ {
		ids := slices.Collect(maps.Values(without))
		source, err := total(ctx, a.Sources, collection, a.since(marks), ids)
		if err != nil {
			return fmt.Errorf("the source: %w", err)
		}
		target, err := total(ctx, a.Targets, collection, make([]bson.Timestamp, len(a.Targets)), ids)
		if err != nil {
			return fmt.Errorf("the target: %w", err)
		}
		from := marks
		if marks, err = a.mark(ctx); err != nil {
			return err
		}
		touched, err := a.touched(ctx, from, marks, a.Settings.Suspects)
		if err != nil {
			return err
		}
		fresh := 0
		for key, id := range touched.docs {
			if _, known := without[key]; key.collection == collection && !known {
				without[key] = id
				fresh++
			}
		}
		switch {
		case touched.ddl != nil || touched.overflow:
			return failure.New(failure.Transient, "validation.audit_disturbed", "collections or too many documents changed while they were summed").
				WithHint("the audit begins again")
		case fresh == 0:
			r.compare(collection, source, target, 0)
			r.LeftOut += len(without)
			return nil
		case round == auditRounds || len(without) > a.Settings.Few*50:
			r.Approximate = append(r.Approximate, collection)
			r.compare(collection, source, target, int64(fresh))
			r.LeftOut += len(without)
			return nil
		}
	}
}

// mark writes a marker for each feed, which its lane has passed.
func (a *Auditor) mark(ctx context.Context) ([]Mark, error) {
	marks := make([]Mark, len(a.Feeds))
	for i, f := range a.Feeds {
		var err error
		if marks[i], err = f.Markers.Write(ctx); err != nil {
			return nil, err
		}
	}
	for i, f := range a.Feeds {
		if err := f.Markers.Passed(ctx, marks[i]); err != nil {
			return nil, err
		}
	}
	return marks, nil
}

// since gives what each source must have seen: all of its feeds' marks. Times of
// different sources say nothing of each other.
func (a *Auditor) since(marks []Mark) []bson.Timestamp {
	out := make([]bson.Timestamp, len(a.Sources))
	for i, f := range a.Feeds {
		if marks[i].At.After(out[f.Source]) {
			out[f.Source] = marks[i].At
		}
	}
	return out
}

// touched gives what changed on any source between the marks of each feed: the lanes
// of one feed say nothing of what others bring.
func (a *Auditor) touched(ctx context.Context, from, to []Mark, limit int) (*Touched, error) {
	all := NewTouched("", limit)
	for i, f := range a.Feeds {
		some := NewTouched(f.Database, limit)
		if err := f.Log.Touched(ctx, from[i], to[i], some); err != nil {
			return nil, err
		}
		all.merge(some)
	}
	return all, nil
}

// total adds up the sums of one side's placements.
func total(ctx context.Context, sides []Questions, collection string, since []bson.Timestamp, without []bson.RawValue) (map[string]Sum, error) {
	out := map[string]Sum{}
	for i, side := range sides {
		some, err := side.Sums(ctx, collection, since[i], without)
		if err != nil {
			return nil, err
		}
		for way, s := range some {
			out[way] = plus(out[way], s)
		}
	}
	return out, nil
}

// compare compares sums; as many documents may be too many or too few as have
// changed while they were taken.
func (r *AuditResult) compare(collection string, source, target map[string]Sum, changed int64) {
	counted := int64(0)
	for _, way := range slices.Sorted(maps.Keys(source)) {
		r.Ways++
		if s, name := source[way], strings.SplitN(way, "/", 2)[0]; name == "_id_" {
			counted += s.Documents
		}
	}
	r.Documents += counted
	all := maps.Clone(source)
	maps.Copy(all, target)
	for _, way := range slices.Sorted(maps.Keys(all)) {
		s, t := source[way], target[way]
		if s == t || changed > 0 && max(s.Documents-t.Documents, t.Documents-s.Documents) <= changed {
			continue
		}
		r.differs("%s through %s: %d documents, %d bytes, sum %d on the source; %d, %d, %d on the target",
			collection, way, s.Documents, s.Bytes, s.Total, t.Documents, t.Bytes, t.Total)
	}
}

// hashes compares the servers' own hashes where nothing changed meanwhile.
func (a *Auditor) hashes(ctx context.Context, r *AuditResult) error {
	from, err := a.mark(ctx)
	if err != nil {
		return err
	}
	source, err := a.Sources[0].Hash(ctx)
	if err != nil || source == nil {
		return err
	}
	target, err := a.Targets[0].Hash(ctx)
	if err != nil || target == nil {
		return err
	}
	to, err := a.mark(ctx)
	if err != nil {
		return err
	}
	touched, err := a.touched(ctx, from, to, 1)
	if err != nil || touched.Len() > 0 || touched.overflow {
		return err
	}
	r.Hashed = true
	for _, c := range a.Expected {
		if source[c] != target[c] {
			r.differs("the servers' hashes of %s differ", c)
		}
	}
	return nil
}
