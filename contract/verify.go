package contract

import (
	"fmt"
	"time"
)

// What is done about a document that differs, as MigrateInput.OnMismatch says.
const (
	BlockOnMismatch  = "block"  // the move waits for an operator
	RepairOnMismatch = "repair" // the source's image is written to the target, then it is compared again
	PageOnMismatch   = "page"   // an operator is told; the move goes on, the gate refuses while it differs

	// RestartOnMismatch copies the slice of the import anew that the document is in,
	// then everything is compared again; a few times, then the move waits as with block.
	RestartOnMismatch = "restart-slice"
)

// VerifyInput names the direction to verify and what is done about a mismatch.
type VerifyInput struct {
	DirectionInput
	OnMismatch string `json:"onMismatch,omitempty"`
}

// Verification is what the continuous verification of a direction knows after
// its newest round. It is kept as JSON in the metadata, where the gate reads it.
type Verification struct {
	Rounds     int64     `json:"rounds"`
	Verified   int64     `json:"verified"` // documents that changed and were found the same
	Behind     bool      `json:"behind"`   // changes are still to be read
	Pending    int       `json:"pending"`  // they differed once and are looked at again
	Hot        int       `json:"hot"`      // changed in every round; left for the comparison under the fence
	TooHot     int       `json:"tooHot"`   // more of them than may be left
	Mismatched int64     `json:"mismatched"`
	Repaired   int64     `json:"repaired,omitempty"`
	Catalog    []string  `json:"catalog,omitempty"` // options and indexes that differ
	At         time.Time `json:"at"`
}

// Clean reports whether all that changed was found the same, the hot documents
// aside. A round that is old says nothing: the caller looks at its age.
func (v Verification) Clean() bool {
	return v.Rounds > 0 && !v.Behind && v.Pending == 0 && v.TooHot == 0 && v.Mismatched == 0 && len(v.Catalog) == 0
}

// VerifyChanges compares what changes, from the validation until it is cancelled.
var VerifyChanges = Activity[VerifyInput, Verification]{"VerifyChanges"}

// MirrorReport is what came of the mirrored reads of a move. It is kept as JSON in the
// metadata, where the gate reads it.
type MirrorReport struct {
	Compared  int64     `json:"compared"`           // answers of both sides at equal positions
	Different int64     `json:"different"`          // of these
	Undecided int64     `json:"undecided"`          // their collection changed whenever they were asked, both sides refused them, or one ran out of time or memory
	Examples  []string  `json:"examples,omitempty"` // the first that differed
	SourceP50 float64   `json:"sourceP50MS"`        // of the newest round, as both sides answered the same reads of the worker
	SourceP99 float64   `json:"sourceP99MS"`
	TargetP50 float64   `json:"targetP50MS"`
	TargetP99 float64   `json:"targetP99MS"`
	At        time.Time `json:"at"`
}

// Missing says what keeps the gate from passing when so many compared reads are
// asked for; empty: nothing.
func (r MirrorReport) Missing(required int64) string {
	switch {
	case required <= 0:
		return ""
	case r.Different > 0:
		return fmt.Sprintf("%d mirrored reads differ", r.Different)
	case r.Compared < required:
		return fmt.Sprintf("%d of %d mirrored reads are compared", r.Compared, required)
	}
	return ""
}

// RestartResult says what was copied anew.
type RestartResult struct {
	Slices int `json:"slices"`
}

// RestartSlices copies the slices of an import anew in which documents differ.
var RestartSlices = Activity[ImportInput, RestartResult]{"RestartSlices"}

// AuditResult says what the second audit before the gate has looked at.
type AuditResult struct {
	Documents   int64    `json:"documents"`
	Ways        int      `json:"ways"`                  // indexes and types that were summed
	LeftOut     int      `json:"leftOut"`               // documents that changed all the time
	Approximate []string `json:"approximate,omitempty"` // collections whose sums never stood still
	Hashed      bool     `json:"hashed"`                // the servers' own hashes were compared too
	Canaries    int      `json:"canaries"`              // documents that were read through a proxy
	Differences []string `json:"differences,omitempty"`
}

// AuditChunk asks both sides other questions than the validation, by other
// commands, before the gate.
var AuditChunk = Activity[DirectionInput, AuditResult]{"AuditChunk"}
