package workflows_test

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/workers"
	"drover/workflows"
)

// world is the smallest fleet that can be left in a wrong state: which placement
// serves, which exist, and whether a fence is open.
type world struct {
	mu sync.Mutex

	failAt     string            // activity that fails
	failToo    string            // another one that does, for as long
	failCount  int               // how often, 0 for always
	codes      map[string]string // of failures by activity, for those that are not the tests' own
	answerLost bool              // the effect happens, the caller sees an error
	halfway    map[string]func() // what an activity that fails leaves behind
	kind       failure.Kind
	beside     bool // other workflows run in the environment: it does not wake one of several whose pending activity is completed
	gateNo     int  // how often the gate refuses first
	gateAsked  []contract.GateInput
	watched    []contract.AftermathInput
	watch      contract.AftermathResult // what a watch finds

	calls      map[string]int
	tokens     map[string][]byte        // of the last call of each activity
	beats      map[string]time.Duration // within which each must show that it lives
	phases     []chunk.Phase
	paused     bool // as the last RecordPhase said
	moves      int  // under way, as RecordPhase says
	expected   []time.Duration
	registered bool
	standsAt   chunk.Phase // of an earlier run
	dropped    map[chunk.PlacementID]bool
	fenced     bool
	attempts   int
	serving    chunk.PlacementID
	lanes      []contract.DirectionInput // every start, in order
	running    int
	runs       map[string]bool           // the ids of those
	verifying  int                       // of VerifyChanges
	verified   []contract.DirectionInput // every start, in order
	maxRunning int
	watchOpen  bool            // a watch goes on
	differing  int             // slices that are copied anew each time
	lanesAt    []int           // the starts of lanes before each time
	crowded    bool            // lanes ran meanwhile
	ended      map[string]bool // ids of lanes that were cancelled
	aged       bool            // the metadata tells other states of placements than the move was begun with
	concluding bool            // the conclusion of a switch does not end by itself
	noRoom     bool            // on the target, when the move asks first; its second question stays open
	published  map[chunk.AttemptID]bool
}

var (
	source = chunk.Placement{ID: 1, Chunk: "d/0001", Shard: "a", Database: "d_0001_p1"}
	target = chunk.Placement{ID: 2, Chunk: "d/0001", Shard: "b", Database: "d_0001_p2"}
	ref    = contract.Ref{Migration: 7, Chunk: "d/0001"}
	input  = contract.MigrateInput{Chunk: "d/0001", To: "b", Complete: contract.Manual}
)

func newWorld() *world {
	return &world{
		calls: map[string]int{}, beats: map[string]time.Duration{}, tokens: map[string][]byte{}, runs: map[string]bool{}, ended: map[string]bool{}, dropped: map[chunk.PlacementID]bool{}, serving: source.ID, published: map[chunk.AttemptID]bool{}, kind: failure.Invalid,
	}
}

// serve registers an activity whose effect happens under the world's lock.
func serve[In, Out any](r contract.Registry, w *world, a contract.Activity[In, Out], effect func(In) (Out, error)) {
	a.Register(r, func(ctx context.Context, in In) (out Out, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls[a.Name]++
		w.tokens[a.Name], w.beats[a.Name] = activity.GetInfo(ctx).TaskToken, activity.GetInfo(ctx).HeartbeatTimeout
		if a.Name != w.failAt && a.Name != w.failToo || w.failCount > 0 && w.calls[a.Name] > w.failCount {
			return effect(in)
		}
		switch halfway := w.halfway[a.Name]; {
		case w.answerLost:
			_, _ = effect(in)
		case halfway != nil:
			halfway()
		}
		return out, failure.New(w.kind, cmp.Or(w.codes[a.Name], "test.failed"), "failed at %s", a.Name)
	})
}

// unless leaves an activity pending that needs something to run beside it: what
// fails beside it then always fails first, as in life.
func (w *world) unless(runs bool) error {
	if runs || w.beside {
		return nil
	}
	return activity.ErrResultPending
}

// end completes the activity of that name if it is pending. w.mu is held.
func (w *world) end(env *testsuite.TestWorkflowEnvironment, name string, result any) {
	if token := w.tokens[name]; token != nil {
		_ = env.CompleteActivity(token, result, nil) // one that has ended already is not found
	}
}

