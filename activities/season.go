package activities

import (
	"context"
	"time"

	"drover/contract"
	"drover/fleet"
)

// PlanSeason plans what a season needs as the fleet is now, or what leads back from
// it, over the desired state that was applied last. What is not due yet is counted
// and not listed.
func (b *Balancer) PlanSeason(ctx context.Context, in contract.SeasonLook) (out contract.SeasonPlan, err error) {
	settings := in.Settings
	settings.CoolDown = -1 // a date is not held up by it
	err = b.view(ctx, settings, func(_ context.Context, v fleet.View) error {
		if in.Back {
			out.Plan, err = v.Shrink(in.Spare, in.Fill)
			out.Due = true
		} else {
			factor := in.Factor
			if !v.Fleet.At.Before(in.At) { // the season's load is there already
				factor = 1
			}
			var s fleet.Season
			s, err = v.Season(in.Spare, factor, in.Fill)
			out.Plan = s.Expand
		}
		if err != nil {
			return err
		}
		out.Left, out.Kept = v.Held(in.Spare), v.Kept(in.Spare)
		expected, rate := v.Expect(out.Plan.Moves, in.MoveRate, in.AtOnce)
		out.Plan.Figures = append(out.Plan.Figures, rate)
		out.Count, out.Expected = len(out.Plan.Moves), contract.Duration(expected)
		for _, m := range out.Plan.Moves {
			out.Bytes += m.Bytes
		}
		if in.Back {
			return nil
		}
		lead := fleet.Lead(expected)
		if in.Lead > 0 {
			lead = time.Duration(in.Lead)
		}
		out.BeginsAt = in.At.Add(-lead)
		if out.Due = !v.Fleet.At.Before(out.BeginsAt); !out.Due {
			out.Plan.Moves = nil
		}
		return nil
	})
	return out, err
}
