package switchover_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"drover/chunk"
	"drover/internal/failure"
	"drover/switchover"
)

// world is two placements of one chunk, a metadata row, lanes, and applications
// that use any route they like. Actors take turns: only the one that holds the
// baton runs, and a seeded choice says who is next, so that a failing run can be
// repeated by its seed.
type world struct {
	rnd  *rand.Rand
	now  int // logical time: one for each turn
	stop bool

	roles    map[string]bool // exists -> held by the data-plane user
	logs     map[chunk.PlacementID][]entry
	inflight map[chunk.PlacementID]int
	fences   map[chunk.PlacementID]chunk.AttemptID
	opened   map[chunk.PlacementID]chunk.AttemptID
	term     map[string]int64

	attempts map[chunk.AttemptID]*row
	serving  chunk.PlacementID
	tokens   chunk.Token
	laneDir  chunk.AttemptID   // direction that runs
	laneFrom chunk.PlacementID // and where it comes from
	lanePos  int
	closedBy chunk.AttemptID

	acked      map[int]bool
	has        map[chunk.PlacementID]map[int]int // how often a write stands in a placement's log
	missing    map[chunk.PlacementID]int         // acknowledged writes that a placement lacks
	violations []string
}

// append adds a write to a placement's log.
func (w *world) append(p chunk.PlacementID, e entry) {
	w.logs[p] = append(w.logs[p], e)
	if w.has[p] == nil {
		w.has[p] = map[int]int{}
	}
	if w.has[p][e.write] == 0 && w.acked[e.write] {
		w.missing[p]--
	}
	w.has[p][e.write]++
}

// ack notes an acknowledged write.
func (w *world) ack(n int) {
	w.acked[n] = true
	for _, p := range []chunk.PlacementID{1, 2} {
		if w.has[p][n] == 0 {
			w.missing[p]++
		}
	}
}

// entry is one write or one marker of a placement's log.
type entry struct {
	write   int    // > 0
	marker  string // or a marker's key
	byLanes bool
}

// row is the metadata's attempt.
type row struct {
	at       switchover.Attempt
	deadline int
}

var (
	placementA = chunk.Placement{ID: 1, Chunk: "d/0001", Shard: "a", Database: "d_0001_p1"}
	placementB = chunk.Placement{ID: 2, Chunk: "d/0001", Shard: "b", Database: "d_0001_p2"}
	errCrash   = errors.New("crash")
	errLostNet = errors.New("answer lost")
)

func newWorld(seed uint64) *world {
	w := &world{
		rnd:   rand.New(rand.NewPCG(seed, 1)),
		roles: map[string]bool{"w_p1_a0": true, "r_p1_a0": true},
		logs:  map[chunk.PlacementID][]entry{}, inflight: map[chunk.PlacementID]int{},
		fences: map[chunk.PlacementID]chunk.AttemptID{}, opened: map[chunk.PlacementID]chunk.AttemptID{},
		acked: map[int]bool{}, has: map[chunk.PlacementID]map[int]int{}, missing: map[chunk.PlacementID]int{},
		term: map[string]int64{"a": 1, "b": 1}, attempts: map[chunk.AttemptID]*row{}, serving: 1, laneFrom: 1,
	}
	return w
}

// actor is one thread of the world; turn waits until it is its turn.
type actor struct {
	w    *world
	wake chan struct{}
	back chan struct{}
	dead bool
	lose bool // answers may be lost
}

// run lets the actors take turns until all have ended or turns are used up.
func (w *world) run(turns int, fns ...func(*actor)) {
	var wg sync.WaitGroup
	back := make(chan struct{})
	var actors []*actor
	for _, fn := range fns {
		a := &actor{w: w, wake: make(chan struct{}), back: back}
		actors = append(actors, a)
		wg.Go(func() {
			<-a.wake
			fn(a)
			a.dead = true
			a.back <- struct{}{}
		})
	}
	for {
		alive := slices.DeleteFunc(slices.Clone(actors), func(a *actor) bool { return a.dead })
		if len(alive) == 0 {
			break
		}
		w.now++
		if w.now > turns {
			w.stop = true
		}
		a := alive[w.rnd.IntN(len(alive))]
		a.wake <- struct{}{}
		<-back
	}
	wg.Wait()
}

// turn gives the baton back and waits for the next one.
func (a *actor) turn() {
	a.back <- struct{}{}
	<-a.wake
}

// ports are one process's way to the world; a crashed process gets errors only.
type ports struct {
	mu    sync.Mutex // calls that are made side by side come one by one, in any order
	a     *actor
	crash func() bool
	over  bool
}

