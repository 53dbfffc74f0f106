package contract

import (
	"fmt"
	"time"

	"drover/remediation"
)

// The workflow types of remediation.
const (
	RemediateShardWorkflow = "RemediateShard"
	WatchFleetWorkflow     = "WatchFleet"
)

// RemediateID is the workflow id of a shard's remediation: two of one shard cannot
// run at once. It is the holder of the shard's lease too.
func RemediateID(shard string) string { return "remediate/" + shard }

// RepairSignal tells a move that one of its shards is under repair. The move goes
// on; its switch waits for the lease.
const RepairSignal = "shardUnderRepair"

// RepairNotice is what the signal says.
type RepairNotice struct {
	Shard string `json:"shard"`
	By    string `json:"by"` // workflow id
	Plan  string `json:"plan"`
}

// RemediateInput starts the remediation of one shard: {"shard":"shard-a"} makes
// a plan and changes nothing.
type RemediateInput struct {
	Shard       string              `json:"shard"`
	Execute     bool                `json:"execute,omitempty"`   // else a dry run
	Layout      *remediation.Layout `json:"layout,omitempty"`    // instead of the declared one
	LeaseWait   Duration            `json:"leaseWait,omitempty"` // how long switches and others are waited for; default 30m
	RequestedBy string              `json:"requestedBy,omitempty"`
	Reason      string              `json:"reason,omitempty"`
	Course      remediation.Course  `json:"course,omitzero"` // of the runs before, carried over by continue-as-new
	Done        []PlannedStep       `json:"done,omitempty"`  // likewise
	From        *remediation.Health `json:"from,omitempty"`  // likewise, where the first run began
}

// PlannedStep is one operation of a plan, as it travels.
type PlannedStep struct {
	Order    remediation.Order `json:"order"`
	Text     string            `json:"text"`
	Reason   string            `json:"reason"`
	Cost     int               `json:"cost"`
	Destroys bool              `json:"destroys,omitempty"` // gives a copy of the data up
}

// ShardPlan is a shard as it was read, and the way to its best health.
type ShardPlan struct {
	Before  remediation.Vertex `json:"before"`
	From    remediation.Health `json:"from"`
	To      remediation.Health `json:"to"`
	Full    bool               `json:"full"` // To is full health
	Cost    int                `json:"cost"`
	Steps   []PlannedStep      `json:"steps"`
	Why     string             `json:"why"`
	Stopped string             `json:"stopped,omitempty"` // the stop switch is on: by whom and why
}

// Fill plans for v and writes everything down.
func (p *ShardPlan) Fill(planner *remediation.Planner, v remediation.Vertex) error {
	made, err := planner.Plan(v)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	p.Before, p.From, p.To, p.Full, p.Cost, p.Why = v, made.From, made.To, made.Full, made.Cost, made.Why
	p.Steps = nil
	for _, s := range made.Steps {
		order, err := remediation.NewOrder(s.Operation)
		if err != nil {
			return err
		}
		p.Steps = append(p.Steps, PlannedStep{
			Order: order, Text: s.Operation.String(), Reason: s.Reason, Cost: s.Cost, Destroys: remediation.Destroys(s.Operation),
		})
	}
	return nil
}

// ShardLease names the exclusive lease under which a remediation acts.
type ShardLease struct {
	Shard  string `json:"shard"`
	Holder string `json:"holder"` // the workflow's id
	Epoch  int64  `json:"epoch"`
}

// LeaseInput asks for the exclusive lease, and waits for it.
type LeaseInput struct {
	Shard  string   `json:"shard"`
	Holder string   `json:"holder"`
	Reason string   `json:"reason"`
	Wait   Duration `json:"wait"`
}

// LeaseResult is the lease, and the moves that go on beside it.
type LeaseResult struct {
	Lease    ShardLease `json:"lease"`
	WaitedMS int64      `json:"waitedMS"`
	Moves    []string   `json:"moves,omitempty"` // workflow ids of those that import or replicate
}

// PlanInput asks for a plan. Without a lease it is for people only.
type PlanInput struct {
	Shard  string              `json:"shard"`
	Layout *remediation.Layout `json:"layout,omitempty"`
}

// OperationInput performs one step of a plan under the lease.
type OperationInput struct {
	Lease  ShardLease          `json:"lease"`
	Layout *remediation.Layout `json:"layout,omitempty"`
	Before remediation.Vertex  `json:"before"`
	Step   PlannedStep         `json:"step"`
}

