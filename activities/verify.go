package activities

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"drover/cdc"
	"drover/chunk"
	"drover/contract"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/pause"
	"drover/metadata"
	"drover/shard"
	"drover/validation"
)

// VerifyChanges compares what changes on the source, leg by leg, until it is
// cancelled, from where the validation ended or an earlier run of it stood.
//
// If interrupted: run again; what was not settled is compared again.
func (a *Activities) VerifyChanges(ctx context.Context, in contract.VerifyInput) (contract.Verification, error) {
	defer a.crowd.join()()
	err := beating(ctx, func() any { return in.Ref }, func(ctx context.Context) error {
		all, err := a.legs(ctx, in.DirectionInput)
		if err != nil {
			return err
		}
		g, ctx := errgroup.WithContext(ctx)
		for _, l := range all {
			v := &verifier{a: a, leg: l, in: contract.VerifyInput{DirectionInput: l.DirectionInput, OnMismatch: in.OnMismatch}}
			g.Go(func() error { return v.run(ctx) })
		}
		if len(all) == 1 {
			g.Go(func() error { return a.mirrorReads(ctx, all[0]) })
		}
		return g.Wait()
	})
	return contract.Verification{}, err
}

// run verifies one leg.
func (v *verifier) run(ctx context.Context) error {
	w, err := v.watcher(ctx)
	if err != nil {
		return err
	}
	state, err := v.begin(ctx)
	if err != nil {
		return err
	}
	return w.Watch(ctx, state)
}

// verifier keeps what a continuous verification finds.
type verifier struct {
	a      *Activities
	leg    leg
	in     contract.VerifyInput // of the leg
	ends   ends
	trail  trailPort
	other  trailPort // of the target
	report contract.Verification
	open   bool // there may be open mismatches
	cool   bool // no document is kept as busy
	fixer  *validation.Repairer
}

// watcher is wired to both sides of the direction.
func (v *verifier) watcher(ctx context.Context) (*validation.Watcher, error) {
	e, err := v.a.ends(ctx, v.in.DirectionInput)
	if err != nil {
		return nil, err
	}
	v.ends, v.open = e, true
	base, err := v.a.validator(ctx, v.leg, e)
	if err != nil {
		return nil, err
	}
	base.Markers = &heartbeatMarks{a: v.a, e: e, in: v.in.DirectionInput}
	base.TargetDatabase = v.in.To.Database
	replay := v.a.replay()
	v.trail = trailPort{replay, v.in.From.Shard, v.in.From.Database, v.a.logEndsOf}
	v.other = trailPort{replay, v.in.To.Shard, v.in.To.Database, v.a.Log.EndOffsets}
	foreign := v.other
	foreign.ends = v.a.logEndsOf
	if v.in.OnMismatch == contract.RepairOnMismatch && v.in.Direction == 0 {
		writer, err := e.to.Client(chunk.ApplierUser)
		if err != nil {
			return nil, err
		}
		v.fixer = &validation.Repairer{Source: base.Source, Target: base.Target, Writer: writer.Database(v.in.To.Database)}
	}
	return &validation.Watcher{
		Validator: base, Trail: v.trail, Foreign: foreign, Done: v.done,
		Every: func() time.Duration { return v.a.crowd.every(time.Second, longestUnverified) },
	}, nil
}

// begin gives where to go on: where an earlier run stood, or, in a direction that
// a switch has begun, at its open marker with all that the one before it left
// open and all that changed since.
func (v *verifier) begin(ctx context.Context) (s validation.WatchState, err error) {
	kept, err := keptVerification(ctx, v.a.Store, v.in.Migration, v.in.Direction)
	if err != nil {
		return s, err
	}
	if s = kept.state; kept.begun() {
		_ = json.Unmarshal(kept.report, &v.report) // figures for people
	} else if v.in.Direction != 0 {
		if s, err = v.takeOver(ctx); err != nil {
			return s, err
		}
	} else {
		return s, failure.New(failure.Invalid, "validation.missing", "migration %d was not validated", v.in.Migration).
			WithHint("drover validate, or resume, compares everything first")
	}
	if len(s.Foreign) == 0 {
		s.Foreign, err = v.a.Log.EndOffsets(ctx, v.in.To.Shard)
	}
	return s, err
}

// takeOver begins the verification of a new direction.
func (v *verifier) takeOver(ctx context.Context) (s validation.WatchState, err error) {
	open, err := v.a.openMarker(ctx, v.lead(), v.in.Direction, v.in.From)
	if err != nil {
		return s, err
	}
	if s.Offsets, err = v.a.offsetsOf(ctx, v.in.From.Shard, open); err != nil {
		return s, err
	}
	before, err := v.a.Store.Attempt(ctx, v.in.Direction)
	if err != nil {
		return s, err
	}
	kept, err := keptVerification(ctx, v.a.Store, v.in.Migration, before.Direction)
	if err != nil || !kept.known {
		return s, err
	}
	if !kept.begun() {
		return s, failure.New(failure.Invalid, "validation.missing", "what changed on %s before the switch was not verified to its end", v.in.To.Shard).
			WithHint("drover validate compares everything")
	}
	old := kept.state
	tail, err := validation.Collect(ctx, v.other, old.Offsets, v.in.To.Database, maxTail)
	s.Suspects = append(old.Suspects, tail...)
	return s, err
}

