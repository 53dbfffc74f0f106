package activities

import (
	"context"

	"drover/chunk"
	"drover/contract"
	"drover/gate"
)

// PlanSwitch tells what a switch would meet and do now. It only reads.
func (a *Activities) PlanSwitch(ctx context.Context, in contract.GateInput) (contract.SwitchPlan, error) {
	in.ReadOnly = true
	report, err := a.measureAll(ctx, in)
	if err != nil {
		return contract.SwitchPlan{}, err
	}
	facts, err := a.facts(ctx, in.DirectionInput)
	if err != nil {
		return contract.SwitchPlan{}, err
	}
	return contract.SwitchPlan{Gate: report, Steps: gate.Plan(facts, a.Settings.Gate)}, nil
}

// served names the chunk whose route a switch would change. Behind the publish of a
// split or merge the chunk that it began with has none: the new ones serve.
func served(in contract.DirectionInput) chunk.ID {
	if in.From.Chunk == "" {
		return in.Chunk
	}
	return in.From.Chunk
}

// facts reads what a switch would find.
func (a *Activities) facts(ctx context.Context, in contract.DirectionInput) (f gate.Facts, err error) {
	all, err := a.legs(ctx, in)
	if err != nil {
		return f, err
	}
	f = gate.Facts{Direction: in.Direction, Lead: in.Migration, Grace: a.Switcher.Config.ProxyGrace}
	for _, l := range all {
		f.Legs = append(f.Legs, gate.Leg{Migration: l.Migration, From: l.From, To: l.To})
		busy, err := a.busy(ctx, l.Migration)
		if err != nil {
			return f, err
		}
		f.Busy += busy
	}
	for _, p := range placements(all, func(l leg) chunk.Placement { return l.From }) {
		source, err := a.sourceFacts(ctx, p)
		if err != nil {
			return f, err
		}
		f.Sources = append(f.Sources, source)
	}
	last, err := a.Store.LatestAttempt(ctx, in.Chunk)
	if err != nil {
		return f, err
	}
	route, err := a.Store.Route(ctx, served(in))
	if err != nil {
		return f, err
	}
	db, err := a.Store.Database(ctx, databaseOf(in.Chunk))
	if err != nil {
		return f, err
	}
	proxies, err := a.Store.LiveProxies(ctx)
	if err != nil {
		return f, err
	}
	f.Last, f.Token, f.Catalog = last.ID, route.Token, db.CatalogVersion
	for _, p := range proxies {
		f.Proxies = append(f.Proxies, p.ID)
	}
	return f, nil
}

// sourceFacts is what a switch would find where a placement is that it leaves.
func (a *Activities) sourceFacts(ctx context.Context, p chunk.Placement) (gate.Source, error) {
	s := gate.Source{Placement: p}
	set, err := a.Sides.Set(ctx, p.Shard)
	if err != nil {
		return s, err
	}
	st, err := set.Status(ctx)
	if err != nil {
		return s, err
	}
	s.Can, s.Primary, s.Term = set.Shard().Capabilities, st.Host, st.Term
	for _, m := range st.Members {
		s.Members = append(s.Members, m.Host)
	}
	return s, nil
}

// busy counts the documents that a leg's validation left for the fence.
func (a *Activities) busy(ctx context.Context, id chunk.MigrationID) (int, error) {
	left, err := a.getBusy(ctx, id)
	return len(left), err
}
