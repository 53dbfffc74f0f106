package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"drover/bulkimport"
	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/internal/pause"
	"drover/metadata"
	"drover/replication"
	"drover/shard"
)

// ReplicateChanges runs the lanes of one direction until a switch closes them,
// they are cancelled, or something does not fit.
//
// If interrupted: run again; each lane goes on where its checkpoint stands.
func (a *Activities) ReplicateChanges(ctx context.Context, in contract.DirectionInput) (contract.None, error) {
	meter := a.meter(in.Ref, "replicate")
	err := meter.beating(ctx, func(ctx context.Context) error {
		return granting(ctx, func() ([]leg, error) {
			all, err := a.legs(ctx, in)
			if err != nil {
				return nil, err
			}
			return all, a.runLanes(ctx, all, meter)
		}, func(l leg) error { return a.grantAgain(ctx, l) })
	})
	return contract.None{}, err
}

// runLanes runs the lanes of all legs until the first ends.
func (a *Activities) runLanes(ctx context.Context, all []leg, meter *meter) error {
	var running []*replication.Lanes
	var targets []renewable
	for _, l := range all {
		ls, to, err := a.lanes(ctx, l)
		if err != nil {
			return err
		}
		running, targets = append(running, ls), append(targets, to)
	}
	stop := make(chan struct{})
	defer close(stop)
	go a.watchLanes(ctx, all, running, meter, stop)
	return renewing(ctx, func(ctx context.Context) error {
		g, together := errgroup.WithContext(ctx) // the legs go together: the first to end ends all
		for _, ls := range running {
			g.Go(func() error { return ls.Run(together) })
		}
		return g.Wait()
	}, targets...)
}

// grantAgain gives the lanes of a leg their role again, if it is there.
func (a *Activities) grantAgain(ctx context.Context, l leg) error {
	to, err := a.Sides.Set(ctx, l.To.Shard)
	if err != nil {
		return err
	}
	return to.GrantApplierAgain(ctx, l.To.ID, l.Migration, l.Direction)
}

// How lanes get their role again.
const (
	grantPause = time.Second // in front of their new beginning
	grantHeld  = time.Minute // lanes that ran so long had their role
)

// granting runs lanes. Those that the target refuses although their role is there get it
// again and begin again, at most [mostGrants] times in a row: then the refusal stands.
func granting(ctx context.Context, run func() ([]leg, error), again func(leg) error) error {
	for given := 0; ; given++ {
		began := time.Now()
		legs, err := run()
		if time.Since(began) >= grantHeld {
			given = 0
		}
		if given == mostGrants || !failure.HasCode(err, "lane.refused") {
			return err
		}
		for _, l := range legs {
			switch e := again(l); {
			case failure.HasCode(e, "grant.void"): // their work is over
				return err
			case e != nil:
				return e
			}
		}
		if err := pause.For(ctx, grantPause); err != nil {
			return err
		}
	}
}

// watchLanes keeps the meter, and the gate's source, at what the lanes say, until
// stop.
func (a *Activities) watchLanes(ctx context.Context, legs []leg, running []*replication.Lanes, meter *meter, stop <-chan struct{}) {
	catchup := make([]replication.Catchup, len(running))
	meters := make([]applyMeter, len(running))
	defer func() {
		for _, l := range legs {
			a.capacities.forget(l.To.Shard, l.Migration)
		}
	}()
	tick := time.NewTimer(beatEvery / 2)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			tick.Reset(a.crowd.every(beatEvery/2, longestSilence))
			var all []replication.Status
			var worst replication.Rates
			forecasts := a.forecast(ctx, legs, running, catchup, meters)
			said := make([]metadata.Word, len(running))
			for i, ls := range running {
				status, rates := ls.Status(), ls.Rates()
				said[i] = wordOf(legs[i].DirectionInput, status, rates, forecasts[i])
				all = append(all, status...)
				if rates.Latency.P99 >= worst.Latency.P99 {
					worst = rates
				}
			}
			a.keepWords(ctx, said)
			meter.update(func(p *contract.Progress) {
				lanesProgress(p, all, worst)
				forecastProgress(p, worstOf(forecasts))
			})
		}
	}
}