// OperationResult is what was read afterwards. A difference from what was
// predicted makes the rest of the plan void.
type OperationResult struct {
	After    remediation.Vertex `json:"after"`
	Deviates []string           `json:"deviates,omitempty"`
}

// RemediationRecord keeps what became of a run where operators look.
type RemediationRecord struct {
	WorkflowID  string              `json:"workflowID"`
	Shard       string              `json:"shard"`
	Execute     bool                `json:"execute"`
	RequestedBy string              `json:"requestedBy"`
	Cost        int                 `json:"cost"`
	Steps       int                 `json:"steps"`
	Verdict     remediation.Verdict `json:"verdict"` // empty while it runs
	Attention   string              `json:"attention"`
	Grown       int                 `json:"grown"`
}

// RemediateResult is what a finished run reports.
type RemediateResult struct {
	Shard   string              `json:"shard"`
	Verdict remediation.Verdict `json:"verdict"`
	From    remediation.Health  `json:"from"`
	To      remediation.Health  `json:"to"`
	Why     string              `json:"why"`
	Done    []PlannedStep       `json:"done"`
	Plan    []PlannedStep       `json:"plan,omitempty"` // of a dry run, or what was left
	Plans   int                 `json:"plans"`
}

// RemediationStatus answers the status query of a run.
type RemediationStatus struct {
	Shard      string        `json:"shard"`
	Execute    bool          `json:"execute"`
	Step       string        `json:"step"`
	StepSince  time.Time     `json:"stepSince"`
	WaitingFor string        `json:"waitingFor,omitempty"`
	Attention  string        `json:"attention,omitempty"`
	Conditions []string      `json:"conditions,omitempty"` // names of alarms, see docs/operations.md
	Lease      ShardLease    `json:"lease,omitzero"`
	Plan       *ShardPlan    `json:"plan,omitempty"`
	Done       []PlannedStep `json:"done,omitempty"`
	Plans      int           `json:"plans"`
	Deviates   []string      `json:"deviates,omitempty"` // of the last step that was not as predicted
	Failing    []FailingStep `json:"failing,omitempty"`  // Temporal's word, not the workflow's: it is not told
}

// The conditions, as they are named in statuses, metrics and docs.
const (
	LeaseHeldLong = "RemediationLeaseHeldLong" // somebody else keeps the shard, the remediation waits
	RateLimited   = "RemediationRateLimited"   // a shard could be mended and may not yet
	HealthSilent  = "RemediationHealthSilent"  // a shard has told nothing for too long
	PlansGrowing  = "RemediationPlansGrow"     // plans get dearer instead of cheaper
)

// WatchInput looks at the whole fleet once. A schedule starts it again and again.
type WatchInput struct {
	Execute bool              `json:"execute,omitempty"` // else it only reports
	Rates   remediation.Rates `json:"rates"`
	Silence Duration          `json:"silence,omitempty"` // health data older than that is an alarm; default 10m
}

// Survey is the fleet as it was read.
type Survey struct {
	Shards     int                     `json:"shards"` // with a layout
	Healthy    int                     `json:"healthy"`
	Candidates []remediation.Candidate `json:"candidates,omitempty"`
	Started    []remediation.Started   `json:"started,omitempty"`
	Silent     []string                `json:"silent,omitempty"`  // shards without fresh health data
	Persons    []string                `json:"persons,omitempty"` // unhealthy shards that no plan helps
	Growing    []string                `json:"growing,omitempty"` // shards whose plans get dearer
	Stopped    string                  `json:"stopped,omitempty"`
	Now        time.Time               `json:"now"`
}

// WatchResult is what a look led to.
type WatchResult struct {
	Survey     Survey             `json:"survey"`
	Admitted   []string           `json:"admitted,omitempty"`
	Held       []remediation.Held `json:"held,omitempty"`
	Conditions []string           `json:"conditions,omitempty"`
	DryRun     bool               `json:"dryRun"`
}

// The activities of remediation.
var (
	LeaseShard        = Activity[LeaseInput, LeaseResult]{"LeaseShard"}
	PlanShard         = Activity[PlanInput, ShardPlan]{"PlanShard"}
	PerformOperation  = Activity[OperationInput, OperationResult]{"PerformOperation"}
	ReleaseShard      = Activity[ShardLease, None]{"ReleaseShard"}
	RecordRemediation = Activity[RemediationRecord, None]{"RecordRemediation"}
	SurveyFleet       = Activity[WatchInput, Survey]{"SurveyFleet"}
	RecordWatch       = Activity[WatchResult, None]{"RecordWatch"}
)
