package workflows

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
)

// How a season looks after itself.
const (
	seasonLook  = 24 * time.Hour   // while it is ahead: bytes and rates change
	seasonAgain = 15 * time.Minute // after something kept it from going on
)

// PrepareSeason moves chunks on to spare shards before a time at which the fleet
// serves more, as early as the measured rates of moves ask for, and off them
// afterwards. Every plan that it starts is made of the fleet as it is then.
func PrepareSeason(ctx workflow.Context, in contract.SeasonInput) (contract.SeasonState, error) {
	s, err := newSeason(ctx, in)
	if err != nil {
		return contract.SeasonState{}, err
	}
	if err := s.handlers(ctx); err != nil {
		return s.state, err
	}
	if err := s.open(ctx); err != nil {
		return s.state, err
	}
	err = s.run(ctx)
	if workflow.IsContinueAsNewError(err) {
		return s.state, err
	}
	closing := s.release(ctx)
	return s.state, cmp.Or(err, closing)
}

// season is the state of a run.
type season struct {
	in      contract.SeasonInput
	state   contract.SeasonState
	stopped bool
}

// newSeason checks the input; a further run goes on where the one before was.
func newSeason(ctx workflow.Context, in contract.SeasonInput) (*season, error) {
	s := &season{in: in}
	if in.Resumed != nil {
		s.state, s.stopped = *in.Resumed, in.Resumed.Stopped != ""
		return s, nil
	}
	if in.Name == "" || !in.At.Before(in.Until) || !workflow.Now(ctx).Before(in.Until) || in.Factor <= 1 || len(in.Spare) == 0 {
		return nil, temporal.NewNonRetryableApplicationError(fmt.Sprintf(
			"a season needs a name, a factor above 1, spare shards, and an end in the future that lies behind its beginning; this one (%q) has factor %g, %d spare shards, and goes from %s to %s",
			in.Name, in.Factor, len(in.Spare), in.At.Format(time.RFC3339), in.Until.Format(time.RFC3339)), "capacity.bad_input", nil)
	}
	info := workflow.GetInfo(ctx)
	s.state = contract.SeasonState{ID: info.WorkflowExecution.ID, Run: info.FirstRunID, Stage: contract.SeasonAhead}
	if s.state.Run == "" {
		s.state.Run = info.WorkflowExecution.RunID
	}
	return s, nil
}

// open admits the season: it holds its spare shards, and its figures are fresh.
func (s *season) open(ctx workflow.Context) error {
	if !s.state.OpenedAt.IsZero() {
		return nil
	}
	s.state.WaitingFor = "its admission"
	in := contract.IntentInput{RebalanceInput: contract.RebalanceInput{
		Kind: contract.SeasonIntent, Subject: s.in.Name, Moves: []contract.PlannedMove{}, FiguresAt: s.in.FiguresAt, RequestedBy: s.in.RequestedBy, Reason: s.in.Reason,
	}, ID: s.state.ID, Run: s.state.Run, Held: s.in.Spare}
	opened, err := flow.Call(ctx, named(flow.Quick(), "hold the spare shards"), contract.OpenIntent, in)
	s.state.OpenedAt = opened.At
	return err
}

// run goes from stage to stage.
func (s *season) run(ctx workflow.Context) error {
	for !s.stopped {
		var err error
		switch s.state.Stage {
		case contract.SeasonAhead, contract.SeasonGrows:
			err = s.grow(ctx)
		case contract.SeasonServes:
			s.say(ctx, "the end of the season at "+s.in.Until.UTC().Format(time.RFC3339))
			err = s.rest(ctx, s.in.Until.Sub(workflow.Now(ctx)))
		case contract.SeasonWanes:
			err = s.wane(ctx)
		default:
			return nil
		}
		if err == nil && !workflow.Now(ctx).Before(s.in.Until) && s.state.Stage != contract.SeasonOver && s.state.Stage != contract.SeasonWanes {
			s.state.Stage, s.state.Held = contract.SeasonWanes, ""
			err = s.release(ctx) // the shrinking empties what it held
		}
		if err != nil {
			return err
		}
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			next := s.in
			next.Resumed = &s.state
			return workflow.NewContinueAsNewError(ctx, contract.SeasonWorkflow, next)
		}
	}
	return nil
}

// look plans anew; not ok: it could not, and it is time for another try.
func (s *season) look(ctx workflow.Context, back bool) (p contract.SeasonPlan, ok bool, err error) {
	s.say(ctx, "a look at the fleet")
	o := flow.Named(flow.Bulk(), "plan", "read every shard and plan")
	p, err = flow.Call(ctx, o, contract.PlanSeason, contract.SeasonLook{SeasonInput: s.in, Back: back})
	if temporal.IsApplicationError(err) {
		return p, false, s.hold(ctx, flow.Cause(err))
	}
	s.state.LookedAt, s.state.BeginsAt = workflow.Now(ctx), p.BeginsAt
	s.state.Planned, s.state.Bytes, s.state.Expected = p.Count, p.Bytes, p.Expected
	return p, err == nil, err
}

// grow waits until the expansion is due, and carries it out. It plans again after
// each: what failed is tried again, and the season serves when nothing has to move.
func (s *season) grow(ctx workflow.Context) error {
	p, ok, err := s.look(ctx, false)
	if !ok || s.stopped {
		return err
	}
	switch wait := p.BeginsAt.Sub(workflow.Now(ctx)); {
	case !p.Due:
		s.state.Held = ""
		s.say(ctx, fmt.Sprintf("%s: then %d moves begin", p.BeginsAt.UTC().Format(time.RFC3339), p.Count))
		return s.rest(ctx, min(max(wait, time.Second), seasonLook))
	case len(p.Plan.Moves) > 0:
		s.state.Stage = contract.SeasonGrows
		return s.carryOut(ctx, contract.ExpandIntent, &s.state.Expanded, p)
	case len(p.Plan.Refusals) > 0:
		return s.hold(ctx, p.Plan.Refusals[0].Subject+": "+p.Plan.Refusals[0].Reason)
	default:
		s.state.Stage, s.state.Held = contract.SeasonServes, ""
		return nil
	}
}

