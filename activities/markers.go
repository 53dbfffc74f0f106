package activities

import (
	"context"
	"fmt"
	"strings"
	"time"

	"drover/chunk"
	"drover/contract"
)

// probe writes a marker and waits until every lane has passed it.
func (a *Activities) probe(ctx context.Context, in contract.DirectionInput) (time.Duration, error) {
	e, err := a.ends(ctx, in)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	m := chunk.Marker{Kind: chunk.ValidateMarker, Migration: in.Migration, Attempt: in.Direction, Placement: in.From.ID, Round: began.UnixNano(), At: began}
	if _, err := e.from.WriteMarker(ctx, m); err != nil {
		return 0, err
	}
	err = a.passed(ctx, e, in, m.Key())
	return time.Since(began), err
}

// passed waits until every lane of a direction has passed a marker.
func (a *Activities) passed(ctx context.Context, e ends, in contract.DirectionInput, key string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := e.to.PassedMarker(ctx, in.Migration, in.Direction, int(a.Settings.Partitions), key)
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lanes did not pass %s: %w", key, context.Cause(ctx))
		case <-tick.C:
		}
	}
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
