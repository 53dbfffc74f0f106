package chunk

import "slices"

// Phase is the durable position of a migration.
type Phase string

// The phases in the order a migration goes through them.
const (
	Registered  Phase = "registered"  // rows exist, target databases and indexes may
	Importing   Phase = "importing"   // slices are read, stored and loaded
	Replicating Phase = "replicating" // lanes apply the source's changes
	Validating  Phase = "validating"  // both sides are compared
	Switching   Phase = "switching"   // an attempt is open or about to be
	BurnIn      Phase = "burn-in"     // the target serves, the old placement is kept current
	Completing  Phase = "completing"  // the old placement is being dropped: no way back
	Done        Phase = "done"
	Aborting    Phase = "aborting" // the unfinished target is being removed
	Aborted     Phase = "aborted"
)

// phaseSuccessors is the whole state machine of a migration.
var phaseSuccessors = map[Phase][]Phase{
	Registered:  {Importing, Aborting},
	Importing:   {Replicating, Aborting},
	Replicating: {Validating, Aborting},
	Validating:  {Switching, Replicating, Aborting},
	Switching:   {BurnIn, Replicating, Aborting},
	BurnIn:      {Completing, Aborting}, // Aborting only while the source serves again after a rollback
	Completing:  {Done},
	Done:        {},
	Aborting:    {Aborted},
	Aborted:     {},
}

// CanBecome reports whether a migration may go from p to q.
func (p Phase) CanBecome(q Phase) bool { return slices.Contains(phaseSuccessors[p], q) }

// Final reports whether nothing follows p.
func (p Phase) Final() bool { return p == Done || p == Aborted }

// Phases lists every phase in order.
func Phases() []Phase {
	return []Phase{Registered, Importing, Replicating, Validating, Switching, BurnIn, Completing, Done, Aborting, Aborted}
}

// AttemptState is the durable state of one try to switch.
type AttemptState string

// The states of an attempt.
const (
	Preparing       AttemptState = "preparing"
	Fencing         AttemptState = "fencing"   // write grants are being taken away, writes are held
	Closing         AttemptState = "closing"   // read grants too
	Published       AttemptState = "published" // routes have changed: only forward from here
	Open            AttemptState = "open"      // the new placement has its grants
	AttemptDone     AttemptState = "done"
	AttemptAborting AttemptState = "aborting" // going back: the old placement gets this attempt's grants
	AttemptAborted  AttemptState = "aborted"
)

// attemptSuccessors is the whole state machine of an attempt.
var attemptSuccessors = map[AttemptState][]AttemptState{
	Preparing:       {Fencing, AttemptAborting},
	Fencing:         {Closing, AttemptAborting},
	Closing:         {Published, AttemptAborting},
	Published:       {Open},
	Open:            {AttemptDone},
	AttemptDone:     {},
	AttemptAborting: {AttemptAborted},
	AttemptAborted:  {},
}

// CanBecome reports whether an attempt may go from s to q.
func (s AttemptState) CanBecome(q AttemptState) bool { return slices.Contains(attemptSuccessors[s], q) }

// Terminal reports whether nothing follows s.
func (s AttemptState) Terminal() bool { return s == AttemptDone || s == AttemptAborted }

// HoldsWrites reports whether a proxy holds writes to the attempt's chunks.
func (s AttemptState) HoldsWrites() bool {
	return s == Fencing || s == Closing || s == Published || s == AttemptAborting
}

// HoldsReads reports whether a proxy holds reads of the attempt's chunks.
func (s AttemptState) HoldsReads() bool {
	return s == Closing || s == Published || s == AttemptAborting
}

// PlacementState is the durable state of a physical copy.
type PlacementState string

// The states of a placement.
const (
	Loading  PlacementState = "loading"
	Mirror   PlacementState = "mirror"   // kept current by lanes, serves nobody
	Live     PlacementState = "live"     // the published one
	Dropping PlacementState = "dropping" // no way back, publish refuses it
	Gone     PlacementState = "gone"
)

// placementSuccessors is the whole state machine of a placement.
var placementSuccessors = map[PlacementState][]PlacementState{
	Loading:  {Mirror, Dropping},
	Mirror:   {Live, Dropping},
	Live:     {Mirror},
	Dropping: {Gone},
	Gone:     {},
}

// CanBecome reports whether a placement may go from s to q.
func (s PlacementState) CanBecome(q PlacementState) bool {
	return slices.Contains(placementSuccessors[s], q)
}

// Standing is a chunk's part in its key space.
type Standing string

// The standings of a chunk.
const (
	PlannedChunk Standing = "planned" // what a split or merge will make
	CurrentChunk Standing = "current"
	EndedChunk   Standing = "ended" // split or merged; current again after the way back
)

// standingSuccessors is the whole state machine of a chunk.
var standingSuccessors = map[Standing][]Standing{
	PlannedChunk: {CurrentChunk, EndedChunk},
	CurrentChunk: {EndedChunk},
	EndedChunk:   {CurrentChunk},
}

// CanBecome reports whether a chunk may go from s to q.
func (s Standing) CanBecome(q Standing) bool { return slices.Contains(standingSuccessors[s], q) }
