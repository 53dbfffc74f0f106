package contract

import (
	"time"

	"drover/chunk"
)

// The kinds of moves. They differ in how long the old placement is kept current.
const (
	MoveKind    = "move"     // to another shard
	UpgradeKind = "upgrade"  // to a shard with another version of MongoDB
	BinPackKind = "bin-pack" // to make room on a host: the balancer's
)

// burnIns are how long the old placement is kept current when nobody says.
var burnIns = map[string]time.Duration{
	MoveKind:    24 * time.Hour,
	UpgradeKind: 7 * 24 * time.Hour,
	BinPackKind: time.Hour,
}

// BurnInOf gives the default burn-in of a kind of move; ok is false for no kind.
func BurnInOf(kind string) (d time.Duration, ok bool) {
	d, ok = burnIns[kind]
	return d, ok
}

// ReconcileResult is who serves a chunk by the metadata, whatever the coordinator
// remembers.
type ReconcileResult struct {
	Serving   chunk.Placement `json:"serving"`
	Spare     chunk.Placement `json:"spare"`
	Direction chunk.AttemptID `json:"direction"` // of the lanes from Serving to Spare
	Switches  []SwitchResult  `json:"switches"`  // every attempt that was published, oldest first
}

// ReconcileSwitch ends what a coordinator left unfinished, and tells who serves.
var ReconcileSwitch = Activity[Ref, ReconcileResult]{"ReconcileSwitch"}

// DrillUpdate asks, during burn-in, for a switch back and forth again.
const DrillUpdate = "drill"

// DrillReport is what a drill found: back to the old placement and forth again.
type DrillReport struct {
	StartedAt time.Time  `json:"startedAt"`
	EndedAt   time.Time  `json:"endedAt,omitzero"`
	Legs      []DrillLeg `json:"legs"`
	Outcome   string     `json:"outcome"` // passed, running, or why it stopped
}

// DrillLeg is one switch of a drill, and the comparison of both sides after it.
type DrillLeg struct {
	From       string          `json:"from"` // shard
	To         string          `json:"to"`
	Attempt    chunk.AttemptID `json:"attempt"`
	Attempts   int             `json:"attempts"` // tries that it took
	WindowMS   float64         `json:"windowMS"` // of the one that was published
	Documents  int64           `json:"documents"`
	Mismatches int64           `json:"mismatches"`
}