// lead names the markers of the switch.
func (v *verifier) lead() chunk.MigrationID {
	if v.leg.lead != 0 {
		return v.leg.lead
	}
	return v.in.Migration
}

// maxTail bounds what the last round before a switch may have left.
const maxTail = 100_000

// done keeps what a round came to and does what the policy says.
func (v *verifier) done(ctx context.Context, s validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
	again, err := v.settle(ctx, r)
	if err != nil {
		return nil, err
	}
	if len(r.Hot) > 0 || !v.cool {
		if err := v.a.setBusy(ctx, v.in.Migration, r.Hot); err != nil {
			return nil, err
		}
	}
	v.cool = len(r.Hot) == 0
	state, err := bson.Marshal(s)
	if err != nil {
		return nil, err
	}
	v.report.Rounds, v.report.Verified, v.report.Behind, v.report.Pending = r.Rounds, r.Verified, r.Behind, r.Pending
	v.report.Hot, v.report.TooHot, v.report.At = len(r.Hot), r.TooHot, time.Now()
	v.report.Catalog = nil
	for _, d := range r.Catalog {
		v.report.Catalog = append(v.report.Catalog, d.What)
	}
	report, err := json.Marshal(v.report)
	if err != nil {
		return nil, err
	}
	err = v.a.Store.SaveVerification(ctx, metadata.Verification{Migration: v.in.Migration, Direction: v.in.Direction, State: state, Report: report})
	if err != nil {
		return nil, err
	}
	return again, v.verdict(r)
}

// settle keeps and closes mismatches, and gives what is to be compared again.
func (v *verifier) settle(ctx context.Context, r validation.WatchReport) (again []validation.Document, err error) {
	if v.open && len(r.Equal) > 0 {
		byCollection := map[string][][]byte{}
		for _, d := range r.Equal {
			byCollection[d.Collection] = append(byCollection[d.Collection], d.ID)
		}
		for c, ids := range byCollection {
			if err := v.a.Store.ResolveDocuments(ctx, v.in.Migration, c, ids); err != nil {
				return nil, err
			}
		}
	}
	if len(r.Mismatches) > 0 {
		if err := v.a.recordMismatches(ctx, v.in.Migration, r.Mismatches); err != nil {
			return nil, err
		}
		if v.fixer != nil {
			n, err := v.fixer.Repair(ctx, r.Mismatches)
			v.report.Repaired += int64(n)
			if err != nil {
				return nil, err
			}
		}
	}
	if v.open || len(r.Mismatches) > 0 {
		if _, v.report.Mismatched, err = v.a.Store.OpenMismatches(ctx, v.in.Migration, 1); err != nil {
			return nil, err
		}
		v.open = v.report.Mismatched > 0
	}
	for _, m := range r.Mismatches {
		again = append(again, m.Document)
	}
	return again, nil
}

// verdict ends the verification where the policy says that the move stops.
func (v *verifier) verdict(r validation.WatchReport) error {
	n := len(r.Mismatches) + len(r.Catalog)
	if n == 0 || v.in.OnMismatch == contract.PageOnMismatch || v.fixer != nil && len(r.Catalog) == 0 {
		return nil
	}
	first := ""
	if len(r.Mismatches) > 0 {
		m := r.Mismatches[0]
		first = fmt.Sprintf(", the first %s of %s at %q", m.Kind, m.Collection, m.Path)
	}
	return failure.New(failure.Mismatch, "validation.mismatch", "%d documents that changed after the validation and %d definitions differ%s", len(r.Mismatches), len(r.Catalog), first).
		WithHint("the serving placement is not touched; drover migrate mismatches lists the documents; resume compares everything again, abort gives up")
}

// verifiedWithin is how old the newest round of the verification may be for the gate.
const verifiedWithin = 15 * time.Second

// longestUnverified is how rarely each verification of a crowd makes a round: well
// within what the gate wants.
const longestUnverified = 5 * time.Second

// unverified says what of the changes of a direction is not known to be the same.
// A verification that stands still says nothing.
func (a *Activities) unverified(ctx context.Context, in contract.DirectionInput) (string, error) {
	v, ok, err := a.Store.Verification(ctx, in.Migration, in.Direction)
	if err != nil {
		return "", err
	}
	var r contract.Verification
	if ok {
		if err := json.Unmarshal(v.Report, &r); err != nil {
			return "", fmt.Errorf("read the verification of migration %d: %w", in.Migration, err)
		}
	}
	switch {
	case r.Rounds == 0:
		return "changes are not verified yet", nil
	case v.Age > verifiedWithin:
		return fmt.Sprintf("changes were verified %s ago", v.Age.Round(time.Second)), nil
	case r.Clean():
		return a.unmirrored(ctx, in.Migration)
	}
	return fmt.Sprintf("verification: behind %t, %d looked at again, %d too hot, %d definitions differ", r.Behind, r.Pending, r.TooHot, len(r.Catalog)), nil
}