// forecast measures how the lanes of each leg stand to the end of their log. What
// cannot be measured now is unmeasured.
func (a *Activities) forecast(ctx context.Context, legs []leg, running []*replication.Lanes, catchup []replication.Catchup, meters []applyMeter) []replication.Forecast {
	ctx, cancel := context.WithTimeout(ctx, beatEvery/2)
	defer cancel()
	out := make([]replication.Forecast, len(legs))
	ends := map[string][]int64{}
	for i, l := range legs {
		out[i].Pace = replication.Unmeasured
		end, known := ends[l.From.Shard]
		if !known {
			var err error
			if end, err = a.logEndsOf(ctx, l.From.Shard); err != nil {
				continue
			}
			ends[l.From.Shard] = end
		}
		status := running[i].Status()
		var last, applied int64
		for _, s := range status {
			if int(s.Partition) < len(end) {
				last += end[s.Partition]
				applied += min(s.Offset+1, end[s.Partition])
			}
		}
		out[i] = catchup[i].Observe(time.Now(), last, applied, status)
		a.measureApply(ctx, l, &meters[i], status, out[i])
	}
	return out
}

// worstOf gives the forecast that the move as a whole has: one leg that does not
// converge holds all of them.
func worstOf(all []replication.Forecast) (worst replication.Forecast) {
	for _, f := range all {
		if f.Pace == replication.NotConverging && worst.Pace != replication.NotConverging ||
			(f.Pace == replication.NotConverging) == (worst.Pace == replication.NotConverging) && f.Backlog >= worst.Backlog {
			worst = f
		}
	}
	return worst
}

// logEnds remembers for a moment where the captured logs end, however many moves
// ask for the same shard's.
type logEnds struct {
	asking shared[[]int64]
	mu     sync.Mutex
	seen   map[string]logEnd
}

// logEnd is one answer.
type logEnd struct {
	at      time.Time
	offsets []int64
}

// logEndsOf gives the end offsets of a shard's log, at most a second old.
func (a *Activities) logEndsOf(ctx context.Context, shard string) ([]int64, error) {
	return a.logEnds.of(ctx, shard, a.Log.EndOffsets)
}

// of gives the end offsets of a shard's log, at most a second old. Who asks waits as long
// as he likes, and for no other shard's.
func (e *logEnds) of(ctx context.Context, shard string, ask func(ctx context.Context, shard string) ([]int64, error)) ([]int64, error) {
	if had, ok := e.fresh(shard); ok {
		return had, nil
	}
	return e.asking.do(ctx, shard, func(ctx context.Context) ([]int64, error) {
		if had, ok := e.fresh(shard); ok { // the answer before this one
			return had, nil
		}
		offsets, err := ask(ctx, shard)
		if err == nil {
			e.keep(shard, offsets)
		}
		return offsets, err
	})
}

// fresh gives an answer that is not old.
func (e *logEnds) fresh(shard string) ([]int64, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	had, ok := e.seen[shard]
	return had.offsets, ok && time.Since(had.at) < time.Second
}

// keep remembers an answer.
func (e *logEnds) keep(shard string, offsets []int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen == nil {
		e.seen = map[string]logEnd{}
	}
	e.seen[shard] = logEnd{time.Now(), offsets}
}

// forecastProgress shows a forecast.
func forecastProgress(p *contract.Progress, f replication.Forecast) {
	p.Pace, p.Backlog, p.ApplyPerSecond, p.WritePerSecond = string(f.Pace), f.Backlog, f.Apply, f.Write
	p.CatchUp, p.Limit = contract.Duration(f.Left), f.Limit
	if text := f.String(); text != "" {
		if p.Detail != "" {
			text = p.Detail + "; " + text
		}
		p.Detail = text
	}
}

// wordOf gives what the lanes of a leg say about themselves.
func wordOf(in contract.DirectionInput, lanes []replication.Status, rates replication.Rates, f replication.Forecast) metadata.Word {
	w := contract.LanesWord{
		Direction: in.Direction, LatencyP99MS: float64(rates.Latency.P99.Microseconds()) / 1000, LatencyCount: rates.Latency.Count,
	}
	if f.Pace == replication.NotConverging {
		w.NotConverging = f.String()
	}
	for _, l := range lanes {
		w.LagMS = max(w.LagMS, float64(l.Lag.Microseconds())/1000)
	}
	b, _ := json.Marshal(w) // numbers and one text
	return metadata.Word{Migration: in.Migration, Lanes: b}
}

