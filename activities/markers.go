package activities

import (
	"context"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/validation"
)

// probe writes a marker and waits until the lane has passed it.
func (a *Activities) probe(ctx context.Context, in contract.DirectionInput) (time.Duration, error) {
	e, err := a.ends(ctx, in)
	if err != nil {
		return 0, err
	}
	for patience := probePatience; ; patience *= 2 {
		began := time.Now()
		m := chunk.Marker{Kind: chunk.ValidateMarker, Migration: in.Migration, Attempt: in.Direction, Placement: in.From.ID, Round: began.UnixNano(), At: began}
		if _, err := e.from.WriteMarker(ctx, m); err != nil {
			return 0, err
		}
		bounded, cancel := context.WithTimeout(ctx, patience+answerPatience)
		ok, err := a.passed(bounded, e, in, m.Key(), patience)
		late := bounded.Err() != nil && ctx.Err() == nil
		cancel()
		if ok || err != nil && !late {
			return time.Since(began), err
		}
	}
}

// probePatience is how long the first marker is waited for, and each further one
// twice as long. Lanes keep the name of the newest marker only: one that another
// marker of the migration has overtaken is never seen, and a new one is written.
const probePatience = 2 * time.Second

// answerPatience is how much longer a question that was asked in time is waited for.
const answerPatience = 10 * time.Second

// passed waits, as long as there is patience, until the lane of a direction has passed a
// marker.
func (a *Activities) passed(ctx context.Context, e ends, in contract.DirectionInput, key string, patience time.Duration) (bool, error) {
	p, err := partitionOf(in.From.Database, a.Settings.Partitions)
	if err != nil {
		return false, err
	}
	return a.crowd.until(ctx, patience, func(ctx context.Context) (bool, error) {
		return e.to.PassedMarker(ctx, in.Migration, in.Direction, p, key)
	})
}

// ownMarks are markers that a comparison writes for itself: lanes save at once where
// they pass one, so little changes between two of them. Lanes are asked for their
// positions and not for the marker's name, which another one may have overtaken.
type ownMarks struct {
	a  *Activities
	e  ends
	in contract.DirectionInput
}

var _ validation.Markers = ownMarks{}

// Write implements [validation.Markers].
func (p ownMarks) Write(ctx context.Context) (m validation.Mark, err error) {
	from, err := p.a.Log.EndOffsets(ctx, p.in.From.Shard)
	if err != nil {
		return m, err
	}
	now := time.Now()
	m.Marker = chunk.Marker{Kind: chunk.ValidateMarker, Migration: p.in.Migration, Attempt: p.in.Direction, Placement: p.in.From.ID, Round: now.UnixNano(), At: now}
	if m.At, err = p.e.from.WriteMarker(ctx, m.Marker); err != nil {
		return m, err
	}
	m.Seq, _, err = p.a.awaitMarker(ctx, p.in.From.Shard, m.Marker, from)
	return m, err
}

// awaitMarker waits, for a while, until a marker of just now is captured, and gives its
// place and its time. Code: validation.no_heartbeat.
func (a *Activities) awaitMarker(ctx context.Context, name string, m chunk.Marker, from []int64) (seq int64, at bson.Timestamp, err error) {
	bounded, cancel := context.WithTimeout(ctx, findMarkerFor)
	defer cancel()
	seams, err := a.Log.FindMarker(bounded, name, m.Key(), from)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = failure.New(failure.Transient, validation.Uncaptured, "no marker of %s was captured for %s: %w", name, findMarkerFor, err).
			WithHint("look at workflow capture/%s and at drover_capture_lag_seconds", name)
	}
	if err != nil {
		return 0, at, err
	}
	a.keepSeams(seamKey{name, m.Key()}, seams)
	seq, at = seams[0].Seq, seams[0].Time
	for _, s := range seams {
		seq = min(seq, s.Seq)
	}
	return seq, at, nil
}

// Passed implements [validation.Markers].
func (p ownMarks) Passed(ctx context.Context, m validation.Mark) error {
	return p.a.passedSeq(ctx, p.e, p.in, m)
}

// ends finds both shards of a direction.
func (a *Activities) ends(ctx context.Context, in contract.DirectionInput) (e ends, err error) {
	if e.from, err = a.Sides.Set(ctx, in.From.Shard); err != nil {
		return e, err
	}
	e.to, err = a.Sides.Set(ctx, in.To.Shard)
	return e, err
}

// databaseOf is the logical database in a chunk's id.
func databaseOf(id chunk.ID) string {
	name, _, _ := strings.Cut(string(id), "/")
	return name
}
