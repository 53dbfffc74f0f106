package activities

import (
	"context"
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

// Audit audits one direction. Of a split or merge it lists the definitions: its
// counts belong to several sources, which no marker separates at once.
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
	for _, l := range all {
		e, err := a.ends(ctx, l.DirectionInput)
		if err != nil {
			return r, err
		}
		source, _, err := e.from.Reader(ctx, in.PrimaryReads)
		if err != nil {
			return r, err
		}
		target, err := e.to.Client(chunk.ReaderUser)
		if err != nil {
			return r, err
		}
		auditor.Sources = append(auditor.Sources, &validation.Asked{Database: source.Database(l.From.Database), Preference: readpref.SecondaryPreferred()})
		auditor.Targets = append(auditor.Targets, &validation.Asked{Database: target.Database(l.To.Database)})
		if len(all) == 1 {
			if a.Proxy != nil {
				keys := make(map[string]string, len(catalog))
				for _, c := range catalog {
					keys[c.Name] = c.ShardKey
				}
				auditor.Canaries = &validation.Proxied{
					Proxy: a.Proxy.Database(databaseOf(in.Chunk)), Source: source.Database(l.From.Database), Target: target.Database(l.To.Database), ShardKeys: keys,
				}
			}
			auditor.Markers, auditor.Log, auditor.Database = ownMarks{a, e, l.DirectionInput}, logPort{a, l.DirectionInput}, l.From.Database
		}
	}
	return auditor.Run(ctx)
}
