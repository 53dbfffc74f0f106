package fleet

import (
	"math/rand/v2"
	"slices"
	"time"

	"drover/remediation"
)

// How long what happens by itself takes.
const (
	electionTakes = 12 * time.Second
	catchUpTakes  = 20 * time.Minute // of a zone that is back
	zoneStaysOut  = 4 * time.Hour
	machineTakes  = 48 * time.Hour // until a broken one is replaced in the pool
)

// shard is one shard as it really is.
type shard struct {
	index   int
	name    string
	domain  string
	layout  remediation.Layout
	planner *remediation.Planner
	truth   remediation.Vertex // its spares are the machines that its remediation has reserved
	lease   lease
	away    map[string]remediation.State // members whose zone is lost, with what they were

	version   int           // counts changes of truth
	sick      bool          // not in full health
	since     time.Duration // of that
	cause     Kind          // of that
	mute      bool          // takes no writes
	muteSince time.Duration
	waitsFor  bool // a person was called
	run       *run

	planned int // version that plan is for, counted from 1
	offered string
	plan    *remediation.Plan
}

// change makes v the truth, and keeps the accounts.
func (w *world) change(s *shard, v remediation.Vertex, cause Kind) {
	had := s.truth.HasMajority()
	s.truth = v
	s.version++
	if had && !v.HasMajority() && cause != "" {
		w.report.MajoritiesLostToFaults++
	}
	full := s.planner.Health(v) == s.planner.Full()
	switch {
	case !full && !s.sick:
		s.sick, s.since, s.cause = true, w.now, cause
		w.sick[s.index] = true
		w.report.Cases++
		if w.cfg.Unaided && cause != ZoneLoss { // such a loss ends by itself
			w.call(s)
		}
	case full && s.sick:
		w.recovered(s)
	}
	switch writable := v.Writable(); {
	case !writable && !s.mute:
		s.mute, s.muteSince = true, w.now
	case writable && s.mute:
		s.mute = false
		w.report.UnwritableHours += (w.now - s.muteSince).Hours()
	}
	if due(v) {
		version := s.version
		w.after(electionTakes, func() {
			if s.version == version {
				w.settle(s)
			}
		})
	}
}

// due reports whether an election is.
func due(v remediation.Vertex) bool { return remediation.AwaitElection{}.Preconditions(v) == nil }

// settle lets the election happen that is due.
func (w *world) settle(s *shard) {
	if due(s.truth) {
		w.change(s, remediation.AwaitElection{}.Next(s.truth), "")
	}
}

// recovered closes a case.
func (w *world) recovered(s *shard) {
	s.sick, s.waitsFor = false, false
	delete(w.sick, s.index)
	w.report.heal(s.cause, w.now-s.since)
}

// close adds what was still open at the end.
func (w *world) close() {
	for _, s := range w.shards {
		if s.sick {
			w.report.hours(s.cause, w.now-s.since)
			w.report.OpenCases++
		}
		if s.mute {
			w.report.UnwritableHours += (w.now - s.muteSince).Hours()
		}
	}
}

// clone copies v, spares too.
func clone(v remediation.Vertex) remediation.Vertex {
	return remediation.Vertex{Members: slices.Clone(v.Members), Spares: slices.Clone(v.Spares)}
}

// at gives the place of a host among the members, -1 when it is none.
func at(v remediation.Vertex, host string) int {
	return slices.IndexFunc(v.Members, func(m remediation.Member) bool { return m.Host == host })
}

// strike makes a fault.
func (w *world) strike(f fault) {
	r := rand.New(rand.NewPCG(f.seed, 3)) //nolint:gosec // a simulation
	s := w.shards[f.shard]
	switch f.kind {
	case Misconfigured:
		v := remediation.Misconfigure(r, s.layout, s.truth)
		for _, m := range s.truth.Members {
			if at(v, m.Host) < 0 && m.State != remediation.Lost { // thrown out: the machine is there
				w.giveBack(remediation.Spare{Host: m.Host, Zone: m.Zone, Instance: m.Instance})
			}
		}
		w.change(s, v, f.kind)
	case NodeDown:
		state := remediation.Down
		if r.IntN(5) < 2 {
			state = remediation.Lost
		}
		w.fell(s, r.IntN(len(s.truth.Members)), state, f.kind)
	case Stalled:
		w.fell(s, r.IntN(len(s.truth.Members)), remediation.Stalled, f.kind)
	case ZoneLoss:
		zones := []string{"a", "b", "c"}
		w.loseZone(zones[r.IntN(len(zones))], zoneStaysOut/2+time.Duration(r.Int64N(int64(zoneStaysOut))))
	}
}

// fell gives a member another state.
func (w *world) fell(s *shard, i int, state remediation.State, cause Kind) {
	v := clone(s.truth)
	m := &v.Members[i]
	if w.out[m.Zone] || m.State == remediation.Lost {
		return
	}
	m.State = state
	if state != remediation.Stalled {
		m.Primary = false
	}
	if state == remediation.Lost {
		bought := place{m.Zone, m.Instance}
		w.after(machineTakes, func() { w.buy(bought) })
	}
	w.change(s, v, cause)
}

// loseZone takes every member of a zone away, and brings it back.
func (w *world) loseZone(zone string, lasting time.Duration) {
	if w.out[zone] {
		return
	}
	w.out[zone] = true
	for _, s := range w.shards {
		v, hit := clone(s.truth), false
		for i := range v.Members {
			if m := &v.Members[i]; m.Zone == zone && m.State != remediation.Lost {
				s.away[m.Host] = m.State
				m.State, m.Primary, hit = remediation.Lost, false, true
			}
		}
		if hit {
			w.change(s, v, ZoneLoss)
		}
	}
	w.after(lasting, func() { w.returnZone(zone) })
}

// returnZone brings a zone's members back: they catch up first.
func (w *world) returnZone(zone string) {
	delete(w.out, zone)
	for _, s := range w.shards {
		v, back := clone(s.truth), []string(nil)
		for i := range v.Members {
			m := &v.Members[i]
			was, away := s.away[m.Host]
			if !away || m.Zone != zone {
				continue
			}
			delete(s.away, m.Host)
			switch was {
			case remediation.Down, remediation.Stalled:
				m.State = remediation.Down
			default:
				m.State = remediation.Recovering
				back = append(back, m.Host)
			}
		}
		if len(back) > 0 {
			w.change(s, v, ZoneLoss)
		}
		w.after(w.about(catchUpTakes), func() {
			w.caughtUp(s, back)
			if s.sick && w.cfg.Unaided {
				w.call(s)
			}
		})
	}
}

// caughtUp makes members healthy that are on their way.
func (w *world) caughtUp(s *shard, hosts []string) {
	v := clone(s.truth)
	for _, h := range hosts {
		if i := at(v, h); i >= 0 && v.Members[i].State == remediation.Recovering {
			v.Members[i].State = remediation.Healthy
		}
	}
	w.change(s, v, "")
}