// newEnv is a test environment whose activities change w.
func newEnv(t *testing.T, w *world) *testsuite.TestWorkflowEnvironment {
	t.Helper()
	env := new(testsuite.WorkflowTestSuite).NewTestWorkflowEnvironment()
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{&workers.Failures{}},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	workers.RegisterWorkflows(env)
	serve(env, w, contract.RegisterMigration, func(contract.RegisterInput) (contract.Plan, error) {
		w.registered = true
		return contract.Plan{Ref: ref, Source: source, Target: target, Documents: 10, Bytes: 100, Phase: w.standsAt, Copies: contract.Duration(time.Hour)}, nil
	})
	serve(env, w, contract.RecordPhase, func(in contract.PhaseInput) (contract.PhaseResult, error) {
		w.phases, w.paused = append(w.phases, in.Phase), in.Paused
		w.expected = append(w.expected, time.Duration(in.Expected))
		return contract.PhaseResult{Moves: w.moves}, nil
	})
	serve(env, w, contract.AdmitMove, func(contract.AdmitInput) (contract.Admission, error) {
		full := w.calls[contract.AdmitMove.Name] == 1 && w.noRoom
		return contract.Admission{Admitted: !full, Shard: "b", Capacity: 10, Converging: 8, Others: 3, Demand: 1}, w.unless(!w.noRoom || full)
	})
	serve(env, w, contract.ImportChunk, func(contract.ImportInput) (contract.ImportResult, error) {
		return contract.ImportResult{Documents: 10, Bytes: 100, Slices: 1}, nil
	})
	serve(env, w, contract.ReplicateUntilInSync, func(contract.DirectionInput) (contract.SyncResult, error) {
		return contract.SyncResult{}, w.unless(w.running > 0)
	})
	serve(env, w, contract.ValidateChunk, func(contract.DirectionInput) (contract.ValidateResult, error) {
		return contract.ValidateResult{Documents: 10, Rounds: 1}, nil
	})
	serve(env, w, contract.AuditChunk, func(contract.DirectionInput) (contract.AuditResult, error) {
		return contract.AuditResult{Documents: 10}, w.unless(w.verifying > 0)
	})
	serve(env, w, contract.RestartSlices, func(contract.ImportInput) (contract.RestartResult, error) {
		w.crowded = w.crowded || w.running > 0
		w.lanesAt = append(w.lanesAt, len(w.lanes))
		return contract.RestartResult{Slices: w.differing}, nil
	})
	serve(env, w, contract.CheckGate, func(in contract.GateInput) (contract.GateReport, error) {
		w.gateAsked = append(w.gateAsked, in)
		if w.calls[contract.CheckGate.Name] <= w.gateNo {
			return contract.GateReport{Checks: []contract.Check{{Number: 1, Name: "lag", Value: "1s", Limit: "200ms", Hint: "wait"}}}, nil
		}
		return contract.GateReport{Go: true, Before: &contract.Traffic{Requests: 77}}, nil
	})
	serve(env, w, contract.WatchSwitch, func(in contract.AftermathInput) (contract.AftermathResult, error) {
		w.watched = append(w.watched, in)
		if w.watchOpen {
			return w.watch, activity.ErrResultPending
		}
		return w.watch, nil
	})
	w.serveSwitch(env)
	drop := func(in contract.DropInput) (contract.None, error) {
		w.dropped[in.Placement.ID] = true
		return contract.None{}, nil
	}
	serve(env, w, contract.DropSource, drop)
	serve(env, w, contract.DropTarget, drop)
	w.serveLanes(env)
	return env
}

