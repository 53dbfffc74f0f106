package activities

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/validation"
)

// auditHashUpTo is how many documents a placement may have for the servers' own
// hashes, which may keep writers waiting.
const auditHashUpTo = 20_000

// AuditChunk asks both sides other questions than the validation: it lists
// definitions anew and compares counts and sums through every index.
//
// If interrupted: run again; it changes nothing.
func (a *Activities) AuditChunk(ctx context.Context, in contract.DirectionInput) (contract.AuditResult, error) {
	var out contract.AuditResult
	err := beating(ctx, func() any { return in.Ref }, func(ctx context.Context) error {
		r, err := a.Audit(ctx, in)
		if err != nil {
			return err
		}
		out = contract.AuditResult(r)
		if len(r.Differences) > 0 {
			return failure.New(failure.Mismatch, "validation.audit", "the audit finds %d differences: %s", len(r.Differences), strings.Join(r.Differences, "; ")).
				WithHint("the validation did not find them: look before you resume; drover validate compares every document")
		}
		return nil
	})
	return out, err
}

// Audit audits one direction. The targets of a split or merge are counted together, and so
// are its sources.
func (a *Activities) Audit(ctx context.Context, in contract.DirectionInput) (r validation.AuditResult, err error) {
	all, err := a.legs(ctx, in)
	if err != nil {
		return r, err
	}
	catalog, err := a.Store.Collections(ctx, databaseOf(in.Chunk))
	if err != nil {
		return r, err
	}
	auditor := &validation.Auditor{Expected: names(catalog), HashUpTo: auditHashUpTo, Settings: validation.Settings{Few: maxBusy}}
	var source, target *validation.Asked
	sources := placements(all, func(l leg) chunk.Placement { return l.From })
	for _, p := range sources {
		set, err := a.Sides.Set(ctx, p.Shard)
		if err != nil {
			return r, err
		}
		reader, _, err := set.Reader(ctx, in.PrimaryReads)
		if err != nil {
			return r, err
		}
		source = &validation.Asked{Database: reader.Database(p.Database), Preference: readpref.SecondaryPreferred()}
		auditor.Sources = append(auditor.Sources, source)
	}
	for _, p := range placements(all, func(l leg) chunk.Placement { return l.To }) {
		set, err := a.Sides.Set(ctx, p.Shard)
		if err != nil {
			return r, err
		}
		reader, err := set.Client(chunk.ReaderUser)
		if err != nil {
			return r, err
		}
		target = &validation.Asked{Database: reader.Database(p.Database)}
		auditor.Targets = append(auditor.Targets, target)
	}
	for _, l := range all {
		e, err := a.ends(ctx, l.DirectionInput)
		if err != nil {
			return r, err
		}
		auditor.Feeds = append(auditor.Feeds, validation.Feed{
			Markers: ownMarks{a, e, l.DirectionInput}, Log: logPort{a, l.DirectionInput}, Database: l.From.Database,
			Source: slices.IndexFunc(sources, func(p chunk.Placement) bool { return p.ID == l.From.ID }),
		})
	}
	if len(all) == 1 && a.Proxy != nil {
		keys := make(map[string]string, len(catalog))
		for _, c := range catalog {
			keys[c.Name] = c.ShardKey
		}
		auditor.Canaries = &validation.Proxied{
			Proxy: a.Proxy.Database(databaseOf(in.Chunk)), Source: source.Database, Target: target.Database, ShardKeys: keys,
		}
	}
	return auditor.Run(ctx)
}
