package activities

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

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
	return contract.SwitchPlan{Gate: report, Steps: gate.Plan(facts, a.Settings.Gate)}, err
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
	set, err := a.Sides.Set(ctx, in.From.Shard)
	if err != nil {
		return f, err
	}
	st, err := set.Status(ctx)
	if err != nil {
		return f, err
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
	m, err := a.Store.Migration(ctx, in.Migration)
	if err != nil {
		return f, err
	}
	var busy struct {
		Documents []bson.Raw `bson:"busy"`
	}
	if len(m.Busy) > 0 {
		if err := bson.Unmarshal(m.Busy, &busy); err != nil {
			return f, fmt.Errorf("read busy documents of migration %d: %w", in.Migration, err)
		}
	}
	proxies, err := a.Store.LiveProxies(ctx)
	if err != nil {
		return f, err
	}
	f = gate.Facts{
		Migration: in.Migration, Direction: in.Direction, Last: last.ID, From: in.From, To: in.To, FromCan: set.Shard().Capabilities,
		FromPrimary: st.Host, FromTerm: st.Term, Grace: a.Switcher.Config.ProxyGrace,
		Busy: len(busy.Documents), Catalog: db.CatalogVersion, Token: route.Token,
	}
	for _, m := range st.Members {
		f.FromMembers = append(f.FromMembers, m.Host)
	}
	for _, p := range proxies {
		f.Proxies = append(f.Proxies, p.ID)
	}
	return f, nil
}
