package activities

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bulkimport"
	"drover/chunk"
	"drover/contract"
	"drover/metadata"
	"drover/replication"
)

// leg is one pair of placements of a migration in one direction. A move has one;
// a split or merge has one for each source and target with keys in common, and
// each is imported, followed and validated as a migration of its own.
type leg struct {
	contract.DirectionInput                     // of this leg
	lead                    chunk.MigrationID   // names the markers of the switch
	group                   []chunk.MigrationID // every leg; empty for a move
	fromRange               chunk.Range
	toRange                 chunk.Range

	applied bson.Timestamp // what is read anew must not be older: lanes have applied all up to it

	copies *chunk.Keep // what To is to have of From's; nil: all of it
	own    *chunk.Keep // what is From's in To; nil: all of it
	sole   *chunk.Keep // To without what other sources fill it with; nil: all of it
}

// legs gives every leg of the migration that in leads, in the direction of in.
func (a *Activities) legs(ctx context.Context, in contract.DirectionInput) ([]leg, error) {
	rows, err := a.Store.Legs(ctx, in.Migration)
	if err != nil {
		return nil, err
	}
	if len(rows) <= 1 {
		return []leg{{DirectionInput: in}}, nil
	}
	db, err := a.Store.Database(ctx, rows[0].Chunk.Database)
	if err != nil {
		return nil, err
	}
	forward := slices.ContainsFunc(rows, func(m metadata.Migration) bool { return m.Source.ID == in.From.ID })
	var all []leg
	var group []chunk.MigrationID
	for _, m := range rows {
		group = append(group, m.ID)
		l := leg{
			DirectionInput: contract.DirectionInput{
				Ref: contract.Ref{Migration: m.ID, Chunk: m.Chunk.ID}, Direction: in.Direction, From: m.Source, To: m.Target,
				PrimaryReads: in.PrimaryReads, OnDDL: in.OnDDL,
			},
			lead: m.Lead, fromRange: m.Chunk.Range, toRange: m.TargetChunk.Range,
		}
		if !forward {
			l.From, l.To, l.fromRange, l.toRange = l.To, l.From, l.toRange, l.fromRange
		}
		all = append(all, l)
	}
	return divide(db, group, all), nil
}

// divide says which documents each leg is about.
func divide(db chunk.Database, group []chunk.MigrationID, all []leg) []leg {
	keys := make(map[string]string, len(db.Collections))
	for _, c := range db.Collections {
		keys[c.Name] = c.ShardKey
	}
	keep := func(not bool, ranges ...chunk.Range) *chunk.Keep {
		return &chunk.Keep{Space: db.KeySpace, ShardKeys: keys, Ranges: ranges, Not: not}
	}
	for i := range all {
		l := &all[i]
		l.group = group
		if !l.toRange.Covers(l.fromRange) {
			l.copies = keep(false, l.toRange)
		}
		var others []chunk.Range
		for _, o := range all {
			if o.To.ID == l.To.ID && o.From.ID != l.From.ID {
				others = append(others, o.fromRange)
			}
		}
		if len(others) > 0 {
			l.own, l.sole = keep(false, l.fromRange), keep(true, others...)
		}
	}
	return all
}

// settled is when the windows of every leg of a source are over, by the source's
// clock: later changes are applied strictly by all of them.
func (a *Activities) settled(ctx context.Context, l leg) (bson.Timestamp, error) {
	var latest bson.Timestamp
	if l.copies == nil || l.Direction != 0 {
		return latest, nil
	}
	for _, id := range l.group {
		m, err := a.Store.Migration(ctx, id)
		if err != nil {
			return latest, err
		}
		if m.Source.ID != l.From.ID {
			continue
		}
		windows, err := (&bulkimport.Importer{Migration: id, Slices: slicesPort{a.Store}}).Windows(ctx)
		if err != nil {
			return latest, err
		}
		if end := windows.Latest(); end.After(latest) {
			latest = end
		}
	}
	return latest, nil
}

// placements gives each placement of one side of some legs once.
func placements(all []leg, of func(leg) chunk.Placement) []chunk.Placement {
	var out []chunk.Placement
	for _, l := range all {
		p := of(l)
		if !slices.ContainsFunc(out, func(o chunk.Placement) bool { return o.ID == p.ID }) {
			out = append(out, p)
		}
	}
	return out
}

// shardsOf names each shard that some legs touch once, in order.
func shardsOf(all []leg) []string {
	var out []string
	for _, l := range all {
		out = append(out, l.From.Shard, l.To.Shard)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// foreign gives, for each source that is split, the tallies of its targets: under the
// fence they prove that every update had exactly one target.
func (a *Activities) foreign(ctx context.Context, all []leg) (bySource [][]replication.Tally, err error) {
	for _, source := range placements(all, func(l leg) chunk.Placement { return l.From }) {
		var tallies []replication.Tally
		for _, l := range all {
			if l.From.ID != source.ID || l.copies == nil {
				continue
			}
			set, err := a.Sides.Set(ctx, l.To.Shard)
			if err != nil {
				return nil, err
			}
			admin, err := set.Client(chunk.AdminUser)
			if err != nil {
				return nil, err
			}
			tallies = append(tallies, replication.Tally{Client: admin, Migration: l.Migration})
		}
		if len(tallies) > 1 {
			bySource = append(bySource, tallies)
		}
	}
	return bySource, nil
}

// probeAll probes every leg and gives the longest time.
func (a *Activities) probeAll(ctx context.Context, in contract.DirectionInput) (time.Duration, error) {
	all, err := a.legs(ctx, in)
	if err != nil {
		return 0, err
	}
	var longest time.Duration
	for _, l := range all {
		lag, err := a.probe(ctx, l.DirectionInput)
		if err != nil {
			return 0, err
		}
		longest = max(longest, lag)
	}
	return longest, nil
}
