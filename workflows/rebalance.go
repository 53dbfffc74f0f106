package workflows

import (
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/flow"
)

// How an intent looks after its moves.
const (
	defaultAtOnce = 4
	maxMoves      = 5000             // of one intent: its state must fit into one message
	lookOften     = 15 * time.Second // while a move copies
	lookSeldom    = 5 * time.Minute  // while all of them are in burn-in
)

// Rebalance carries out a plan of several moves, so many at once. Each move is a
// workflow of its own that goes on whatever happens to this one.
func Rebalance(ctx workflow.Context, in contract.RebalanceInput) (contract.RebalanceResult, error) {
	r, err := newIntent(ctx, in)
	if err != nil {
		return contract.RebalanceResult{}, err
	}
	if err := r.handlers(ctx); err != nil {
		return r.result(), err
	}
	if err := r.open(ctx); err != nil {
		return r.result(), err
	}
	err = r.run(ctx)
	if workflow.IsContinueAsNewError(err) {
		return r.result(), err
	}
	if err := r.close(ctx); err != nil {
		return r.result(), err
	}
	return r.result(), err
}

// intent is the state of a run.
type intent struct {
	in       contract.RebalanceInput
	state    contract.RebalanceState
	children map[chunk.ID]workflow.Future // of this run only
	seen     map[chunk.ID]bool            // in the metadata
	stopped  bool
}

// newIntent checks the input; a further run goes on where the one before was.
func newIntent(ctx workflow.Context, in contract.RebalanceInput) (*intent, error) {
	r := &intent{in: in, children: map[chunk.ID]workflow.Future{}, seen: map[chunk.ID]bool{}}
	if r.in.AtOnce <= 0 {
		r.in.AtOnce = defaultAtOnce
	}
	if in.Resumed != nil {
		r.state, r.stopped = *in.Resumed, in.Resumed.Stopped != ""
		return r, nil
	}
	bad := func(format string, args ...any) error {
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf(format, args...), "rebalance.bad_input", nil)
	}
	if in.Kind == "" || len(in.Moves) == 0 || len(in.Moves) > maxMoves {
		return nil, bad("an intent needs a kind and 1 to %d moves; this one (%q) has %d", maxMoves, in.Kind, len(in.Moves))
	}
	info := workflow.GetInfo(ctx)
	r.state = contract.RebalanceState{ID: info.WorkflowExecution.ID, Kind: in.Kind, Subject: in.Subject, Run: info.FirstRunID}
	if r.state.Run == "" {
		r.state.Run = info.WorkflowExecution.RunID
	}
	seen := map[chunk.ID]bool{}
	for i, m := range in.Moves {
		if m.Chunk == "" || m.To == "" && m.Reshape == nil || seen[m.Chunk] {
			return nil, bad("moves[%d]: chunk %q to %q: each move needs a chunk and a shard, and a chunk moves once", i, m.Chunk, m.To)
		}
		seen[m.Chunk] = true
		r.state.Moves = append(r.state.Moves, contract.MoveState{PlannedMove: m, State: contract.MoveWaiting})
	}
	return r, nil
}

// open admits the intent: its figures are fresh and it fights no open one.
func (r *intent) open(ctx workflow.Context) error {
	if !r.state.OpenedAt.IsZero() {
		return nil
	}
	r.state.WaitingFor = "its admission"
	in := contract.IntentInput{RebalanceInput: r.in, ID: r.state.ID, Run: r.state.Run}
	opened, err := flow.Call(ctx, named(flow.Quick(), "open the intent"), contract.OpenIntent, in)
	r.state.OpenedAt = opened.At
	return err
}

// run starts moves and follows them until none is left.
func (r *intent) run(ctx workflow.Context) error {
	for {
		r.start(ctx)
		if r.count(contract.MoveRunning)+r.count(contract.MoveServing) == 0 {
			return nil
		}
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() && r.registered() {
			next := r.in
			next.Moves, next.Resumed = nil, &r.state
			return workflow.NewContinueAsNewError(ctx, contract.RebalanceWorkflow, next)
		}
		if err := r.wait(ctx); err != nil {
			return err
		}
		if err := r.look(ctx); err != nil {
			return err
		}
	}
}

// start begins moves while there is room for them.
func (r *intent) start(ctx workflow.Context) {
	for i := range r.state.Moves {
		r.judge()
		m := &r.state.Moves[i]
		if m.State != contract.MoveWaiting {
			continue
		}
		if r.stopped {
			m.State, m.Why = contract.MoveNotBegun, r.state.Stopped
			continue
		}
		if r.count(contract.MoveRunning) >= r.in.AtOnce || !r.ripe(ctx, m.Wave) {
			return
		}
		r.begin(ctx, m)
	}
}

