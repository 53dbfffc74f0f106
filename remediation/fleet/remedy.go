package fleet

import (
	"slices"
	"strings"
	"time"

	"drover/remediation"
)

// How the remediator works.
const (
	watchEvery  = time.Minute
	leaseRetry  = time.Second
	leaseLasts  = time.Minute
	takeOver    = 10 * time.Second // a dead worker is noticed and another goes on
	longAbsence = 5 * time.Minute  // no worker at all
	personStep  = 10 * time.Minute // what a person needs for a step beside its own time
)

// run is one remediation under way, by the remediator or by a person.
type run struct {
	s       *shard
	person  bool
	course  remediation.Course
	plan    *remediation.Plan
	next    int // step of the plan
	asked   time.Duration
	granted bool
	acting  bool // in the middle of an operation
}

// watch looks at all shards that are not healthy and starts what may start.
func (w *world) watch() {
	w.after(watchEvery, w.watch)
	if len(w.sick) == 0 {
		return
	}
	w.begun = slices.DeleteFunc(w.begun, func(s remediation.Started) bool { return s.Ended && w.wall().Sub(s.At) >= time.Hour })
	var all []remediation.Candidate
	byName := map[string]*shard{}
	for _, s := range w.sorted() {
		if s.run != nil {
			continue
		}
		p := w.planFor(s)
		if len(p.Steps) == 0 {
			w.callIfNeeded(s)
			continue
		}
		byName[s.name] = s
		all = append(all, remediation.Candidate{Shard: s.name, Domain: s.domain, Health: p.From, Since: w.start.Add(s.since), Cost: p.Cost})
	}
	admitted, held := w.cfg.Rates.Admit(w.wall(), all, w.begun)
	for _, h := range held {
		w.report.Held[h.Reason]++
	}
	for _, c := range admitted {
		w.begun = append(w.begun, remediation.Started{Shard: c.Shard, Domain: c.Domain, At: w.wall(), Cost: c.Cost})
		w.begin(&run{s: byName[c.Shard]})
	}
}

// sorted lists the shards that are not in full health, by number.
func (w *world) sorted() []*shard {
	var all []*shard
	for i := range w.sick {
		all = append(all, w.shards[i])
	}
	slices.SortFunc(all, func(a, b *shard) int { return a.index - b.index })
	return all
}

// spares lists the machines that a shard may use: one of each kind in each zone
// of its layout. While a zone that it uses is lost it gets none: such a loss ends
// by itself, and 2,000 shards would copy all their data for it.
func (w *world) spares(s *shard) []remediation.Spare {
	var some []remediation.Spare
	for _, slot := range s.layout.Slots {
		if w.out[slot.Zone] {
			return nil
		}
		p := place{slot.Zone, slot.Instance}
		if p.instance == "" {
			p.instance = "m"
		}
		free := w.pool[p]
		taken := 0
		for _, x := range some {
			if (place{x.Zone, x.Instance}) == p {
				taken++
			}
		}
		if taken == 0 && len(free) > 0 {
			some = append(some, remediation.Spare{Host: free[0], Zone: p.zone, Instance: p.instance})
		}
	}
	return some
}

// planFor plans for a shard that nobody remediates; the plan stands until the
// shard or the machines on offer change.
func (w *world) planFor(s *shard) *remediation.Plan {
	v := clone(s.truth)
	v.Spares = w.spares(s)
	places := make([]string, len(v.Spares))
	for i, x := range v.Spares {
		places[i] = x.Zone + "/" + x.Instance
	}
	if offered := strings.Join(places, " "); s.planned != s.version+1 || s.offered != offered {
		p, err := s.planner.Plan(v)
		if err != nil {
			p = &remediation.Plan{Why: err.Error()}
		}
		s.plan, s.planned, s.offered = p, s.version+1, offered
	}
	return s.plan
}

// begin waits for the lease, then reserves machines and executes.
func (w *world) begin(r *run) {
	r.s.run, r.asked = r, w.now
	w.acquire(r, func() {
		r.s.truth.Spares = w.spares(r.s)
		for _, x := range r.s.truth.Spares {
			p := place{x.Zone, x.Instance}
			w.pool[p] = slices.DeleteFunc(w.pool[p], func(h string) bool { return h == x.Host })
		}
		w.report.Remediations++
		w.replan(r)
	})
}

// acquire asks for the exclusive lease until it is granted, then goes on; moves
// that copy to or from the shard are told.
func (w *world) acquire(r *run, then func()) {
	l := &r.s.lease
	if !w.cfg.Leaseless && !l.take(r) {
		w.after(leaseRetry, func() { w.acquire(r, then) })
		return
	}
	if !r.granted {
		w.report.longest(&w.report.LeaseWaitMax, w.now-r.asked)
	}
	r.granted = true
	for m := range w.moving {
		if !m.switching && (m.from == r.s || m.to == r.s) {
			w.report.MovesTold++
		}
	}
	then()
}

// replan makes a plan for what is seen, and goes on with it.
func (w *world) replan(r *run) {
	p, err := r.s.planner.Plan(r.s.truth)
	if err != nil {
		w.end(r)
		return
	}
	w.report.Plans++
	r.plan, r.next = p, 0
	switch r.course.Planned(len(p.Steps), p.Cost, p.Full) {
	case remediation.Execute:
		w.step(r)
	case remediation.PlansGrow, remediation.TooManyPlans:
		w.report.Grown++
		w.end(r)
		w.call(r.s)
	default:
		w.end(r)
	}
}

// end gives the lease and the machines back.
func (w *world) end(r *run) {
	for _, x := range r.s.truth.Spares {
		w.giveBack(x)
	}
	r.s.truth.Spares = nil
	r.s.version++
	r.s.lease.drop()
	r.s.run = nil
	if !r.person {
		for i := range w.begun {
			if w.begun[i].Shard == r.s.name {
				w.begun[i].Ended = true
			}
		}
	}
	if r.s.sick && w.cfg.Unaided {
		w.call(r.s)
	}
}

