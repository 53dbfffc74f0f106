package activities

import (
	"context"
	"fmt"
	"strings"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
)

// CheckGate measures whether a switch may begin. It changes nothing but a marker.
func (a *Activities) CheckGate(ctx context.Context, in contract.DirectionInput) (contract.GateReport, error) {
	var r contract.GateReport
	for _, check := range []func(context.Context, contract.DirectionInput) (contract.Check, error){
		a.gateLag, a.gateValidation, a.gateShards, a.gateMetadata,
	} {
		c, err := check(ctx, in)
		if err != nil { // a check that could not finish does not pass
			c.OK, c.Value = false, err.Error()
		}
		r.Checks = append(r.Checks, c)
	}
	r.Go = true
	for _, c := range r.Checks {
		r.Go = r.Go && c.OK
	}
	return r, nil
}

// gateLag sends a marker through the lanes and takes the time.
func (a *Activities) gateLag(ctx context.Context, in contract.DirectionInput) (contract.Check, error) {
	c := contract.Check{
		Number: 1, Name: "lag", Limit: a.Settings.GateLag.String(),
		Source: "a marker from " + in.From.Shard + " through every lane to " + in.To.Shard,
		Hint:   "replication goes on; a target that cannot keep up needs fewer moves at once or less load",
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	lag, err := a.probe(ctx, in)
	c.Value, c.OK = lag.Round(time.Millisecond/10).String(), err == nil && lag <= a.Settings.GateLag
	return c, err
}

func (a *Activities) gateValidation(ctx context.Context, in contract.DirectionInput) (contract.Check, error) {
	c := contract.Check{
		Number: 3, Name: "validation", Limit: "no mismatch, nothing quarantined", Source: "metadata",
		Hint: "drover migrate status shows the mismatches; resume validates again",
	}
	_, mismatches, err := a.Store.OpenMismatches(ctx, in.Migration, 1)
	if err != nil {
		return c, err
	}
	quarantined, err := a.Store.Quarantines(ctx, in.Migration)
	if err != nil {
		return c, err
	}
	stragglers, err := a.Store.Stragglers(ctx, in.From.ID, in.To.ID)
	if err != nil {
		return c, err
	}
	c.Value = fmt.Sprintf("%d mismatches, %d quarantined, %d stragglers", mismatches, len(quarantined), len(stragglers))
	c.OK = mismatches == 0 && len(quarantined) == 0 && len(stragglers) == 0
	return c, nil
}

func (a *Activities) gateShards(ctx context.Context, in contract.DirectionInput) (contract.Check, error) {
	c := contract.Check{
		Number: 5, Name: "shards", Limit: "no exclusive lease, every member answers, no index build", Source: "leases, both shards",
		Hint: "drover shard check shows the shard; a repair that holds the lease ends by itself",
	}
	var wrong []string
	leases, err := a.Store.Leases(ctx)
	if err != nil {
		return c, err
	}
	for _, p := range []chunk.Placement{in.From, in.To} {
		for _, l := range leases {
			if l.Shard == p.Shard && l.Mode == metadata.ExclusiveLease {
				wrong = append(wrong, fmt.Sprintf("%s is leased by %s", p.Shard, l.Holder))
			}
		}
		side, err := a.Sides.side(ctx, p.Shard)
		if err != nil {
			return c, err
		}
		if err := side.Warm(ctx); err != nil {
			return c, err
		}
		builds, err := side.IndexBuilds(ctx, p.Database)
		if err != nil {
			return c, err
		}
		if len(builds) > 0 {
			wrong = append(wrong, fmt.Sprintf("%s builds %s", p.Shard, strings.Join(builds, ", ")))
		}
	}
	c.Value, c.OK = strings.Join(wrong, "; "), len(wrong) == 0
	if c.OK {
		c.Value = "clean"
	}
	return c, nil
}

func (a *Activities) gateMetadata(ctx context.Context, _ contract.DirectionInput) (contract.Check, error) {
	c := contract.Check{
		Number: 6, Name: "metadata", Limit: "a write works now", Source: "Postgres",
		Hint: "nothing can be published while the metadata cannot be written",
	}
	began := time.Now()
	err := a.Store.CheckWritable(ctx)
	c.Value, c.OK = "written in "+time.Since(began).Round(time.Millisecond/10).String(), err == nil
	return c, err
}

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
