package activities

import (
	"context"
	"fmt"
	"strings"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/internal/pause"
)

// probe writes a marker and waits until every lane has passed it.
func (a *Activities) probe(ctx context.Context, in contract.DirectionInput) (time.Duration, error) {
	e, err := a.ends(ctx, in)
	if err != nil {
		return 0, err
	}
	for {
		began := time.Now()
		m := chunk.Marker{Kind: chunk.ValidateMarker, Migration: in.Migration, Attempt: in.Direction, Placement: in.From.ID, Round: began.UnixNano(), At: began}
		if _, err := e.from.WriteMarker(ctx, m); err != nil {
			return 0, err
		}
		patient, cancel := context.WithTimeout(ctx, probePatience)
		err := a.passed(patient, e, in, m.Key())
		late := patient.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !late {
			return time.Since(began), err
		}
	}
}

// probePatience is how long one marker is waited for. Lanes keep the name of the
// newest marker only: one that another marker of the migration has overtaken is
// never seen, and a new one is written.
const probePatience = 30 * time.Second

// passed waits until every lane of a direction has passed a marker.
func (a *Activities) passed(ctx context.Context, e ends, in contract.DirectionInput, key string) error {
	for began := time.Now(); ; {
		ok, err := e.to.PassedMarker(ctx, in.Migration, in.Direction, int(a.Settings.Partitions), key)
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
		if pause.For(ctx, lookAgain(time.Since(began))) != nil {
			return fmt.Errorf("lanes did not pass %s: %w", key, context.Cause(ctx))
		}
	}
}

// lookAgain is how long one who has waited for so long waits before the next look:
// however many moves wait for their lanes, their shard is not kept busy by it, and
// none learns much later than it could.
func lookAgain(waited time.Duration) time.Duration {
	return min(max(waited/8, 5*time.Millisecond), 500*time.Millisecond)
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
