package contract

import (
	"time"

	"drover/chunk"
)

// The verdicts of a check of a plan.
const (
	PlanGood    = "good"
	PlanLook    = "look"    // a person should
	PlanRefused = "refused" // the move would be
	PlanUnknown = "unknown" // the part that knows could not be reached
)

// PlanCheck is one thing that a move needs.
type PlanCheck struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Value   string `json:"value"`
	Hint    string `json:"hint,omitempty"`
}

// PlannedCollection is what the import of a collection would be like.
type PlannedCollection struct {
	Name      string   `json:"name"`
	Documents int64    `json:"documents"`
	Bytes     int64    `json:"bytes"`
	Indexes   int64    `json:"indexes"` // bytes
	Slices    int      `json:"slices"`
	Sampled   int64    `json:"sampled"` // documents that the estimate rests on
	Stored    int64    `json:"stored"`  // bytes in S3
	Import    Duration `json:"import"`
	Order     string   `json:"order"` // in which it is loaded, and why
}

// MovePlan is a move that is not made: what it would meet, and how long it would take.
type MovePlan struct {
	Chunk       chunk.ID            `json:"chunk"`
	From        string              `json:"from"`
	To          string              `json:"to"`
	At          time.Time           `json:"at"`
	Go          bool                `json:"go"` // nothing refuses it, and everything could be asked
	Checks      []PlanCheck         `json:"checks"`
	Collections []PlannedCollection `json:"collections"`
	Basis       string              `json:"basis"` // what the times rest on
	Import      Duration            `json:"import"`
	CatchUp     Duration            `json:"catchUp"`
	BurnIn      Duration            `json:"burnIn"`
	Writes      float64             `json:"writes"` // requests a second of the chunk; all count as writes
	Apply       float64             `json:"apply"`  // changes a second that the target was seen to apply; 0: never measured
	Space       int64               `json:"space"`  // bytes that the target needs
}
