package contract

import (
	"time"

	"drover/chunk"
)

// MigrateInput starts one move. Chunk and To are needed; everything else has a
// default, so that {"chunk":"flights/0003","to":"shard-c"} is enough.
type MigrateInput struct {
	Chunk          chunk.ID `json:"chunk"`
	To             string   `json:"to"`                       // name of the target shard
	Approval       string   `json:"approval,omitempty"`       // "automatic" (default) or "manual": wait for the approve update before each switch
	Window         string   `json:"window,omitempty"`         // as "22:00-04:00", UTC: switch forth only then, unless an operator approves
	AfterSwitch    string   `json:"afterSwitch,omitempty"`    // when the chunk is worse off than before: "page" (default), "rollback" or "off"
	AfterSwitchFor Duration `json:"afterSwitchFor,omitempty"` // how long that is watched; default 5m
	WaitForOpen    Duration `json:"waitForOpen,omitempty"`    // the gate refuses while a transaction or cursor on the source is older; 0 only shows them
	Kind           string   `json:"kind,omitempty"`           // "move" (default), "upgrade" or "bin-pack": says the default of BurnIn
	BurnIn         Duration `json:"burnIn,omitempty"`         // how long the old placement stays current; default 24h, upgrade 168h, bin-pack 1h
	Complete       string   `json:"complete,omitempty"`       // "automatic" (default): drop the old placement after burn-in; "manual": wait for complete
	OnMismatch     string   `json:"onMismatch,omitempty"`     // what is done about a document that differs: "block" (default), "repair", "restart-slice" or "page"
	OnDDL          string   `json:"onDDL,omitempty"`          // what is done about DDL on the moving placement itself: "stop" (default) or "follow"
	RequestedBy    string   `json:"requestedBy,omitempty"`    // shown to people

	// Sort says for a collection by which fields it is loaded, as "origin, date desc";
	// the others are loaded in the order that fits most of their indexes.
	Sort map[string]string `json:"sort,omitempty"`
	// PrimaryReads lets bulk reads of a shard go to its primary while no secondary
	// of it is healthy. A set of one member is read anyway.
	PrimaryReads bool `json:"primaryReads,omitempty"`
	// NoQueue begins the import whatever else converges on the target.
	NoQueue bool     `json:"noQueue,omitempty"`
	Reason  string   `json:"reason,omitempty"`  // shown to people
	Reshape *Reshape `json:"reshape,omitempty"` // nil: the chunk moves as it is
}

// Reshape replaces chunks that lie side by side by others that hold the same keys.
// All of them switch in one attempt; the new chunks have names of their own.
type Reshape struct {
	With   []chunk.ID `json:"with,omitempty"`   // chunks that are merged with the one that is named
	At     []string   `json:"at,omitempty"`     // where the whole is cut: points of the key space in hexadecimal, as drover chunk list shows them
	Parts  int        `json:"parts,omitempty"`  // or into how many; the points are chosen by size from a sample, 0 and 1 cut nothing
	By     string     `json:"by,omitempty"`     // with Parts: "size" (default), or "heat": what was written lately
	Even   bool       `json:"even,omitempty"`   // with Parts, in a hashed key space: of equal width, without a sample
	Shards []string   `json:"shards,omitempty"` // one for each new chunk, in the order of the key space; empty: all on To
}

// The values of Approval and Complete.
const (
	Automatic = "automatic"
	Manual    = "manual"
)

// The values of Reshape.By.
const (
	BySize = "size"
	ByHeat = "heat"
)

// The values of OnDDL.
const (
	StopOnDDL   = "stop"   // the move waits for an operator
	FollowOnDDL = "follow" // changes of indexes and options are made on the target too; anything else stops all the same
)

// Ref names a migration in every activity of it.
type Ref struct {
	Migration chunk.MigrationID `json:"migration"`
	Chunk     chunk.ID          `json:"chunk"`
}

// RegisterInput asks for the rows, databases and indexes of a move.
type RegisterInput struct {
	MigrateInput
	WorkflowID string `json:"workflowID"`
}

// Plan is what registering found out and made.
type Plan struct {
	Ref
	Source    chunk.Placement `json:"source"`
	Target    chunk.Placement `json:"target"`
	Documents int64           `json:"documents"` // at the time of registering
	Bytes     int64           `json:"bytes"`
	Phase     chunk.Phase     `json:"phase,omitempty"`  // of a move whose earlier run was ended from outside; empty: it is new
	Copies    Duration        `json:"copies,omitempty"` // of one copy of all its bytes, as imports to the target were measured
	AllSides
}