// keepWords writes down what the lanes of a move say, of all legs at once. A gate that
// does not find it refuses, so a failure is only logged.
func (a *Activities) keepWords(ctx context.Context, said []metadata.Word) {
	err := a.words.keep(ctx, &a.crowd, a.Store, said...)
	if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
		a.Logger.WarnContext(ctx, "The lanes' word is not kept", slog.Int64("migration", int64(said[0].Migration)), slog.Any("error", err))
	}
}

func lanesProgress(p *contract.Progress, lanes []replication.Status, rates replication.Rates) {
	var lag time.Duration
	p.Documents, p.Detail = 0, ""
	for _, l := range lanes {
		p.Documents += l.Applied
		lag = max(lag, l.Lag)
		if l.Trouble != "" {
			p.Detail = fmt.Sprintf("lane %d waits: %s", l.Partition, l.Trouble)
		}
		if l.Parked > 0 {
			p.Detail = fmt.Sprintf("%d documents wait for a unique key", l.Parked)
		}
	}
	p.LagMS = lag.Milliseconds()
	p.LatencyP99MS = float64(rates.Latency.P99.Microseconds()) / 1000
}

// lanes makes the lanes of a leg with what they need on both shards, and says which shard they apply to.
func (a *Activities) lanes(ctx context.Context, l leg) (*replication.Lanes, *shard.Set, error) {
	in := l.DirectionInput
	e, err := a.ends(ctx, in)
	if err != nil {
		return nil, nil, err
	}
	if err := a.reopen(ctx, in, e); err != nil {
		return nil, nil, err
	}
	if err := e.to.EnsureApplierRole(ctx, in.To, in.Migration, in.Direction); err != nil {
		return nil, nil, err
	}
	side, err := a.Sides.side(ctx, in.To.Shard)
	if err != nil {
		return nil, nil, err
	}
	applier, err := e.to.Client(chunk.ApplierUser)
	if err != nil {
		return nil, nil, err
	}
	from, windows, err := a.laneStart(ctx, l)
	if err != nil {
		return nil, nil, err
	}
	settled, err := a.settled(ctx, l)
	if err != nil {
		return nil, nil, err
	}
	catalog, err := a.Store.Collections(ctx, databaseOf(in.Chunk))
	if err != nil {
		return nil, nil, err
	}
	var definitions replication.Definitions
	if in.OnDDL == contract.FollowOnDDL {
		definitions = a.definitions(e.to, in.From, in.To)
	}
	ls, err := replication.NewLanes(replication.Config{
		Direction: replication.Direction{
			Migration: in.Migration, Attempt: in.Direction, Source: in.From, Target: in.To,
			Partitions: a.Settings.Partitions, From: from,
			Lead: l.lead, Group: l.group, Keep: l.copies, Settled: settled,
		},
		Target: applier, Log: a.replay(), Sessions: side, Reports: reportsPort{a.Store}, Windows: windows, Definitions: definitions,
		OwnExpiry:            func(collection string, index bson.Raw) bool { return shard.OwnExpiry(catalog, collection, index) },
		Fold:                 replication.FoldOptions{SortNewFields: e.from.Shard().Capabilities.SortsNewFields},
		KeepsEmptyTimestamps: e.to.Shard().Capabilities.KeepsEmptyTimestamps,
		JoinsWrites:          e.to.Shard().Capabilities.JoinsWrites,
		IdleSave:             func() time.Duration { return a.crowd.every(time.Second, longestIdle) },
		Metrics:              a.Metrics.Lanes, Points: a.Stops, Logger: a.Logger,
	})
	return ls, e.to, err
}

// longestIdle is how rarely the lanes of a crowd save where they stand while only
// others' events come: each save is a transaction on the target, and who takes a
// lane over reads so much of its log again. A verification that waits for one still comes
// in time for the gate.
const longestIdle = verifiedWithin - longestUnverified - time.Second

