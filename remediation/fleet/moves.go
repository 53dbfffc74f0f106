package fleet

import (
	"math/rand/v2"
	"time"

	"drover/remediation"
)

// How a move goes, as far as its shards are concerned.
const (
	importTakes   = 2 * time.Hour
	gateRetry     = 15 * time.Second // once more each time, up to
	gateRetryMost = 5 * time.Minute
	windowTakes   = 300 * time.Millisecond
	moveGivesUp   = 48 * time.Hour
)

// move brings a chunk from one shard to another.
type move struct {
	from, to  *shard
	asked     time.Duration // when its first gate was
	switching bool          // past import and replication
	refused   int           // gates that said no
}

// scheduleMoves draws the moves of a run.
func (w *world) scheduleMoves() {
	r := rand.New(rand.NewPCG(w.cfg.Seed, 4)) //nolint:gosec // a simulation
	for range w.cfg.Moves * w.cfg.Days {
		from := r.IntN(w.cfg.Shards)
		to := (from + 1 + r.IntN(w.cfg.Shards-1)) % w.cfg.Shards
		m := &move{from: w.shards[from], to: w.shards[to]}
		w.after(time.Duration(r.Float64()*float64(w.cfg.span())), func() {
			w.report.Moves++
			w.moving[m] = true
			w.after(w.about(importTakes), func() {
				m.asked = w.now
				m.switching = true
				w.gate(m)
			})
		})
	}
}

// gate tries to switch: both leases shared, both shards able, else again later.
func (w *world) gate(m *move) {
	switch {
	case w.now-m.asked > moveGivesUp:
		w.report.MovesGivenUp++
		delete(w.moving, m)
		return
	case !calm(m.from) || !calm(m.to) || !w.share(m):
		m.refused++
		w.after(min(gateRetry*time.Duration(m.refused), gateRetryMost), func() { w.gate(m) })
		return
	}
	for _, s := range []*shard{m.from, m.to} {
		s.lease.attempts++
		if s.run != nil && s.run.acting {
			w.report.Races++
		}
	}
	w.after(windowTakes, func() { w.conclude(m) })
}

// calm reports whether a shard passes the gate: it takes writes, and every
// member that is there can be asked.
func calm(s *shard) bool {
	if s.mute {
		return false
	}
	for _, m := range s.truth.Members {
		switch m.State {
		case remediation.Healthy, remediation.Lagging, remediation.Down, remediation.Lost: // what is down is owed the barrier
		default:
			return false
		}
	}
	return true
}

// share takes both leases or none.
func (w *world) share(m *move) bool {
	if w.cfg.Leaseless {
		return true
	}
	if !m.from.lease.share() {
		return false
	}
	if !m.to.lease.share() {
		m.from.lease.unshare()
		return false
	}
	return true
}

// conclude ends an attempt: published, or back where it was when a shard lost
// its primary meanwhile.
func (w *world) conclude(m *move) {
	published := !m.from.mute && !m.to.mute
	for _, s := range []*shard{m.from, m.to} {
		s.lease.attempts--
		if !w.cfg.Leaseless {
			s.lease.unshare()
		}
	}
	if !published {
		w.report.AttemptsWentBack++
		w.after(gateRetry, func() { w.gate(m) })
		return
	}
	w.report.Switches++
	if waited := w.now - m.asked; waited > time.Second {
		w.report.SwitchesDelayed++
		w.report.longest(&w.report.SwitchDelayMax, waited)
	}
	delete(w.moving, m)
}
