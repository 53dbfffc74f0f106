package contract

// ReconcileWorkflow is the workflow type that brings the fleet to the fleet file that
// was applied last.
const ReconcileWorkflow = "ReconcileFleet"

// ReconcileInput is one run. It is a dry run without Execute.
type ReconcileInput struct {
	Execute  bool            `json:"execute,omitempty"`
	Settings BalanceSettings `json:"settings"`
	AtOnce   int             `json:"atOnce,omitempty"`
	BurnIn   Duration        `json:"burnIn,omitempty"`
}

// MissingChange is one thing that the fleet lacks to be as its file says.
type MissingChange struct {
	Kind    string `json:"kind"`
	Subject string `json:"subject"`
	What    string `json:"what"`
}

// ReconcileLook is how far the fleet is from its file, as far as no move is needed.
type ReconcileLook struct {
	Version  int64           `json:"version"` // of the file; 0: none was applied
	Missing  []MissingChange `json:"missing,omitempty"`
	Refusals []Refused       `json:"refusals,omitempty"` // what only a person can make
	Refused  string          `json:"refused,omitempty"`  // why the file as a whole does not fit the fleet as it is now
}

// FleetReconciled is what a run found and did.
type FleetReconciled struct {
	DryRun  bool            `json:"dryRun"`
	Look    ReconcileLook   `json:"look"`
	Made    []MissingChange `json:"made,omitempty"`
	Plan    FleetPlan       `json:"plan"` // of the moves that the placement rules ask for
	Started string          `json:"started,omitempty"`
	Held    string          `json:"held,omitempty"` // why no moves were started
}

// The activities of a reconciliation.
var (
	LookAtDesired = Activity[None, ReconcileLook]{"LookAtDesired"}
	MakeMissing   = Activity[ReconcileLook, ReconcileLook]{"MakeMissing"}
	PlanReconcile = Activity[ReconcileInput, FleetPlan]{"PlanReconcile"}
)
