package fleet

import "drover/remediation"

// callIfNeeded calls a person where no plan leads to full health and nothing
// that ends by itself is in the way.
func (w *world) callIfNeeded(s *shard) {
	for _, slot := range s.layout.Slots {
		if w.out[slot.Zone] {
			return
		}
	}
	w.call(s)
}

// call calls a person, once a case, who begins some time later.
func (w *world) call(s *shard) {
	if s.waitsFor {
		return
	}
	s.waitsFor = true
	w.report.PersonCases++
	w.after(w.about(w.cfg.Person), func() { w.attend(s) })
}

// attend lets a person do what only a person may: start machines, buy some, and
// walk through the plan where there is no remediator.
func (w *world) attend(s *shard) {
	s.waitsFor = false
	if !s.sick || s.run != nil {
		return
	}
	for zone := range w.out {
		for _, slot := range s.layout.Slots {
			if slot.Zone == zone {
				w.report.PersonCases-- // looked, and will look again
				w.call(s)
				return
			}
		}
	}
	if len(w.planFor(s).Steps) == 0 {
		w.equip(s)
	}
	if w.cfg.Unaided && len(w.planFor(s).Steps) > 0 {
		w.begin(&run{s: s, person: true})
		return
	}
	if s.sick && w.cfg.Unaided {
		w.report.PersonCases--
		w.call(s)
	}
}

// equip brings machines for what is lost or missing, and starts again what is
// down where too few are left to decide anything.
func (w *world) equip(s *shard) {
	for _, slot := range s.layout.Slots {
		p := place{slot.Zone, slot.Instance}
		if p.instance == "" {
			p.instance = "m"
		}
		if len(w.pool[p]) == 0 {
			w.buy(p)
		}
	}
	if s.truth.Writable() {
		return
	}
	v, started := clone(s.truth), []string(nil)
	for i := range v.Members {
		if m := &v.Members[i]; m.State != remediation.Healthy {
			m.State = remediation.Recovering
			m.Primary = false
			started = append(started, m.Host)
		}
	}
	w.change(s, v, "")
	w.after(w.about(catchUpTakes), func() { w.caughtUp(s, started) })
}
