package contract

import (
	"time"

	"drover/chunk"
)

// MigrateRun is the input of one run of a move: what was asked for, and what the run
// before it handed over.
type MigrateRun struct {
	MigrateInput
	Carry *Carry `json:"carry,omitempty"` // nil in the first
}

// Carry is what a run of a move hands to the next one, which goes on where it stood:
// histories are bounded, waits are not.
type Carry struct {
	Plan      Plan            `json:"plan"`
	Status    Status          `json:"status"`
	Serving   chunk.Placement `json:"serving"`
	Spare     chunk.Placement `json:"spare"`
	Direction chunk.AttemptID `json:"direction"`
	Runs      int             `json:"runs"` // that came before

	Attempted     bool      `json:"attempted,omitempty"`
	Approved      bool      `json:"approved,omitempty"`
	RollbackAsked bool      `json:"rollbackAsked,omitempty"`
	DrillAsked    bool      `json:"drillAsked,omitempty"`
	CompleteAsked bool      `json:"completeAsked,omitempty"`
	Drilling      bool      `json:"drilling,omitempty"`
	Tries         int       `json:"tries,omitempty"`    // of the switch that is under way, from 1; 0: none is
	Restarts      int       `json:"restarts,omitempty"` // of slices, after comparisons that failed
	BurnInUntil   time.Time `json:"burnInUntil,omitzero"`

	Watch      *AftermathInput `json:"watch,omitempty"` // of the newest switch, as it runs
	WatchUntil time.Time       `json:"watchUntil,omitzero"`
	Page       *Page           `json:"page,omitempty"`
}

// Page is why a person has to look at a switch.
type Page struct {
	Attempt chunk.AttemptID `json:"attempt"`
	Why     string          `json:"why"`
}