// serveLanes lets lanes run until they are cancelled. They are pending and not
// running, so that the environment's clock goes on.
func (w *world) serveLanes(env *testsuite.TestWorkflowEnvironment) {
	env.SetOnActivityCanceledListener(func(info *activity.Info) {
		if info.ActivityType.Name == contract.ReplicateChanges.Name {
			w.mu.Lock()
			w.ended[info.ActivityID] = true
			if w.runs[info.ActivityID] { // one whose failure is on its way may be cancelled too
				delete(w.runs, info.ActivityID)
				w.running--
			}
			w.mu.Unlock()
		}
		if info.ActivityType.Name == contract.VerifyChanges.Name {
			w.mu.Lock()
			w.verifying--
			w.mu.Unlock()
		}
	})
	contract.VerifyChanges.Register(env, func(ctx context.Context, in contract.VerifyInput) (contract.Verification, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls[contract.VerifyChanges.Name]++
		w.beats[contract.VerifyChanges.Name] = activity.GetInfo(ctx).HeartbeatTimeout
		w.verified = append(w.verified, in.DirectionInput)
		if w.failAt == contract.VerifyChanges.Name && (w.failCount == 0 || w.calls[contract.VerifyChanges.Name] <= w.failCount) {
			return contract.Verification{}, failure.New(failure.Mismatch, "validation.mismatch", "a document differs")
		}
		w.verifying++
		w.end(env, contract.AuditChunk.Name, contract.AuditResult{Documents: 10})
		return contract.Verification{}, activity.ErrResultPending
	})
	contract.ReplicateChanges.Register(env, func(ctx context.Context, in contract.DirectionInput) (contract.None, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lanes = append(w.lanes, in)
		w.calls[contract.ReplicateChanges.Name]++
		w.beats[contract.ReplicateChanges.Name] = activity.GetInfo(ctx).HeartbeatTimeout
		if w.failAt == contract.ReplicateChanges.Name && (w.failCount == 0 || w.calls[contract.ReplicateChanges.Name] <= w.failCount) {
			return contract.None{}, failure.New(failure.Mismatch, "lane.divergence", "a delta met no document")
		}
		if w.ended[activity.GetInfo(ctx).ActivityID] { // cancelled before it came to run
			return contract.None{}, activity.ErrResultPending
		}
		w.running++
		w.runs[activity.GetInfo(ctx).ActivityID] = true
		w.maxRunning = max(w.maxRunning, w.running)
		w.end(env, contract.ReplicateUntilInSync.Name, contract.SyncResult{})
		return contract.None{}, activity.ErrResultPending
	})
}

// serveSwitch plays the window as the protocol promises it.
func (w *world) serveSwitch(env *testsuite.TestWorkflowEnvironment) {
	w.halfway = map[string]func(){contract.SwitchRoute.Name: func() { w.fenced = true }}
	serve(env, w, contract.PrepareSwitch, func(contract.DirectionInput) (contract.AttemptRef, error) {
		w.attempts++
		return contract.AttemptRef{Ref: ref, Attempt: chunk.AttemptID(w.attempts)}, nil
	})
	serve(env, w, contract.SwitchRoute, func(in contract.AttemptRef) (contract.SwitchResult, error) {
		w.serving, w.fenced = 3-w.serving, false
		w.published[in.Attempt] = true
		return contract.SwitchResult{Attempt: in.Attempt, Published: true}, nil
	})
	serve(env, w, contract.SettleAttempt, func(in contract.SettleInput) (contract.SwitchResult, error) {
		w.fenced = false
		return contract.SwitchResult{Attempt: in.Attempt, Published: w.published[in.Attempt], Reason: in.Reason}, nil
	})
	serve(env, w, contract.ReconcileSwitch, func(contract.Ref) (contract.ReconcileResult, error) {
		res := contract.ReconcileResult{Serving: source, Spare: target}
		if w.serving == target.ID {
			res.Serving, res.Spare = target, source
		}
		if w.aged {
			res.Serving.State, res.Spare.State = chunk.Live, chunk.Mirror
		}
		for id := range chunk.AttemptID(w.attempts) {
			if w.published[id+1] {
				res.Direction = id + 1
				res.Switches = append(res.Switches, contract.SwitchResult{Attempt: id + 1, Published: true})
			}
		}
		return res, nil
	})
	serve(env, w, contract.ConcludeSwitch, func(contract.AttemptRef) (contract.None, error) {
		return contract.None{}, w.unless(!w.concluding)
	})
}

// start runs the workflow.
func start(env *testsuite.TestWorkflowEnvironment, in contract.MigrateInput) {
	env.ExecuteWorkflow(workflows.MigrateChunk, contract.MigrateRun{MigrateInput: in})
}