// reopen lets lanes run again that an attempt closed which then went back. A
// direction whose attempt was published stays closed for ever.
func (a *Activities) reopen(ctx context.Context, in contract.DirectionInput, e ends) error {
	attempts, err := a.Store.Attempts(ctx, in.Migration)
	if err != nil {
		return err
	}
	admin, err := e.to.Client(chunk.AdminUser)
	if err != nil {
		return err
	}
	for _, at := range attempts {
		if at.Direction != in.Direction {
			continue
		}
		switch at.State { //nolint:exhaustive // the others have closed nothing for good
		case chunk.AttemptAborted:
			if err := replication.ReopenLanes(ctx, admin, e.to, in.Migration, in.Direction, at.ID); err != nil {
				return err
			}
		case chunk.Published, chunk.Open, chunk.AttemptDone:
			return failure.New(failure.Lost, "lane.closed", "attempt %d was published: its lanes are over", at.ID)
		}
	}
	return nil
}

// laneStart finds where the direction begins in the source's log, and the
// windows of the import when it is the import's.
func (a *Activities) laneStart(ctx context.Context, in leg) (from []int64, w replication.Windows, err error) {
	m, err := a.Store.Migration(ctx, in.Migration)
	if err != nil {
		return nil, nil, err
	}
	marker := startMarker(m)
	if in.Direction != 0 {
		if marker, err = a.openMarker(ctx, m.Lead, in.Direction, in.From); err != nil {
			return nil, nil, err
		}
	}
	seams, err := a.findMarker(ctx, in.From.Shard, marker)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range seams {
		from = append(from, s.Offset)
	}
	if in.Direction != 0 {
		return from, nil, nil
	}
	imp := &bulkimport.Importer{Migration: m.ID, Slices: slicesPort{a.Store}}
	windows, err := imp.Windows(ctx)
	return from, windowsPort{windows}, err
}

// openMarker is where the log of a placement begins that an attempt has opened.
func (a *Activities) openMarker(ctx context.Context, lead chunk.MigrationID, attempt chunk.AttemptID, opened chunk.Placement) (chunk.Marker, error) {
	at, err := a.Store.Attempt(ctx, attempt)
	return chunk.Marker{Kind: chunk.OpenMarker, Migration: lead, Attempt: attempt, Placement: opened.ID, At: at.CreatedAt}, err
}

// windowsPort gives lanes the import's windows.
type windowsPort struct{ windows bulkimport.Windows }

var _ replication.Windows = windowsPort{}

// Window implements [replication.Windows].
func (p windowsPort) Window(collection string, id bson.RawValue) (replication.Window, bool) {
	lo, hi, err := p.windows.Window(collection, id)
	if err != nil || hi.IsZero() {
		return replication.Window{}, false
	}
	return replication.Window{Lo: lo, Hi: hi}, true
}

// reportsPort keeps what lanes could not apply in the metadata.
type reportsPort struct{ store *metadata.Store }

var _ replication.Reports = reportsPort{}

// Quarantine implements [replication.Reports].
func (p reportsPort) Quarantine(ctx context.Context, r replication.Report) error {
	b, err := r.Event.Encode()
	if err != nil {
		return err
	}
	return p.store.Quarantine(ctx, metadata.Quarantined{Lane: r.Lane, Seq: r.Seq, Event: b, Reason: r.Code + ": " + r.Reason})
}

// Diverged implements [replication.Reports]: it stops the lane just as well.
func (p reportsPort) Diverged(ctx context.Context, r replication.Report) error {
	return p.Quarantine(ctx, r)
}

// ReplicateUntilInSync waits until a marker goes through the lane of every leg within the
// lag that counts as in sync, three times in a row.
func (a *Activities) ReplicateUntilInSync(ctx context.Context, in contract.DirectionInput) (contract.SyncResult, error) {
	var last time.Duration
	err := beating(ctx, func() any { return contract.SyncResult{LagMS: last.Milliseconds()} }, func(ctx context.Context) error {
		for good := 0; good < 3; {
			lag, err := a.probeAll(ctx, in)
			if err != nil {
				return err
			}
			last = lag
			if good++; lag > a.Settings.SyncLag {
				good = 0
			}
		}
		return nil
	})
	return contract.SyncResult{LagMS: last.Milliseconds()}, err
}