// call takes a turn before and after an effect; either the request or the answer may be lost.
func (p *ports) call(do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.a.turn()
	if p.over || p.crash() {
		p.over = true
		return errCrash
	}
	err := do()
	p.a.turn()
	if p.over || p.crash() {
		p.over = true
		return errCrash
	}
	if err == nil && p.a.lose && p.a.w.rnd.IntN(60) == 0 {
		return errLostNet
	}
	return err
}

type side struct {
	*ports
	shard string
}

func (p *ports) Side(_ context.Context, shard string) (switchover.Side, error) {
	return &side{p, shard}, nil
}

func (s *side) CreateGrants(_ context.Context, p chunk.Placement, a chunk.AttemptID) error {
	return s.call(func() error {
		for _, r := range []string{chunk.WriteGrant(p.ID, a), chunk.ReadGrant(p.ID, a)} {
			if _, ok := s.a.w.roles[r]; !ok {
				s.a.w.roles[r] = false
			}
		}
		return nil
	})
}

func (s *side) Foresee(context.Context, chunk.Placement) error {
	return s.call(func() error { return nil })
}

func (s *side) Forget(chunk.Placement) {}

func (s *side) DropGrants(_ context.Context, p chunk.Placement, keep chunk.AttemptID, access switchover.Access) (n int, err error) {
	err = s.call(func() error {
		for a := range keep { // strictly older generations
			name := chunk.WriteGrant(p.ID, a)
			if access == switchover.Reads {
				name = chunk.ReadGrant(p.ID, a)
			}
			if _, ok := s.a.w.roles[name]; ok {
				delete(s.a.w.roles, name)
				n++
			}
		}
		return nil
	})
	return n, err
}

func (s *side) Barrier(context.Context, chunk.Placement, switchover.Access) ([]string, error) {
	return nil, s.call(func() error { return nil })
}

func (s *side) GrantToData(_ context.Context, p chunk.Placement, a chunk.AttemptID) error {
	return s.call(func() error {
		for _, r := range []string{chunk.WriteGrant(p.ID, a), chunk.ReadGrant(p.ID, a)} {
			if _, ok := s.a.w.roles[r]; !ok {
				return failure.New(failure.Lost, "grant.role_gone", "role %s is gone", r)
			}
		}
		s.a.w.roles[chunk.WriteGrant(p.ID, a)], s.a.w.roles[chunk.ReadGrant(p.ID, a)] = true, true
		s.a.w.checkOneWriter()
		return nil
	})
}

func (s *side) Identity(context.Context) (id switchover.Identity, err error) {
	err = s.call(func() error { id.Term = s.a.w.term[s.shard]; return nil })
	return id, err
}

func (s *side) Blind() bool { return false }

func (s *side) Drain(_ context.Context, p chunk.Placement, _ bool) (string, error) {
	for {
		n := 0
		if err := s.call(func() error { n = s.a.w.inflight[p.ID]; return nil }); err != nil {
			return "", err
		}
		if n == 0 {
			return "counted", nil
		}
	}
}

func (s *side) WriteFence(_ context.Context, p chunk.Placement, a chunk.AttemptID, _ int64, _ time.Time) error {
	return s.call(func() error { s.a.w.fences[p.ID] = max(s.a.w.fences[p.ID], a); return nil })
}

func (s *side) LiftFence(context.Context, chunk.Placement, chunk.AttemptID) error {
	return s.call(func() error { return nil })
}

func (s *side) WriteMarker(_ context.Context, m chunk.Marker) error {
	return s.call(func() error {
		for _, e := range s.a.w.logs[m.Placement] {
			if e.marker == m.Key() {
				return nil
			}
		}
		s.a.w.logs[m.Placement] = append(s.a.w.logs[m.Placement], entry{marker: m.Key()})
		return nil
	})
}

func (s *side) Opened(_ context.Context, p chunk.Placement) (a chunk.AttemptID, err error) {
	err = s.call(func() error { a = s.a.w.opened[p.ID]; return nil })
	return a, err
}

func (s *side) WriteOpenRecord(_ context.Context, p chunk.Placement, a chunk.AttemptID, _ chunk.Token) error {
	return s.call(func() error { s.a.w.opened[p.ID] = max(s.a.w.opened[p.ID], a); return nil })
}

func (s *side) SetForward(context.Context, chunk.Placement, chunk.AttemptID, switchover.Forward) error {
	return s.call(func() error { return nil })
}

func (s *side) Passed(_ context.Context, _ chunk.MigrationID, d chunk.AttemptID, _ chunk.Placement, key string) (ok bool, err error) {
	err = s.call(func() error {
		w := s.a.w
		if w.laneDir == d {
			ok = slices.ContainsFunc(w.logs[w.laneFrom][:w.lanePos], func(e entry) bool { return e.marker == key })
		}
		return nil
	})
	return ok, err
}

func (s *side) Parked(context.Context, chunk.MigrationID) (int64, error) { return 0, nil }

