package workload

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Verdict is what the final comparison found.
type Verdict struct {
	Documents  int64    `json:"documents_compared"`
	Lost       int64    `json:"lost"`        // acknowledged writes that are not there
	Duplicated int64    `json:"duplicated"`  // operations that took effect twice, and documents that should not be
	StaleReads int64    `json:"stale_reads"` // reads, and matches of writes, that missed what was acknowledged before
	Examples   []string `json:"examples,omitempty"`
}

// maxExamples bounds what a report says about a broken run.
const maxExamples = 10

func (v *Verdict) example(format string, args ...any) {
	if len(v.Examples) < maxExamples {
		v.Examples = append(v.Examples, fmt.Sprintf(format, args...))
	}
}

// Check reads every document of the application's collection and compares it
// with the model. Call it after Stop or between Pause and resume.
func (w *Workload) Check(ctx context.Context) (Verdict, error) {
	v := Verdict{StaleReads: w.stale.Load()}
	found := map[string]booking{}
	cur, err := w.coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(1000))
	if err != nil {
		return v, fmt.Errorf("read everything back: %w", err)
	}
	for cur.Next(ctx) {
		var b booking
		if err := cur.Decode(&b); err != nil {
			return v, fmt.Errorf("read everything back: %w", err)
		}
		if _, twice := found[b.ID]; twice {
			v.Duplicated++
			v.example("%s is returned twice", b.ID)
		}
		found[b.ID] = b
	}
	if err := cur.Err(); err != nil {
		return v, fmt.Errorf("read everything back: %w", err)
	}
	for _, o := range w.clients {
		for id, s := range o.docs {
			if !s.exists {
				continue
			}
			v.Documents++
			got, there := found[id]
			delete(found, id)
			w.compare(&v, s.doc, got, there)
		}
	}
	for id, b := range found { // deleted ones that came back, and ones nobody wrote
		v.Duplicated++
		v.example("%s should not exist, has version %d", id, b.V)
	}
	return v, nil
}

// compare judges one document.
func (w *Workload) compare(v *Verdict, want, got booking, there bool) {
	switch {
	case !there:
		v.Lost++
		v.example("%s is missing, version %d was acknowledged", want.ID, want.V)
	case got.same(want):
		if op := repeated(got.Ops); op != "" {
			v.Duplicated++
			v.example("%s has operation %s twice", want.ID, op)
		}
	case got.V > want.V || got.N > want.N || repeated(got.Ops) != "":
		v.Duplicated++
		v.example("%s is at version %d with counter %d, want %d and %d", want.ID, got.V, got.N, want.V, want.N)
	default:
		v.Lost++
		v.example("%s is at version %d with counter %d, want %d and %d", want.ID, got.V, got.N, want.V, want.N)
	}
}

// repeated finds an operation id that stands twice.
func repeated(ops []string) string {
	seen := make(map[string]bool, len(ops))
	for _, op := range ops {
		if seen[op] {
			return op
		}
		seen[op] = true
	}
	return ""
}
