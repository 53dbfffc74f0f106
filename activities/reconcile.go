package activities

import (
	"context"
	"errors"
	"slices"

	"drover/contract"
	"drover/fleet"
	"drover/internal/failure"
)

// Reconciler serves the activities that bring the fleet to its file, but for moves.
type Reconciler struct {
	*Balancer
	// Present reads what the file is compared with.
	Present func(ctx context.Context) (fleet.Present, error)
	// Make makes one change; it can be repeated.
	Make func(ctx context.Context, f *fleet.File, c fleet.Change) error
}

// Register serves the activities that the queues name.
func (r *Reconciler) Register(to contract.Registry, queue string) {
	switch queue {
	case contract.ControlQueue:
		contract.LookAtDesired.Register(to, r.LookAtDesired)
	case contract.BulkQueue:
		contract.MakeMissing.Register(to, r.MakeMissing)
		contract.PlanReconcile.Register(to, r.PlanReconcile)
	}
}

// LookAtDesired compares the fleet with the file that was applied last. What needs a
// secret is a person's: only whoever applies the file has it.
func (r *Reconciler) LookAtDesired(ctx context.Context, _ contract.None) (contract.ReconcileLook, error) {
	look, _, _, err := r.compare(ctx)
	return look, err
}

// compare gives what is missing, for people and as it is made.
func (r *Reconciler) compare(ctx context.Context) (look contract.ReconcileLook, f *fleet.File, missing []fleet.Change, err error) {
	if f, look.Version, err = Desired(ctx, r.Ledger); err != nil || f == nil {
		return look, nil, nil, err
	}
	now, err := r.Present(ctx)
	if err != nil {
		return look, nil, nil, err
	}
	d, err := f.Diff(now)
	if err != nil { // the fleet has changed since the file was applied: the next one that is applied may fit
		look.Refused = err.Error()
		return look, f, nil, nil
	}
	people := map[string]bool{} // users that a person has to add first
	for _, c := range d.Changes {
		if c.Kind == fleet.AddShard || c.Kind == fleet.AddUser {
			people[c.Subject] = true
		}
		if people[c.Subject] && slices.Contains([]string{fleet.AddShard, fleet.AddUser, fleet.GrantUser}, c.Kind) {
			look.Refusals = append(look.Refusals, contract.Refused{
				Subject: c.Subject, Reason: c.Kind + " needs a secret that only whoever applies the file has", Offer: "drover apply -f FILE --yes",
			})
			continue
		}
		missing = append(missing, c)
		look.Missing = append(look.Missing, contract.MissingChange{Kind: c.Kind, Subject: c.Subject, What: c.What})
	}
	return look, f, missing, nil
}

// MakeMissing makes what is missing, one change after the other, and gives what is left.
// A file that was applied meanwhile is another run's.
//
// If interrupted: run again; what was made is not missing any more.
func (r *Reconciler) MakeMissing(ctx context.Context, in contract.ReconcileLook) (left contract.ReconcileLook, err error) {
	making := ""
	err = beating(ctx, func() any { return making }, func(ctx context.Context) error {
		look, f, missing, err := r.compare(ctx)
		if err != nil {
			return err
		}
		if look.Version != in.Version {
			return failure.New(failure.Invalid, "fleet.file_changed", "version %d of the fleet file was applied meanwhile, this is about version %d", look.Version, in.Version)
		}
		for _, c := range missing {
			making = c.Kind + " " + c.Subject
			if err := r.Make(ctx, f, c); err != nil {
				if _, typed := errors.AsType[*failure.Error](err); typed {
					return err
				}
				return failure.New(failure.Transient, "fleet.not_made", "%s: %w", making, err)
			}
		}
		left, _, _, err = r.compare(ctx)
		return err
	})
	return left, err
}

// PlanReconcile plans what brings every chunk to where the placement rules want it.
func (r *Reconciler) PlanReconcile(ctx context.Context, in contract.ReconcileInput) (plan contract.FleetPlan, err error) {
	s := in.Settings
	s.CoolDown = -1 // a rule is not held up by it
	err = r.view(ctx, s, func(_ context.Context, v fleet.View) error {
		plan = v.Reconcile()
		return nil
	})
	return plan, err
}