// giveBack puts a machine back into the pool.
func (w *world) giveBack(x remediation.Spare) {
	p := place{x.Zone, x.Instance}
	w.pool[p] = append(w.pool[p], x.Host)
}

// step performs the plan's next operation, or ends.
func (w *world) step(r *run) {
	if r.next == len(r.plan.Steps) {
		w.replan(r)
		return
	}
	o := r.plan.Steps[r.next].Operation
	if o.Preconditions(r.s.truth) != nil {
		w.report.Replans++
		w.replan(r)
		return
	}
	w.touch(r.s)
	r.acting = true
	w.report.Operations[o.Name()]++
	if remediation.Copies(o) {
		w.report.Rebuilds++
		w.open(r.s, o)
	}
	takes := w.takes(o)
	if r.person {
		takes += personStep
	}
	if !r.person && w.rng.Float64() < w.cfg.Crashes {
		w.after(w.about(takes), func() { w.crash(r, o) })
		return
	}
	w.after(takes, func() {
		w.effect(r.s, o)
		r.acting = false
		w.compare(r)
	})
}

// takes draws how long an operation takes.
func (w *world) takes(o remediation.Operation) time.Duration {
	switch o.(type) {
	case remediation.Rebuild, remediation.Replace:
		return w.about(5 * time.Hour)
	case remediation.Add:
		if remediation.Copies(o) {
			return w.about(5 * time.Hour)
		}
		return time.Minute
	case remediation.Await:
		return w.about(catchUpTakes)
	case remediation.StepDown, remediation.AwaitElection:
		return electionTakes
	default:
		return 5 * time.Second
	}
}

// touch notes an operation that meets an open attempt on its shard: the race
// that the lease is there to exclude.
func (w *world) touch(s *shard) {
	if s.lease.attempts > 0 {
		w.report.Races++
	}
}

// open begins a copy: the member is in its initial sync from now on.
func (w *world) open(s *shard, o remediation.Operation) {
	v := clone(s.truth)
	host := o.Subject()
	switch o := o.(type) {
	case remediation.Replace:
		v, host = o.Next(v), o.By
	case remediation.Add:
		v = o.Next(v)
	}
	if i := at(v, host); i >= 0 {
		v.Members[i].State = remediation.Rebuilding
	}
	w.effective(s, v)
	for m := range w.moving {
		if m.to == s && !m.switching {
			w.report.TargetsRebuiltDuringImport++
		}
	}
}

// effect lets an operation's change happen, if it still may.
func (w *world) effect(s *shard, o remediation.Operation) {
	v := clone(s.truth)
	switch o := o.(type) {
	case remediation.Rebuild:
		v = synced(v, o.Host, o.OplogMB)
	case remediation.Replace:
		v = synced(v, o.By, o.OplogMB)
	case remediation.Add:
		if o.Arbiter {
			if o.Preconditions(v) != nil {
				return
			}
			v = o.Next(v)
		} else {
			v = synced(v, o.Host, o.OplogMB)
		}
	case remediation.Await: // it came back by itself, or did not
		if i := at(v, o.Host); i < 0 || v.Members[i].State != remediation.Healthy && !w.returns(&v.Members[i]) {
			return
		}
	default:
		if o.Preconditions(v) != nil {
			return
		}
		v = o.Next(v)
	}
	w.touch(s)
	if due(v) {
		v = remediation.AwaitElection{}.Next(v)
	}
	w.effective(s, v)
}

// returns makes a member healthy whose way back ends now. Most are on their way
// because they were waited for.
func (w *world) returns(m *remediation.Member) bool {
	switch m.State {
	case remediation.Lagging, remediation.Recovering, remediation.Rebuilding:
		m.State = remediation.Healthy
		return true
	default:
		return false
	}
}

// synced ends an initial sync, if it is still under way.
func synced(v remediation.Vertex, host string, oplog int) remediation.Vertex {
	i := at(v, host)
	if i < 0 || v.Members[i].State != remediation.Rebuilding {
		return v
	}
	v.Members[i].State = remediation.Healthy
	if oplog != 0 {
		v.Members[i].OplogMB = oplog
	}
	return v
}

// effective makes the outcome of an operation the truth, and watches over the
// promise: no operation takes a majority away, or the writes.
func (w *world) effective(s *shard, v remediation.Vertex) {
	if s.truth.HasMajority() && !v.HasMajority() {
		w.report.LostMajorities++
	}
	if s.truth.Writable() && !v.Writable() {
		w.report.LostPrimaries++
	}
	w.change(s, v, "")
}

// compare reads the shard after a step: as predicted, or a new plan.
func (w *world) compare(r *run) {
	st := r.plan.Steps[r.next]
	if len(remediation.Differences(st.After, r.s.truth)) > 0 {
		w.report.Replans++
		w.replan(r)
		return
	}
	r.course.Performed(st.Cost)
	r.next++
	w.step(r)
}

// crash lets the worker die in the middle of an operation, which has happened or
// has not; what was begun on a server goes on there. A long absence loses the
// lease, and the next worker needs a new one.
func (w *world) crash(r *run, o remediation.Operation) {
	w.report.Crashes++
	if remediation.Copies(o) || w.rng.IntN(2) == 0 {
		w.effect(r.s, o)
	}
	r.acting = false
	gone := takeOver
	if w.rng.IntN(10) == 0 {
		gone = longAbsence
		w.after(leaseLasts, func() { r.s.lease.drop() })
	}
	w.after(gone, func() { w.acquire(r, func() { w.compare(r) }) })
}