func (s *side) CloseLanes(_ context.Context, _ chunk.MigrationID, d, by chunk.AttemptID) error {
	return s.call(func() error {
		if s.a.w.laneDir == d {
			s.a.w.closedBy = max(by, s.a.w.closedBy)
		}
		return nil
	})
}

func (s *side) DropApplierRole(context.Context, chunk.Placement, chunk.MigrationID, chunk.AttemptID) error {
	return s.call(func() error { return nil })
}
func (s *side) ParkTTL(context.Context, chunk.Placement, chunk.AttemptID) error    { return nil }
func (s *side) RestoreTTL(context.Context, chunk.Placement, chunk.AttemptID) error { return nil }
func (s *side) Pay(context.Context, string, chunk.Placement, switchover.Access) error {
	return nil
}

func (p *ports) Owe(context.Context, switchover.Attempt, switchover.Access, []string) error {
	return nil
}
func (p *ports) Owed(context.Context) ([]switchover.Owed, error) { return nil, nil }
func (p *ports) Paid(context.Context, switchover.Owed) error     { return nil }

func (p *ports) Attempt(_ context.Context, id chunk.AttemptID) (at switchover.Attempt, err error) {
	err = p.call(func() error { at = p.a.w.view(p.a.w.attempts[id]); return nil })
	return at, err
}

func (w *world) view(r *row) switchover.Attempt {
	at := r.at
	at.Unbroken = w.rnd.IntN(4) > 0 // now and then the server has restarted
	at.Overdue = r.deadline > 0 && (w.stop || w.now > r.deadline) || r.at.State == chunk.AttemptAborting && r.deadline == 0
	return at
}

func (p *ports) OpenAttempts(context.Context) (out []switchover.Attempt, err error) {
	err = p.call(func() error {
		for _, r := range p.a.w.attempts {
			if !r.at.State.Terminal() {
				out = append(out, p.a.w.view(r))
			}
		}
		return nil
	})
	return out, err
}

func (p *ports) Advance(_ context.Context, id chunk.AttemptID, from, to chunk.AttemptState, o switchover.AdvanceOptions) (at switchover.Attempt, err error) {
	err = p.call(func() error {
		r := p.a.w.attempts[id]
		if r.at.State != from || !from.CanBecome(to) {
			return failure.New(failure.Lost, "attempt.not_in_state", "attempt %d is %s", id, r.at.State)
		}
		r.at.State = to
		if o.Deadline > 0 {
			r.deadline = p.a.w.now + 1200
		}
		at = p.a.w.view(r)
		return nil
	})
	return at, err
}

func (p *ports) Publish(_ context.Context, in switchover.PublishInput) (t chunk.Token, err error) {
	err = p.call(func() error {
		r := p.a.w.attempts[in.Attempt]
		if r.at.State != chunk.Closing || p.a.w.now > r.deadline {
			return failure.New(failure.Lost, "attempt.not_in_state", "attempt %d is %s", in.Attempt, r.at.State)
		}
		p.a.w.tokens++
		r.at.State, r.at.Token = chunk.Published, p.a.w.tokens
		p.a.w.serving = r.at.Target.ID
		t = p.a.w.tokens
		return nil
	})
	return t, err
}

func (p *ports) GrantLock(ctx context.Context, _ string, do func(context.Context) error) error {
	return do(ctx)
}

func (p *ports) Listen(context.Context) (switchover.Words, error) { return p, nil }

func (p *ports) Wait(context.Context, chunk.AttemptID, switchover.Access, switchover.Patience) ([]string, error) {
	return nil, nil
}
func (p *ports) Close()                      {}
func (p *ports) Count(context.Context) error { return nil }

func (p *ports) ForeseeBusy(context.Context, chunk.MigrationID, chunk.Placement, chunk.Placement) (func(context.Context) (int, error), error) {
	return func(context.Context) (int, error) { return 0, nil }, nil
}

// checkOneWriter is I1.
func (w *world) checkOneWriter() {
	open := map[string]bool{}
	for name, held := range w.roles {
		var p, a int
		if n, _ := fmt.Sscanf(name, "w_p%d_a%d", &p, &a); n == 2 && held {
			open[fmt.Sprint(p)] = true
		}
	}
	if len(open) > 1 {
		w.violations = append(w.violations, fmt.Sprintf("turn %d: two placements are open for writes: %v", w.now, w.roles))
	}
}

// allowed reports whether the data-plane user holds a grant.
func (w *world) allowed(kind string, p chunk.PlacementID) bool {
	for name, held := range w.roles {
		var q, a int
		if n, _ := fmt.Sscanf(name, kind+"_p%d_a%d", &q, &a); n == 2 && held && chunk.PlacementID(q) == p {
			return true
		}
	}
	return false
}