// ripe reports whether the moves of a wave may begin: those of all lower ones have
// ended, or have served for the soak.
func (r *intent) ripe(ctx workflow.Context, wave int) bool {
	for _, m := range r.state.Moves {
		if m.Wave >= wave {
			continue
		}
		switch m.State {
		case contract.MoveWaiting, contract.MoveRunning:
			return false
		case contract.MoveServing:
			if workflow.Now(ctx).Sub(m.Since) < time.Duration(r.in.Soak) {
				return false
			}
		}
	}
	return true
}

// judge stops an intent that is to stop at the first failure: a move that failed, or
// that wants a person (a validation that found a difference, a worse p99).
func (r *intent) judge() {
	if !r.in.StopAtFirst || r.stopped {
		return
	}
	for _, m := range r.state.Moves {
		if m.State == contract.MoveFailed || m.Why != "" && (m.State == contract.MoveRunning || m.State == contract.MoveServing) {
			r.stopped, r.state.Stopped = true, fmt.Sprintf("at the first failure, of %s: %s", m.Chunk, m.Why)
			return
		}
	}
}

// begin starts one move, which outlives the intent. A chunk that is being moved
// already is not joined.
func (r *intent) begin(ctx workflow.Context, m *contract.MoveState) {
	free, _ := workflow.NewDisconnectedContext(ctx) // an intent that is cancelled leaves its moves alone
	child := workflow.WithChildOptions(free, workflow.ChildWorkflowOptions{
		WorkflowID:            contract.MigrateID(m.Chunk),
		TaskQueue:             contract.ControlQueue,
		ParentClosePolicy:     enumspb.PARENT_CLOSE_POLICY_ABANDON,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		StaticSummary:         fmt.Sprintf("%s: %s to %s", r.state.Kind, m.Chunk, m.To),
		StaticDetails:         m.Reason,
		TypedSearchAttributes: temporal.NewSearchAttributes(
			contract.ChunkIDAttribute.ValueSet(string(m.Chunk)), contract.TargetShardAttribute.ValueSet(m.To)),
	})
	in := contract.MigrateInput{
		Chunk: m.Chunk, To: m.To, Reshape: m.Reshape, BurnIn: r.in.BurnIn, Approval: r.in.Approval, Complete: r.in.Complete, AfterSwitch: r.in.AfterSwitch,
		OnDDL:       r.in.OnDDL,
		RequestedBy: r.in.RequestedBy, Reason: r.state.ID + ": " + m.Reason,
	}
	switch r.in.Kind {
	case contract.BinPackIntent:
		in.Kind = contract.BinPackKind
	case contract.UpgradeIntent:
		in.Kind = contract.UpgradeKind
	}
	f := workflow.ExecuteChildWorkflow(child, contract.MigrateChunkWorkflow, in)
	if err := f.GetChildWorkflowExecution().Get(ctx, nil); err != nil {
		m.State, m.Why = contract.MoveFailed, "it was not started: "+flow.Cause(err)
		return
	}
	m.State = contract.MoveRunning
	r.children[m.Chunk] = f
}

// wait ends when a move ends, when somebody stops the intent, or when it is time
// to look again.
func (r *intent) wait(ctx workflow.Context) error {
	every := lookSeldom
	if r.count(contract.MoveRunning) > 0 || r.in.Soak > 0 && r.count(contract.MoveWaiting) > 0 {
		every = lookOften
	}
	r.state.WaitingFor = fmt.Sprintf("%d moves that run and %d in burn-in; %d wait for their turn",
		r.count(contract.MoveRunning), r.count(contract.MoveServing), r.count(contract.MoveWaiting))
	r.show(ctx)
	was := r.stopped
	_, err := workflow.AwaitWithTimeout(ctx, every, func() bool {
		for _, m := range r.state.Moves {
			if f := r.children[m.Chunk]; f != nil && f.IsReady() {
				return true
			}
		}
		return r.stopped != was
	})
	return err
}

