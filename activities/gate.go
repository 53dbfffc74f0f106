package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/gate"
	"drover/metadata"
	"drover/shard"
)

// measureWithin bounds one look at the gate; a shard that hangs refuses, it does
// not hold the move.
const measureWithin = 8 * time.Second

// measureEvery is how often a patient gate measures again.
const measureEvery = time.Second

// CheckGate measures whether a switch may begin, again and again for as long as
// its caller is patient. It changes nothing but a marker, and not even that where
// it is asked to only read.
func (a *Activities) CheckGate(ctx context.Context, in contract.GateInput) (contract.GateReport, error) {
	var r contract.GateReport
	until := time.Now().Add(time.Duration(in.Patience))
	err := beating(ctx, func() any { return nil }, func(ctx context.Context) error {
		tick := time.NewTicker(measureEvery)
		defer tick.Stop()
		for {
			var err error
			if r, err = a.measureAll(ctx, in); err != nil {
				return err
			}
			if r.Go || time.Now().After(until) {
				return ctx.Err()
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
		}
	})
	return r, err
}

// measureAll looks at every leg of a split or merge: all must pass.
func (a *Activities) measureAll(ctx context.Context, in contract.GateInput) (contract.GateReport, error) {
	all, err := a.legs(ctx, in.DirectionInput)
	if err != nil {
		return contract.GateReport{}, err
	}
	waivers, err := a.Store.Waivers(ctx, in.Chunk)
	if err != nil {
		return contract.GateReport{}, err
	}
	var reports []contract.GateReport
	sources := map[chunk.PlacementID]bool{}
	for _, l := range all {
		of := in
		of.DirectionInput = l.DirectionInput
		can := a.gateTrials(ctx, of)
		one := a.measure(ctx, of, can, waivers)
		if sources[of.From.ID] { // said already
			one.Open, one.Before = nil, nil
		}
		sources[of.From.ID] = true
		reports = append(reports, one)
	}
	r := gate.Together(reports)
	a.Metrics.Gate.Note(in.Chunk, r)
	return r, nil
}

// measure looks at everything once, but for what the servers can do, which takes longer
// where it has to be tried. What people have waived passes.
func (a *Activities) measure(ctx context.Context, in contract.GateInput, can contract.Check, waivers map[string]string) contract.GateReport {
	ctx, cancel := context.WithTimeout(ctx, measureWithin)
	defer cancel()
	l := a.Settings.Gate
	var open contract.OpenWork
	measures := []func() []contract.Check{
		func() []contract.Check { return []contract.Check{a.gateLag(ctx, in)} },
		func() []contract.Check { return []contract.Check{a.gateLatency(ctx, in.DirectionInput)} },
		func() []contract.Check { return []contract.Check{a.gateValidation(ctx, in.DirectionInput)} },
		func() []contract.Check {
			set, err := a.targetSet(ctx, in.To.Shard)
			return []contract.Check{gate.Election(l.ElectionQuiet, set, err), gate.Secondaries(l.SecondaryLag, set, err)}
		},
		func() []contract.Check {
			return []contract.Check{a.gateLeases(ctx, in.DirectionInput), a.gateMembers(ctx, in.DirectionInput), a.gateBuilds(ctx, in.DirectionInput), can}
		},
		func() []contract.Check { return []contract.Check{a.gateMetadata(ctx)} },
		func() []contract.Check { return []contract.Check{a.gateWayBack(ctx, in.DirectionInput)} },
		func() []contract.Check { return a.gateBeside(ctx, in.DirectionInput) },
		func() []contract.Check {
			var err error
			open, err = a.openWork(ctx, in.From)
			return []contract.Check{gate.Open(open, time.Duration(in.WaitForOpen), err)}
		},
		func() []contract.Check {
			all, err := a.callers(ctx)
			return []contract.Check{gate.Callers(all, l.FenceDeadline, err)}
		},
	}
	results := make([][]contract.Check, len(measures))
	var wg sync.WaitGroup
	for i, m := range measures {
		wg.Go(func() { results[i] = m() })
	}
	wg.Wait()
	before, _, err := a.traffic(ctx, in.From.ID)
	if err != nil {
		a.Logger.WarnContext(ctx, "How the source serves is not known", slog.Any("error", err))
	}
	r := gate.Report(time.Now().UTC(), l, &open, gate.Waive(slices.Concat(results...), waivers)...)
	r.Before = &before
	return r
}

// gateLag sends a marker through the lanes and takes the time.
func (a *Activities) gateLag(ctx context.Context, in contract.GateInput) contract.Check {
	source := "a marker from " + in.From.Shard + " through the lanes to " + in.To.Shard
	if in.ReadOnly {
		word, _, ok, err := a.lanesWord(ctx, in.DirectionInput)
		if err == nil && !ok {
			err = errors.New("the lanes have said nothing")
		}
		lag, known := word.Lag()
		if err == nil && !known {
			err = errors.New("a lane has passed nothing yet")
		}
		return gate.Lag(a.Settings.Gate.Lag, lag, "the lanes' word", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	lag, err := a.probe(ctx, in.DirectionInput)
	return gate.Lag(a.Settings.Gate.Lag, lag, source, err)
}

// lanesWord reads what the lanes of a direction said last; ok is false when they
// have said nothing about this direction.
func (a *Activities) lanesWord(ctx context.Context, in contract.DirectionInput) (w contract.LanesWord, age time.Duration, ok bool, err error) {
	raw, age, ok, err := a.Store.Lanes(ctx, in.Migration)
	if err != nil || !ok {
		return w, age, false, err
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return w, age, false, fmt.Errorf("read the lanes' word: %w", err)
	}
	return w, age, w.Direction == in.Direction, nil
}

func (a *Activities) gateLatency(ctx context.Context, in contract.DirectionInput) contract.Check {
	w, age, ok, err := a.lanesWord(ctx, in)
	return gate.Pace(a.Settings.Gate.Latency, gate.Latency{
		Found: ok, Age: age, Count: w.LatencyCount, P99: time.Duration(w.LatencyP99MS * float64(time.Millisecond)), NotConverging: w.NotConverging,
	}, err)
}

func (a *Activities) gateValidation(ctx context.Context, in contract.DirectionInput) contract.Check {
	var f gate.Findings
	_, mismatches, err := a.Store.OpenMismatches(ctx, in.Migration, 1)
	if err == nil {
		var quarantined []metadata.Quarantined
		quarantined, err = a.Store.Quarantines(ctx, in.Migration)
		f.Quarantined = len(quarantined)
	}
	if err == nil {
		var stragglers []metadata.Straggler
		stragglers, err = a.Store.Stragglers(ctx, in.From.ID, in.To.ID)
		f.Stragglers = len(stragglers)
	}
	f.Mismatches = mismatches
	if err == nil {
		f.Unverified, err = a.unverified(ctx, in)
	}
	return gate.Validation(f, err)
}

// targetSet is the target's replica set as its primary sees it.
func (a *Activities) targetSet(ctx context.Context, name string) (gate.Set, error) {
	s := gate.Set{Shard: name}
	set, err := a.Sides.Set(ctx, name)
	if err != nil {
		return s, err
	}
	st, err := set.Status(ctx)
	if err != nil {
		return s, err
	}
	s.Primary, s.Term, s.Dated, s.Stable = st.Host, st.Term, !st.Elected.IsZero(), max(0, st.At.Sub(st.Elected))
	for _, m := range st.Members {
		s.Members = append(s.Members, gate.Member{Host: m.Host, Secondary: m.State == "SECONDARY", Delayed: m.Delayed, Lag: m.Lag})
	}
	return s, nil
}

func (a *Activities) gateLeases(ctx context.Context, in contract.DirectionInput) contract.Check {
	leases, err := a.Store.Leases(ctx)
	var exclusive []string
	for _, l := range leases {
		if (l.Shard == in.From.Shard || l.Shard == in.To.Shard) && l.Mode == metadata.ExclusiveLease {
			exclusive = append(exclusive, fmt.Sprintf("%s is leased by %s", l.Shard, l.Holder))
		}
	}
	return gate.Leases(exclusive, err)
}

// gateMembers calls every member of both sets, and warms the window's connections
// on the way.
func (a *Activities) gateMembers(ctx context.Context, in contract.DirectionInput) contract.Check {
	var silent, owed []string
	for _, name := range []string{in.From.Shard, in.To.Shard} {
		side, err := a.Sides.side(ctx, name)
		if err == nil {
			err = side.Warm(ctx)
		}
		if err != nil {
			return gate.Answers(nil, nil, err)
		}
		quiet, excused, err := side.fencer.RollCall(ctx)
		if err != nil {
			return gate.Answers(nil, nil, err)
		}
		for _, host := range quiet {
			silent = append(silent, fmt.Sprintf("%s of %s does not answer", host, name))
		}
		for _, o := range excused {
			owed = append(owed, fmt.Sprintf("%s of %s (%s)", o.Host, name, o.Reason))
		}
	}
	return gate.Answers(silent, owed, nil)
}

func (a *Activities) gateBuilds(ctx context.Context, in contract.DirectionInput) contract.Check {
	var building []string
	for _, p := range []chunk.Placement{in.From, in.To} {
		set, err := a.Sides.Set(ctx, p.Shard)
		if err != nil {
			return gate.IndexBuilds(nil, err)
		}
		builds, err := set.IndexBuilds(ctx, p.Database)
		if err != nil {
			return gate.IndexBuilds(nil, err)
		}
		if len(builds) > 0 {
			building = append(building, fmt.Sprintf("%s builds %s", p.Shard, strings.Join(builds, ", ")))
		}
	}
	return gate.IndexBuilds(building, nil)
}

func (a *Activities) gateMetadata(ctx context.Context) contract.Check {
	began := time.Now()
	err := a.Store.CheckWritable(ctx)
	return gate.Writable(time.Since(began), err)
}

// gateWayBack looks whether reverse lanes could keep the placement current that a
// switch leaves.
func (a *Activities) gateWayBack(ctx context.Context, in contract.DirectionInput) contract.Check {
	w := gate.WayBack{Shard: in.To.Shard}
	silence, captured, err := a.Store.CaptureSilence(ctx, in.To.Shard)
	if err != nil {
		return gate.Return(w, err)
	}
	w.Captured, w.Silence = captured, silence
	if captured {
		ends, err := a.Log.EndOffsets(ctx, in.To.Shard)
		if err != nil {
			return gate.Return(w, err)
		}
		w.Partitions = len(ends) == int(a.Settings.Partitions)
	}
	old, err := a.Store.Placement(ctx, in.From.ID)
	if err != nil {
		return gate.Return(w, err)
	}
	w.OldState = string(old.State)
	set, err := a.Sides.Set(ctx, in.From.Shard)
	if err != nil {
		return gate.Return(w, err)
	}
	if _, err = set.Identity(ctx); err != nil {
		return gate.Return(w, err)
	}
	w.OldHealthy = true
	return gate.Return(w, nil)
}

// openWork lists what applications have open on the placement that serves.
func (a *Activities) openWork(ctx context.Context, p chunk.Placement) (w contract.OpenWork, err error) {
	set, err := a.Sides.Set(ctx, p.Shard)
	if err != nil {
		return w, err
	}
	open, listed, err := set.OpenWork(ctx, p)
	if err != nil {
		return w, err
	}
	if !listed {
		served, w, err := a.traffic(ctx, p.ID)
		if err == nil && served.Proxies == 0 {
			err = errors.New("the shard does not list other clients' transactions and cursors, and no proxy says anything")
		}
		return w, err
	}
	return summary(shard.DrainListed, open), nil
}

// summary counts open work that comes with the oldest first.
func summary(way string, open []shard.Open) contract.OpenWork {
	w := contract.OpenWork{Way: way}
	for _, o := range open {
		if o.Kind == "transaction" {
			w.Transactions++
		} else {
			w.Cursors++
		}
		w.Oldest = max(w.Oldest, contract.Duration(o.Since))
		if len(w.Items) < gate.ShownOpen {
			w.Items = append(w.Items, contract.OpenItem{Kind: o.Kind, Age: contract.Duration(o.Since), Where: o.Where})
		}
	}
	return w
}