// wane empties the spare shards again. What people or rules have pinned there stays, and is
// listed.
func (s *season) wane(ctx workflow.Context) error {
	p, ok, err := s.look(ctx, true)
	switch {
	case !ok || s.stopped:
		return err
	case len(p.Plan.Moves) > 0:
		return s.carryOut(ctx, contract.ShrinkIntent, &s.state.Shrunk, p)
	case p.Left > 0 && len(p.Kept) == p.Left: // nothing but pins, of which no plan moves anything
		s.state.Stage, s.state.Held, s.state.Kept = contract.SeasonOver, "", p.Kept
		return nil
	case p.Left > 0:
		why := fmt.Sprintf("%d chunks are on spare shards", p.Left)
		if len(p.Plan.Refusals) > 0 {
			why = p.Plan.Refusals[0].Subject + ": " + p.Plan.Refusals[0].Reason
		}
		return s.hold(ctx, why)
	default:
		s.state.Stage, s.state.Held = contract.SeasonOver, ""
		return nil
	}
}

// carryOut starts a plan as an intent and waits for its end, the expansion at most
// until the end of the season.
func (s *season) carryOut(ctx workflow.Context, kind string, id *string, p contract.SeasonPlan) error {
	child, started, held := startIntent(ctx, contract.RebalanceInput{
		Kind: kind, Subject: s.in.Name, Moves: p.Plan.Moves, Emptied: p.Plan.Emptied, FiguresAt: p.Plan.FiguresAt, AtOnce: s.in.AtOnce, BurnIn: s.in.BurnIn,
		Approval: s.in.Approval, Complete: s.in.Complete, RequestedBy: s.in.RequestedBy, Reason: strings.TrimSuffix(s.state.ID+": "+s.in.Reason, ": "),
	}, kind+" for the season "+s.in.Name)
	if started == "" {
		return s.hold(ctx, held)
	}
	*id, s.state.Held = started, ""
	s.say(ctx, started)
	done := func() bool { return child.IsReady() || s.stopped }
	if kind == contract.ExpandIntent {
		if _, err := workflow.AwaitWithTimeout(ctx, s.in.Until.Sub(workflow.Now(ctx)), done); err != nil || !child.IsReady() {
			return err
		}
	} else if err := workflow.Await(ctx, done); err != nil || !child.IsReady() {
		return err
	}
	var res contract.RebalanceResult
	if err := child.Get(ctx, &res); err != nil {
		return s.hold(ctx, started+": "+flow.Cause(err))
	}
	for _, m := range res.Moves {
		if m.State == contract.MoveFailed {
			return s.hold(ctx, fmt.Sprintf("%d of its moves failed, the first of %s: %s", res.Failed, m.Chunk, m.Why))
		}
	}
	return nil
}

// hold notes what keeps the season from going on, and waits until it tries again.
func (s *season) hold(ctx workflow.Context, why string) error {
	s.state.Held = why
	s.say(ctx, "another try")
	return s.rest(ctx, seasonAgain)
}

// rest waits, no longer than to the end of the season or to a stop.
func (s *season) rest(ctx workflow.Context, d time.Duration) error {
	if left := s.in.Until.Sub(workflow.Now(ctx)); left > 0 {
		d = min(d, left)
	}
	_, err := workflow.AwaitWithTimeout(ctx, d, func() bool { return s.stopped })
	return err
}

// release lets go of the spare shards; asking again is no error.
func (s *season) release(ctx workflow.Context) error {
	if ctx.Err() != nil {
		ctx, _ = workflow.NewDisconnectedContext(ctx)
	}
	s.say(ctx, "")
	in := contract.IntentClosed{Run: s.state.Run, Result: contract.RebalanceResult{Stopped: s.state.Stopped}}
	_, err := flow.Call(ctx, named(flow.Quick(), "let go of the spare shards"), contract.CloseIntent, in)
	return err
}

// handlers answer people.
func (s *season) handlers(ctx workflow.Context) error {
	err := workflow.SetQueryHandlerWithOptions(ctx, contract.StatusQuery, func() (contract.SeasonState, error) { return s.state, nil },
		workflow.QueryHandlerOptions{Description: "in which stage the season is, and what is waited for"})
	if err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, contract.StopUpdate,
		func(_ workflow.Context, in contract.UpdateInput) (contract.SeasonState, error) {
			if !s.stopped {
				s.stopped, s.state.Stopped = true, strings.TrimSpace("by "+in.By+": "+in.Reason)
			}
			return s.state, nil
		}, workflow.UpdateHandlerOptions{Description: "ends the season as it stands: nothing more is started; intents that run go on"})
}

// say renders the state for Temporal's UI.
func (s *season) say(ctx workflow.Context, waiting string) {
	s.state.WaitingFor = waiting
	text := fmt.Sprintf("### %g times the load from %s to %s\n\n%s; waiting for: %s", s.in.Factor, s.in.At.UTC().Format(time.RFC3339),
		s.in.Until.UTC().Format(time.RFC3339), s.state.Stage, waiting)
	if s.state.Held != "" {
		text += "\n\nheld up by: " + s.state.Held
	}
	workflow.SetCurrentDetails(ctx, text)
}