// look takes in what became of the moves.
func (r *intent) look(ctx workflow.Context) error {
	in := contract.LookInput{Since: r.state.OpenedAt}
	for i := range r.state.Moves {
		m := &r.state.Moves[i]
		if f := r.children[m.Chunk]; f != nil && f.IsReady() {
			r.ended(ctx, m, f)
		} else if m.State == contract.MoveRunning || m.State == contract.MoveServing {
			in.Chunks = append(in.Chunks, m.Chunk)
		}
	}
	if len(in.Chunks) == 0 {
		return nil
	}
	seen, err := flow.Call(ctx, named(flow.Quick(), "look at the moves"), contract.LookAtMoves, in)
	if err != nil {
		return err
	}
	for _, s := range seen {
		for i := range r.state.Moves {
			if m := &r.state.Moves[i]; m.Chunk == s.Chunk {
				r.saw(ctx, m, s)
			}
		}
	}
	return nil
}

// ended takes in the result of a move.
func (r *intent) ended(ctx workflow.Context, m *contract.MoveState, f workflow.Future) {
	delete(r.children, m.Chunk)
	var res contract.MigrateResult
	switch err := f.Get(ctx, &res); {
	case err != nil:
		m.State, m.Why = contract.MoveFailed, flow.Cause(err)
	case res.Phase == chunk.Done:
		m.State, m.Why = contract.MoveDone, ""
	default:
		m.State, m.Why = contract.MoveFailed, "the move ended "+string(res.Phase)
	}
}

// saw takes in how far a move has come. One that this run has a future of ends by
// that.
func (r *intent) saw(ctx workflow.Context, m *contract.MoveState, s contract.SeenMove) {
	m.Why, r.seen[m.Chunk] = s.Attention, true
	switch s.Phase {
	case chunk.BurnIn, chunk.Completing:
		if m.State != contract.MoveServing {
			m.Since = workflow.Now(ctx)
		}
		m.State = contract.MoveServing
	case chunk.Done, chunk.Aborted:
		if r.children[m.Chunk] != nil {
			return
		}
		m.State = contract.MoveDone
		if s.Phase == chunk.Aborted {
			m.State, m.Why = contract.MoveFailed, "the move ended "+string(s.Phase)
		}
	default:
		m.State = contract.MoveRunning
	}
}

// registered reports whether a further run could find every move in the metadata.
func (r *intent) registered() bool {
	for _, m := range r.state.Moves {
		if r.children[m.Chunk] != nil && !r.seen[m.Chunk] {
			return false
		}
	}
	return true
}

// count counts the moves in a state.
func (r *intent) count(state string) (n int) {
	for _, m := range r.state.Moves {
		if m.State == state {
			n++
		}
	}
	return n
}

// close keeps what became of the intent, also of one that was cancelled.
func (r *intent) close(ctx workflow.Context) error {
	if ctx.Err() != nil {
		ctx, _ = workflow.NewDisconnectedContext(ctx)
	}
	r.state.WaitingFor = ""
	r.show(ctx)
	in := contract.IntentClosed{Run: r.state.Run, Result: r.result()}
	_, err := flow.Call(ctx, named(flow.Quick(), "close the intent"), contract.CloseIntent, in)
	return err
}

// result counts what became of the moves.
func (r *intent) result() contract.RebalanceResult {
	return contract.RebalanceResult{
		Done: r.count(contract.MoveDone), Failed: r.count(contract.MoveFailed),
		NotBegun: r.count(contract.MoveNotBegun) + r.count(contract.MoveWaiting), Stopped: r.state.Stopped, Moves: r.state.Moves,
	}
}

// handlers answer people.
func (r *intent) handlers(ctx workflow.Context) error {
	err := workflow.SetQueryHandlerWithOptions(ctx, contract.StatusQuery, func() (contract.RebalanceState, error) { return r.state, nil },
		workflow.QueryHandlerOptions{Description: "how far each move has come, and what is waited for"})
	if err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, contract.StopUpdate,
		func(_ workflow.Context, in contract.UpdateInput) (contract.RebalanceState, error) {
			if !r.stopped {
				r.stopped, r.state.Stopped = true, strings.TrimSpace("by "+in.By+": "+in.Reason)
			}
			return r.state, nil
		}, workflow.UpdateHandlerOptions{Description: "starts no further move; those that run go on"})
}

// show renders the state for Temporal's UI.
func (r *intent) show(ctx workflow.Context) {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s %s\n\n%s\n\n| chunk | to | state | why |\n| --- | --- | --- | --- |\n", r.state.Kind, r.state.Subject, r.state.WaitingFor)
	for i, m := range r.state.Moves {
		if i == 100 {
			fmt.Fprintf(&b, "\nand %d more", len(r.state.Moves)-i)
			break
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", m.Chunk, m.To, m.State, m.Why)
	}
	workflow.SetCurrentDetails(ctx, b.String())
}
