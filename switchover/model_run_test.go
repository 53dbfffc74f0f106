package switchover_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/switchover"
)

// writer writes to any placement that lets it, as a proxy with a stale route
// would: the check and the effect are two turns.
func writer(first int) func(*actor) {
	return func(a *actor) {
		w := a.w
		for n := first; !w.stop; n++ {
			p := chunk.PlacementID(1 + w.rnd.IntN(2))
			if w.allowed("w", p) {
				w.inflight[p]++
				for range 1 + w.rnd.IntN(3)*w.rnd.IntN(60) { // some hang for long between check and effect
					a.turn()
				}
				w.append(p, entry{write: n})
				w.inflight[p]--
				w.ack(n)
			}
			a.turn()
		}
	}
}

// reader checks I2: what was acknowledged before a read began is in it.
func reader(a *actor) {
	w := a.w
	for !w.stop {
		p := chunk.PlacementID(1 + w.rnd.IntN(2))
		if w.allowed("r", p) && w.missing[p] > 0 {
			w.violations = append(w.violations, fmt.Sprintf("turn %d: a read of placement %d misses %d writes", w.now, p, w.missing[p]))
		}
		a.turn()
	}
}

// lane copies the serving placement's log, entry by entry.
func lane(a *actor) {
	w := a.w
	for !w.stop {
		for n := 0; n < 4 && w.closedBy == 0 && w.lanePos < len(w.logs[w.laneFrom]); n++ {
			e := w.logs[w.laneFrom][w.lanePos]
			w.lanePos++
			to := 3 - w.laneFrom
			if e.write > 0 && !e.byLanes {
				w.append(to, entry{write: e.write, byLanes: true})
			}
		}
		a.turn()
	}
}

// supervisor is what the workflow does around attempts: it turns the lanes
// round after a publish and opens them again after a way back.
func supervisor(a *actor) {
	w := a.w
	for !w.stop {
		if w.closedBy != 0 {
			switch r := w.attempts[w.closedBy]; {
			case r.at.State == chunk.AttemptAborted:
				w.closedBy = 0
			case r.at.State == chunk.Open || r.at.State == chunk.AttemptDone:
				w.laneDir, w.laneFrom, w.closedBy = r.at.ID, r.at.Target.ID, 0
				w.lanePos = slices.IndexFunc(w.logs[w.laneFrom], func(e entry) bool {
					return e.marker == chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: r.at.ID, Placement: r.at.Target.ID}.Key()
				})
			}
		}
		a.turn()
	}
}

func newSwitcher(p *ports) *switchover.Switcher {
	c := switchover.Defaults()
	c.FenceDeadline, c.LanePoll = time.Hour, time.Microsecond // the ledger's logical clock decides
	return &switchover.Switcher{Config: c, Ledger: p, Shards: p, Proxies: p, Busy: p, Log: slog.New(slog.DiscardHandler)}
}

// coordinator makes attempts until the world stops, dying now and then; a dead
// one that comes back late is a zombie: it goes on where it was.
func coordinator(a *actor) {
	w := a.w
	a.lose = true
	ctx := context.Background()
	for !w.stop {
		id := chunk.AttemptID(len(w.attempts) + 1)
		if id > 1 && !w.attempts[id-1].at.State.Terminal() {
			a.turn() // one open attempt at a time: the metadata sees to it
			continue
		}
		src, dst := placementA, placementB
		if w.serving == placementB.ID {
			src, dst = dst, src
		}
		w.attempts[id] = &row{at: switchover.Attempt{ID: id, Migration: 7, Direction: w.laneDir, State: chunk.Preparing, Source: src, Target: dst}}
		life := 1 + w.rnd.IntN(300)
		p := &ports{a: a, crash: func() bool { life--; return life < 0 }}
		s := newSwitcher(p)
		err := s.Prepare(ctx, id)
		if err == nil {
			_, err = s.Fence(ctx, id, nil)
		}
		if err == nil {
			err = s.PublishAndOpen(ctx, switchover.PublishInput{Attempt: id})
		}
		if err == nil {
			err = s.Conclude(ctx, id)
		}
		if err != nil && w.rnd.IntN(2) == 0 {
			_, _ = newSwitcher(&ports{a: a, crash: func() bool { return false }}).Settle(ctx, id, "the coordinator says so")
		}
		if w.attempts[id].at.State == chunk.Preparing { // a restarted workflow settles what never was fenced
			_, _ = newSwitcher(&ports{a: a, crash: func() bool { return false }}).Settle(ctx, id, "never fenced")
		}
		if w.attempts[id].at.State == chunk.Open {
			_ = newSwitcher(&ports{a: a, crash: func() bool { return false }}).Conclude(ctx, id)
		}
		a.turn()
	}
}

func watchdog(a *actor) {
	w := a.w
	for quiet := 0; quiet < 50; {
		d := &switchover.Watchdog{
			Switcher: newSwitcher(&ports{a: a, crash: func() bool { return false }}),
			Metrics:  switchover.NewWatchdogMetrics(prometheus.NewRegistry()),
		}
		ctx := context.Background()
		open, _ := d.Switcher.Ledger.OpenAttempts(ctx)
		for _, at := range open {
			if at.Overdue {
				_ = d.End(ctx, at)
			}
		}
		if w.stop {
			quiet++
		}
		a.turn()
	}
}

// TestInvariantsUnderCrashes runs the protocol with crashes, lost answers,
// watchdogs and applications with stale routes in many orders, and checks I1 to
// I4. A seed that fails is printed and can be run again alone.
func TestInvariantsUnderCrashes(t *testing.T) {
	t.Parallel()
	published := 0
	for seed := range uint64(300) {
		w := newWorld(seed)
		w.run(6000, writer(1), writer(1_000_000), reader, reader, lane, supervisor, coordinator, watchdog, watchdog)
		require.Empty(t, w.violations, "seed %d", seed)
		for id, r := range w.attempts {
			require.True(t, r.at.State.Terminal() || r.at.State == chunk.Open || r.at.State == chunk.Preparing,
				"seed %d: attempt %d ended as %s", seed, id, r.at.State)
			if r.at.Token > 0 {
				published++
			}
		}
		for n := range w.acked {
			require.Equal(t, 1, w.has[w.serving][n], "seed %d: write %d on the published placement", seed, n)
		}
		require.True(t, w.allowed("w", w.serving), "seed %d: nobody can write", seed)
		require.False(t, w.allowed("w", 3-w.serving), "seed %d: the old placement is open", seed)
	}
	require.Greater(t, published, 100, "the runs must really switch")
}
