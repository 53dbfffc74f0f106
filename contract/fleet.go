package contract

import (
	"time"

	"drover/chunk"
)

// The workflow types of intents and of the balancer.
const (
	RebalanceWorkflow    = "Rebalance"
	BalanceRoundWorkflow = "BalanceRound"
)

// MigrateID is the workflow id of a chunk's move: the same chunk cannot be
// started twice at once.
func MigrateID(id chunk.ID) string { return "migrate/" + string(id) }

// StopUpdate ends an intent: no further move is started; those that run go on.
const StopUpdate = "stop"

// The kinds of intents.
const (
	RebalanceIntent = "rebalance" // relieve the worst shards
	DrainIntent     = "drain"     // empty one shard
	BinPackIntent   = "binpack"   // empty as many shards as possible
	IsolateIntent   = "isolate"   // a chunk or key on a shard of its own
	ReconcileIntent = "reconcile" // what the placement rules say
	UpgradeIntent   = "upgrade"   // shards on to others that run a newer version
	SplitIntent     = "split"     // a chunk replaced by parts
	MergeIntent     = "merge"     // chunks replaced by one
)

// RebalanceID is the workflow id of an intent: the same one cannot run twice at once.
func RebalanceID(kind, subject string) string {
	if subject == "" {
		return "rebalance/" + kind
	}
	return "rebalance/" + kind + "/" + subject
}

// PlannedMove is one move of an intent.
type PlannedMove struct {
	Chunk   chunk.ID `json:"chunk"`
	From    string   `json:"from"`
	To      string   `json:"to"`
	Bytes   int64    `json:"bytes"`
	Reason  string   `json:"reason"`
	Reshape *Reshape `json:"reshape,omitempty"` // nil: the chunk moves as it is
	Wave    int      `json:"wave,omitempty"`    // begins when all moves of lower waves have served for the soak
}

// RebalanceInput starts an intent: the moves of a plan, so many at once.
type RebalanceInput struct {
	Kind        string          `json:"kind"`
	Subject     string          `json:"subject,omitempty"` // shard, chunk or key
	Moves       []PlannedMove   `json:"moves"`
	Emptied     []string        `json:"emptied,omitempty"` // shards that the intent wants empty
	FiguresAt   time.Time       `json:"figuresAt"`         // when the fleet was read
	AtOnce      int             `json:"atOnce,omitempty"`  // moves that copy at once; default 4
	BurnIn      Duration        `json:"burnIn,omitempty"`  // of each move
	Approval    string          `json:"approval,omitempty"`
	Complete    string          `json:"complete,omitempty"`
	AfterSwitch string          `json:"afterSwitch,omitempty"` // as of a move
	OnDDL       string          `json:"onDDL,omitempty"`       // as of a move
	Soak        Duration        `json:"soak,omitempty"`        // that a wave serves before the next one begins
	StopAtFirst bool            `json:"stopAtFirst,omitempty"` // no further move after one that failed or wants a person
	RequestedBy string          `json:"requestedBy"`
	Reason      string          `json:"reason,omitempty"`
	Resumed     *RebalanceState `json:"resumed,omitempty"` // set by the workflow itself
}

// The states of a move of an intent.
const (
	MoveWaiting  = "waiting"  // for its turn
	MoveRunning  = "running"  // copies, follows or switches
	MoveServing  = "serving"  // on its new shard, in burn-in
	MoveDone     = "done"     // the old placement is gone
	MoveFailed   = "failed"   // the chunk is where it was
	MoveNotBegun = "notBegun" // the intent was stopped before
)

// MoveState is how far one move has come.
type MoveState struct {
	PlannedMove
	State string    `json:"state"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since,omitzero"` // when it was first seen to serve
}

// RebalanceState answers the status query, and goes from one run to the next.
type RebalanceState struct {
	ID         string      `json:"id"`
	Kind       string      `json:"kind"`
	Subject    string      `json:"subject,omitempty"`
	OpenedAt   time.Time   `json:"openedAt"` // zero: not yet admitted
	Run        string      `json:"run"`      // the first of the chain
	Moves      []MoveState `json:"moves"`
	Stopped    string      `json:"stopped,omitempty"` // by whom and why
	WaitingFor string      `json:"waitingFor"`
}

// RebalanceResult is what became of an intent.
type RebalanceResult struct {
	Done     int         `json:"done"`
	Failed   int         `json:"failed"`
	NotBegun int         `json:"notBegun"`
	Stopped  string      `json:"stopped,omitempty"`
	Moves    []MoveState `json:"moves"`
}

// IntentInput opens an intent in the metadata.
type IntentInput struct {
	RebalanceInput
	ID   string   `json:"id"`
	Run  string   `json:"run"`
	Held []string `json:"held,omitempty"` // shards that it fills or will, beside those that its moves lead to
}