// AllSides is every placement of a split or merge; empty in a move.
type AllSides struct {
	Sources []chunk.Placement `json:"sources,omitempty"`
	Targets []chunk.Placement `json:"targets,omitempty"`
}

// ImportInput asks for the copy of a move.
type ImportInput struct {
	Ref
	Sort         map[string]string `json:"sort,omitempty"`         // see [MigrateInput]
	PrimaryReads bool              `json:"primaryReads,omitempty"` // see [MigrateInput]
}

// ImportResult says what was copied.
type ImportResult struct {
	Documents int64  `json:"documents"`
	Bytes     int64  `json:"bytes"`
	Slices    int    `json:"slices"`
	Sort      string `json:"sort"` // why documents were loaded in the order they were
}

// DirectionInput names the lanes that carry changes From one placement To
// another, started by the open marker of attempt Direction, or by the import.
type DirectionInput struct {
	Ref
	Direction chunk.AttemptID `json:"direction"`
	From      chunk.Placement `json:"from"`
	To        chunk.Placement `json:"to"`

	PrimaryReads bool   `json:"primaryReads,omitempty"` // see [MigrateInput]
	OnDDL        string `json:"onDDL,omitempty"`        // see MigrateInput; empty: stop
}

// SyncResult is the lag at which both sides were called in sync.
type SyncResult struct {
	LagMS   int64 `json:"lagMS"`
	Applied int64 `json:"applied"` // events applied since the start marker
}

// ValidateResult says what was compared.
type ValidateResult struct {
	Documents  int64 `json:"documents"`
	Bytes      int64 `json:"bytes"`
	Rounds     int   `json:"rounds"`
	Busy       int   `json:"busy"` // documents left for the comparison under the fence
	Mismatches int64 `json:"mismatches"`
}

// AttemptRef is a prepared attempt with what its publish will check.
type AttemptRef struct {
	Ref
	Attempt        chunk.AttemptID  `json:"attempt"`
	LeaseEpochs    map[string]int64 `json:"leaseEpochs"`
	CatalogVersion int64            `json:"catalogVersion"`
}

// SwitchResult is what became of an attempt.
type SwitchResult struct {
	Attempt   chunk.AttemptID `json:"attempt"`
	Published bool            `json:"published"`
	Token     chunk.Token     `json:"token,omitempty"`
	WindowMS  float64         `json:"windowMS"` // from fencing to open or aborted, by Postgres' clock
	FencedAt  time.Time       `json:"fencedAt,omitzero"`
	OpenedAt  time.Time       `json:"openedAt,omitzero"`
	Timeline  []TimelineMark  `json:"timeline,omitempty"`
	Reason    string          `json:"reason,omitempty"`
}

// TimelineMark is one moment of a switch.
type TimelineMark struct {
	Step string `json:"step"`
	AtUS int64  `json:"atUS"` // microseconds since the fence began
	Note string `json:"note,omitempty"`
}

// SettleInput asks what became of an attempt, and brings it back if it cannot
// go forward.
type SettleInput struct {
	AttemptRef
	Reason string `json:"reason"`
}

// DropInput drops one placement of a migration.
type DropInput struct {
	Ref
	Placement chunk.Placement `json:"placement"`
	Direction chunk.AttemptID `json:"direction"` // of the lanes that fed it
}

// PhaseInput records a step in the metadata.
type PhaseInput struct {
	Ref
	Phase     chunk.Phase `json:"phase"`
	Attention string      `json:"attention,omitempty"`
	Paused    bool        `json:"paused,omitempty"`
	Expected  Duration    `json:"expected,omitempty"` // how long the phase takes that nothing holds up
	BurnIn    Duration    `json:"burnIn,omitempty"`   // how long it is to last, where it begins
}

// PhaseResult says among how many a move takes its step.
type PhaseResult struct {
	Moves int `json:"moves,omitempty"` // under way in the fleet, itself too; 0: nobody knows
}

// BurnInStep is what the metadata keeps of a phase burn-in.
type BurnInStep struct {
	BurnIn Duration `json:"burnIn,omitempty"` // how long it is to last
}