// offsetsOf gives where a marker stands in each partition.
func (a *Activities) offsetsOf(ctx context.Context, shard string, m chunk.Marker) (validation.Offsets, error) {
	seams, err := a.findMarker(ctx, shard, m)
	out := make(validation.Offsets, 0, len(seams))
	for _, s := range seams {
		out = append(out, s.Offset)
	}
	return out, err
}

// heartbeatMarks take the shard's own heartbeats for markers: nothing is written
// however long the verification goes on, and no lane has to save anything for it.
type heartbeatMarks struct {
	a  *Activities
	e  ends
	in contract.DirectionInput
}

var _ validation.Markers = (*heartbeatMarks)(nil)

// Write implements [validation.Markers]: it waits for the first heartbeat that is
// written after the call. All verifications of a shard's chunks wait for it together.
func (p *heartbeatMarks) Write(ctx context.Context) (validation.Mark, error) {
	return p.a.heartbeats.do(ctx, p.in.From.Shard, p.next)
}

// next waits for the next heartbeat.
func (p *heartbeatMarks) next(ctx context.Context) (m validation.Mark, err error) {
	from, err := p.a.Log.EndOffsets(ctx, p.in.From.Shard)
	if err != nil {
		return m, err
	}
	round, err := p.e.from.Heartbeat(ctx)
	if err != nil {
		return m, err
	}
	m.Marker = chunk.Marker{Kind: chunk.HeartbeatMarker, Round: round + 1}
	m.Seq, m.At, err = p.a.awaitMarker(ctx, p.in.From.Shard, m.Marker, from)
	return m, err
}

// Passed implements [validation.Markers].
func (p *heartbeatMarks) Passed(ctx context.Context, m validation.Mark) error {
	return p.a.passedSeq(ctx, p.e, p.in, m)
}

// passedSeq waits until the lane of a direction has saved a position at or
// behind a mark. Unlike the name of the newest marker it can't be overtaken.
func (a *Activities) passedSeq(ctx context.Context, e ends, in contract.DirectionInput, m validation.Mark) error {
	p, err := partitionOf(in.From.Database, a.Settings.Partitions)
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		lanes, err := e.to.Lanes(ctx, in.Migration, in.Direction)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(lanes, func(l shard.LaneState) bool { return l.Partition == p && l.Seq >= m.Seq }) {
			return nil
		}
		if pause.For(ctx, a.crowd.rest(time.Since(began))) != nil {
			return fmt.Errorf("the lane has not passed %s: %w", m.Marker.Key(), context.Cause(ctx))
		}
	}
}

// trailPort reads what a shard's captured log says of one placement, from the archive
// where Kafka no longer has it.
type trailPort struct {
	replay   *cdc.Replay
	shard    string
	database string
	ends     func(ctx context.Context, shard string) ([]int64, error)
}

var _ validation.Trail = trailPort{}

// Until implements [validation.Trail]. Nothing of the placement is in the other
// partitions: there it is always at the end.
func (p trailPort) Until(ctx context.Context, from validation.Offsets, to validation.Mark, fn func(*event.Event) (bool, error)) (next validation.Offsets, reached bool, err error) {
	ends, err := p.ends(ctx, p.shard)
	if err != nil {
		return from, false, err
	}
	if len(from) != len(ends) {
		return from, false, failure.New(failure.Invalid, "log.partitions_differ", "%d offsets for the %d partitions of %s", len(from), len(ends), p.shard)
	}
	at, err := partitionOf(p.database, int32(len(ends))) //nolint:gosec // a number of partitions
	if err != nil {
		return from, false, err
	}
	next = slices.Clone(ends)
	next[at] = from[at]
	key := ""
	if to.Marker.Kind != "" {
		key = to.Marker.Key()
	} else if from[at] >= ends[at] {
		return next, true, nil
	}
	var counter event.Counter
	err = p.replay.Read(ctx, p.shard, at, from[at], func(offset int64, e *event.Event) error {
		if e == nil {
			return nil
		}
		ok, err := counter.Accept(e)
		switch {
		case err != nil:
			return err
		case ok && key != "" && e.Marker != nil && e.Marker.Key() == key:
			next[at], reached = offset, true
			return cdc.ErrStop
		case ok:
			next[at] = offset + 1
			if more, err := fn(e); err != nil || !more {
				return cmp.Or(err, cdc.ErrStop)
			}
		}
		if key == "" && offset >= ends[at]-1 {
			next[at], reached = ends[at], true
			return cdc.ErrStop
		}
		return nil
	})
	return next, reached, err
}