// IntentOpened says when.
type IntentOpened struct {
	At time.Time `json:"at"`
}

// IntentClosed ends an intent in the metadata.
type IntentClosed struct {
	Run    string          `json:"run"`
	Result RebalanceResult `json:"result"`
}

// LookInput asks how far moves have come that were registered since a time.
type LookInput struct {
	Chunks []chunk.ID `json:"chunks"`
	Since  time.Time  `json:"since"`
}

// SeenMove is how far one move has come.
type SeenMove struct {
	Chunk     chunk.ID    `json:"chunk"`
	Phase     chunk.Phase `json:"phase"`
	Attention string      `json:"attention,omitempty"`
}

// BalanceSettings say when the balancer acts, and on which capacities. Zero is
// the default of each.
type BalanceSettings struct {
	Start      float64  `json:"start,omitempty"`
	Stop       float64  `json:"stop,omitempty"`
	Full       float64  `json:"full,omitempty"`
	MinGain    float64  `json:"minGain,omitempty"`
	MaxMoves   int      `json:"maxMoves,omitempty"`
	CoolDown   Duration `json:"coolDown,omitempty"` // a chunk that moved stays for so long; default 1h, negative: none
	ShardBytes float64  `json:"shardBytes,omitempty"`
	ShardOps   float64  `json:"shardOps,omitempty"`
	ShardApply float64  `json:"shardApply,omitempty"`
	CPULimit   float64  `json:"cpuLimit,omitempty"`   // share of its cores past which a shard is relieved
	WriteLimit Duration `json:"writeLimit,omitempty"` // mean of a write past which it is
	HalfLife   Duration `json:"halfLife,omitempty"`   // after which what was measured counts half
	Ahead      Duration `json:"ahead,omitempty"`      // how far operations are foreseen; negative: not at all
}

// RoundInput is one round of the balancer. It is a dry run without Execute.
type RoundInput struct {
	Execute  bool            `json:"execute,omitempty"`
	Settings BalanceSettings `json:"settings"`
	AtOnce   int             `json:"atOnce,omitempty"`
	BurnIn   Duration        `json:"burnIn,omitempty"`
}

// PlannedSplit is a chunk that should be cut.
type PlannedSplit struct {
	Chunk  chunk.ID `json:"chunk"`
	Parts  int      `json:"parts"`
	Reason string   `json:"reason"`
}

// Refused is something that should be done and is not.
type Refused struct {
	Subject string `json:"subject"`
	Reason  string `json:"reason"`
	Offer   string `json:"offer,omitempty"`
}

// Figure is a number that a plan relies on, with where it comes from.
type Figure struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// FleetPlan is what should be done about a fleet, from figures of one moment.
type FleetPlan struct {
	Moves     []PlannedMove  `json:"moves"`
	Splits    []PlannedSplit `json:"splits,omitempty"`
	Refusals  []Refused      `json:"refusals,omitempty"`
	Before    float64        `json:"worstBefore"` // use of the worst shard
	After     float64        `json:"worstAfter"`
	Mean      float64        `json:"mean"`
	Emptied   []string       `json:"emptied,omitempty"`
	FiguresAt time.Time      `json:"figuresAt"`
	Figures   []Figure       `json:"figures"`
	Shards    []ShardStrain  `json:"shards,omitempty"` // those nearest to a limit
}

// ShardStrain is how a shard bears its load, with decay. What it does not tell is nil.
type ShardStrain struct {
	Shard   string    `json:"shard"`
	CPU     *float64  `json:"cpu"` // share of its cores, 0 to 1
	Write   *Duration `json:"write"`
	Read    *Duration `json:"read"`
	Unknown string    `json:"unknown,omitempty"` // what is not known, and why
}

// RoundResult is what a round decided, and why.
type RoundResult struct {
	DryRun  bool      `json:"dryRun"`
	Plan    FleetPlan `json:"plan"`
	Started string    `json:"started,omitempty"` // workflow id
	Held    string    `json:"held,omitempty"`    // why nothing was started
	Said    []string  `json:"said,omitempty"`    // subjects of refusals that are new or have changed
}

// The activities of intents and of the balancer.
var (
	OpenIntent  = Activity[IntentInput, IntentOpened]{"OpenIntent"}
	CloseIntent = Activity[IntentClosed, None]{"CloseIntent"}
	LookAtMoves = Activity[LookInput, []SeenMove]{"LookAtMoves"}
	PlanRound   = Activity[RoundInput, FleetPlan]{"PlanRound"}
	RecordRound = Activity[RoundResult, RoundResult]{"RecordRound"}
)