// MigrateResult is what a finished move reports.
type MigrateResult struct {
	Ref
	Phase     chunk.Phase     `json:"phase"`
	Serving   chunk.Placement `json:"serving"`
	Documents int64           `json:"documents"`
	Bytes     int64           `json:"bytes"`
	Switches  []SwitchResult  `json:"switches"`
}

// The activities of a move.
var (
	RegisterMigration    = Activity[RegisterInput, Plan]{"RegisterMigration"}
	RecordPhase          = Activity[PhaseInput, PhaseResult]{"RecordPhase"}
	ImportChunk          = Activity[ImportInput, ImportResult]{"ImportChunk"}
	ReplicateChanges     = Activity[DirectionInput, None]{"ReplicateChanges"}
	ReplicateUntilInSync = Activity[DirectionInput, SyncResult]{"ReplicateUntilInSync"}
	ValidateChunk        = Activity[DirectionInput, ValidateResult]{"ValidateChunk"}
	PrepareSwitch        = Activity[DirectionInput, AttemptRef]{"PrepareSwitch"}
	SwitchRoute          = Activity[AttemptRef, SwitchResult]{"SwitchRoute"}
	SettleAttempt        = Activity[SettleInput, SwitchResult]{"SettleAttempt"}
	ConcludeSwitch       = Activity[AttemptRef, None]{"ConcludeSwitch"}
	DropSource           = Activity[DropInput, None]{"DropSource"}
	DropTarget           = Activity[DropInput, None]{"DropTarget"}
)

// The updates and queries of a move.
const (
	StatusQuery    = "status"
	ApproveUpdate  = "approve"  // go on with the switch that waits for a person
	PauseUpdate    = "pause"    // stop before the next step and stop the lanes
	ResumeUpdate   = "resume"   // end a pause, or try again what failed
	AbortUpdate    = "abort"    // give up: the source serves on, the target copy goes
	RollbackUpdate = "rollback" // during burn-in: the old placement serves again
	CompleteUpdate = "complete" // end burn-in now and drop the placement that does not serve
)

// OtherMove is the code of a move that is asked for what another one of its chunk was to do.
const OtherMove = "migration.other_move"

// UpdateInput goes with every update.
type UpdateInput struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	OnDDL  string `json:"onDDL,omitempty"` // of resume: the policy from now on
	All    bool   `json:"all,omitempty"`   // of pause: every move is asked, and is to go on when that ends

	Migration chunk.MigrationID `json:"migration,omitempty"` // the move that is meant; 0: whichever of the chunk runs
}

// Status answers the status query.
type Status struct {
	Ref
	AllSides
	Phase       chunk.Phase      `json:"phase"`
	Step        string           `json:"step"` // what runs now, in words
	StepSince   time.Time        `json:"stepSince"`
	Expected    Duration         `json:"expected,omitempty"`   // how long the step takes that nothing holds up
	WaitingFor  string           `json:"waitingFor,omitempty"` // why it does not go on, and what would make it
	Paused      bool             `json:"paused"`
	PausedBy    string           `json:"pausedBy,omitempty"`  // who paused it, and why
	PausedAll   bool             `json:"pausedAll,omitempty"` // it was paused with every other move
	Attention   string           `json:"attention,omitempty"` // what a person has to look at
	Source      chunk.Placement  `json:"source"`
	Target      chunk.Placement  `json:"target"`
	Serving     chunk.Placement  `json:"serving"`
	Direction   chunk.AttemptID  `json:"direction"` // of the lanes
	Documents   int64            `json:"documents"` // to copy
	Bytes       int64            `json:"bytes"`
	Import      *ImportResult    `json:"import,omitempty"`
	Validation  *ValidateResult  `json:"validation,omitempty"`
	Audit       *AuditResult     `json:"audit,omitempty"`
	Gate        *GateReport      `json:"gate,omitempty"`
	Watch       *AftermathResult `json:"watch,omitempty"` // of the newest switch forth, once it is over
	Switches    []SwitchResult   `json:"switches,omitempty"`
	Drills      []DrillReport    `json:"drills,omitempty"`
	Updates     []string         `json:"updates"`               // what may be asked of it now
	UnderRepair string           `json:"underRepair,omitempty"` // a shard of the move that was under repair last, and by whom
	Failing     []FailingStep    `json:"failing,omitempty"`     // Temporal's word, not the workflow's: it is not told
}
