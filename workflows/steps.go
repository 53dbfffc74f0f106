package workflows

import (
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/flow"
)

// register makes the rows, then the target's databases and indexes.
func (m *migration) register(ctx workflow.Context) error {
	in := contract.RegisterInput{MigrateInput: m.in, WorkflowID: workflow.GetInfo(ctx).WorkflowExecution.ID}
	o := flow.Named(flow.Quick(), "register", "record the move and prepare "+m.in.To)
	plan, err := flow.Call(ctx, o, contract.RegisterMigration, in)
	if err != nil {
		return err
	}
	m.plan = plan
	m.serving, m.spare = plan.Source, plan.Target
	m.status.Ref, m.status.Source, m.status.Target, m.status.Serving = plan.Ref, plan.Source, plan.Target, plan.Source
	m.status.Documents, m.status.Bytes = plan.Documents, plan.Bytes
	m.status.AllSides = plan.AllSides
	if err := m.describe(ctx); err != nil {
		return err
	}
	return m.pickUp(ctx)
}

// pickUp finds out where a move goes on whose earlier run was ended from outside,
// and who serves. What was not published is caught up with and compared anew.
func (m *migration) pickUp(ctx workflow.Context) error {
	if m.plan.Phase == "" {
		return nil
	}
	m.attempted = true
	if err := m.reconcile(ctx); err != nil {
		return err
	}
	m.goesOnAt = m.plan.Phase
	if m.plan.Phase == chunk.Aborting {
		return errAborted
	}
	unpublished := m.serving.ID == m.plan.Source.ID
	// The earlier run may have left a slice half there. Behind a switch no slice is touched: what differs then is newer.
	m.restarting = m.in.OnMismatch == contract.RestartOnMismatch && unpublished && m.direction == 0
	if unpublished && (m.plan.Phase == chunk.Validating || m.plan.Phase == chunk.Switching) {
		m.goesOnAt = chunk.Replicating
	}
	return nil
}

// passed reports whether an earlier run has left a phase behind.
func (m *migration) passed(p chunk.Phase) bool {
	return m.goesOnAt != "" && slices.Index(chunk.Phases(), p) < slices.Index(chunk.Phases(), m.goesOnAt)
}

// importChunk copies every slice through S3 onto the target.
func (m *migration) importChunk(ctx workflow.Context) error {
	if err := m.admit(ctx); err != nil {
		return err
	}
	o := flow.Named(m.bulk(), "import", "copy "+string(m.in.Chunk)+" to "+m.plan.Target.Shard)
	res, err := flow.Call(ctx, o, contract.ImportChunk,
		contract.ImportInput{Ref: m.plan.Ref, Sort: m.in.Sort, PrimaryReads: m.in.PrimaryReads})
	if err != nil {
		return err
	}
	m.status.Import = &res
	return nil
}

// admit waits until the target has room for what the move would bring. There is no
// cap on moves: one that finds no room queues, and says why.
func (m *migration) admit(ctx workflow.Context) error {
	if workflow.GetVersion(ctx, "admission", workflow.DefaultVersion, 1) == workflow.DefaultVersion { // before 0.1
		return nil
	}
	patience := time.Duration(0)
	for {
		if err := m.makeRoom(ctx); err != nil {
			return err
		}
		in := contract.AdmitInput{Ref: m.plan.Ref, Always: m.in.NoQueue, Patience: contract.Duration(patience)}
		res, err := flow.Call(ctx, named(flow.Wait(), "room on "+m.plan.Target.Shard), contract.AdmitMove, in)
		if err != nil {
			return err
		}
		if res.Admitted {
			m.status.WaitingFor = ""
			return nil
		}
		m.status.WaitingFor = "room on its target: " + res.Reason()
		if res.Held != "" {
			m.status.WaitingFor = "the end of a pause: " + res.Held
		}
		m.show(ctx)
		patience = min(max(5*time.Second, 2*patience), mostPatience)
	}
}

// replicate starts the lanes and waits until the target is in sync.
func (m *migration) replicate(ctx workflow.Context) error {
	m.startLanes(ctx)
	o := flow.Named(m.bulk(), "in-sync", "wait until "+m.plan.Target.Shard+" is in sync")
	_, err := flow.Call(ctx, o, contract.ReplicateUntilInSync, m.lanesInput())
	return err
}

// validate compares both sides; the lanes go on meanwhile. From then on what
// changes is verified until the switch.
func (m *migration) validate(ctx workflow.Context) error {
	m.startLanes(ctx)
	m.verifier.stop(ctx)
	m.verifier = nil
	if err := m.compareAll(ctx); err != nil {
		return err
	}
	m.startVerifier(ctx)
	return nil
}

// compareAll validates everything in the present direction.
func (m *migration) compareAll(ctx workflow.Context) error {
	o := flow.Named(m.bulk(), "validate", "compare both placements")
	res, err := flow.Call(ctx, o, contract.ValidateChunk, m.lanesInput())
	if err != nil {
		return err
	}
	m.status.Validation = &res
	return nil
}

// complete drops the placement that does not serve. There is no way back.
func (m *migration) complete(ctx workflow.Context) error {
	m.stopBeside(ctx)
	o := flow.Named(m.bulk(), "drop", "drop the old placement on "+m.spare.Shard)
	_, err := flow.Call(ctx, o, contract.DropSource,
		contract.DropInput{Ref: m.plan.Ref, Placement: m.spare, Direction: m.direction})
	return err
}
