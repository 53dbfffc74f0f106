package switchover_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"drover/chunk"
	"drover/internal/failure"
	"drover/switchover"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is one set of rows and two shards, for tests of single steps. Its shards can
// be down, or hold every call until their context ends.
type fleet struct {
	mu        sync.Mutex
	rows      map[chunk.AttemptID]*switchover.Attempt
	down      map[string]error // by shard
	hang      map[string]bool
	granted   map[chunk.PlacementID]chunk.AttemptID
	opened    map[chunk.PlacementID]chunk.AttemptID
	fenced    map[chunk.PlacementID]int64 // lease of the fence
	ttl       map[chunk.PlacementID]string
	owes      []string // hosts that a barrier cannot reach
	behind    bool     // no lane passes a marker
	reigns    []int64  // terms of the source's primary, one for each question; the last one stays
	markers   []chunk.Marker
	owed      []switchover.Owed
	created   int      // times that roles were made
	ttlBroken bool     // restoring TTL fails at once
	met       []string // shards that were asked who their primary is
	paid      []string
	exchanged bool                                  // the metadata's server is another one at the next change
	forgotten []chunk.PlacementID                   // what a side keeps of a fence
	asked     chunk.AttemptState                    // the first attempt's, when it was asked what is busy
	counted   map[chunk.PlacementID]chunk.AttemptID // grants when the proxies were counted
	differ    error                                 // what the comparison under the fence says
	until     time.Time                             // deadline of the newest fence
	void      bool                                  // the roles that are to be granted are gone
	unlocked  []error                               // what giving back the next grant locks meets
	readsEnd  chan struct{}                         // closed when the read grants are dropped; proxies have writes under way until then
}

var errDown = errors.New("the shard does not answer")

func newFleet(states ...chunk.AttemptState) *fleet {
	f := &fleet{
		rows: map[chunk.AttemptID]*switchover.Attempt{}, down: map[string]error{}, hang: map[string]bool{},
		granted: map[chunk.PlacementID]chunk.AttemptID{}, opened: map[chunk.PlacementID]chunk.AttemptID{},
		fenced: map[chunk.PlacementID]int64{}, ttl: map[chunk.PlacementID]string{},
	}
	for i, s := range states {
		id := chunk.AttemptID(i + 1)
		src, dst := placementA, placementB
		if i > 0 { // other chunks, on shards of their own
			src.ID, src.Shard = chunk.PlacementID(10*i+1), "c"
			dst.ID, dst.Shard = chunk.PlacementID(10*i+2), "d"
		}
		f.rows[id] = &switchover.Attempt{ID: id, Migration: chunk.MigrationID(id), State: s, Source: src, Target: dst, Unbroken: true, Overdue: true}
	}
	return f
}

func (f *fleet) switcher() *switchover.Switcher {
	return &switchover.Switcher{
		Config: switchover.Defaults(), Ledger: f, Shards: f, Proxies: f, Busy: f, Log: slog.New(slog.DiscardHandler),
	}
}

func (f *fleet) watchdog() *switchover.Watchdog {
	return &switchover.Watchdog{
		Switcher: f.switcher(), Every: time.Millisecond, Metrics: switchover.NewWatchdogMetrics(prometheus.NewRegistry()),
	}
}

func (f *fleet) state(id chunk.AttemptID) chunk.AttemptState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows[id].State
}

// locked runs do under the fleet's lock.
func (f *fleet) locked(do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return do()
}

func (f *fleet) Attempt(_ context.Context, id chunk.AttemptID) (at switchover.Attempt, err error) {
	return at, f.locked(func() error { at = *f.rows[id]; return nil })
}

func (f *fleet) OpenAttempts(context.Context) (out []switchover.Attempt, err error) {
	return out, f.locked(func() error {
		for _, r := range f.rows {
			if !r.State.Terminal() {
				out = append(out, *r)
			}
		}
		return nil
	})
}

func (f *fleet) Advance(_ context.Context, id chunk.AttemptID, from, to chunk.AttemptState, o switchover.AdvanceOptions) (at switchover.Attempt, err error) {
	return at, f.locked(func() error {
		r := f.rows[id]
		if r.State != from {
			return failure.New(failure.Lost, "attempt.is_"+string(r.State), "attempt %d is %s", id, r.State)
		}
		r.State, r.Unbroken = to, r.Unbroken && !f.exchanged
		if to == chunk.Fencing {
			f.until = time.Now().Add(o.Deadline)
		}
		at = *r
		return nil
	})
}

func (f *fleet) Publish(_ context.Context, in switchover.PublishInput) (chunk.Token, error) {
	return 1, f.locked(func() error {
		r := f.rows[in.Attempt]
		if r.State != chunk.Closing {
			return failure.New(failure.Lost, "attempt.is_"+string(r.State), "attempt %d is %s", in.Attempt, r.State)
		}
		if !f.until.IsZero() && !time.Now().Before(f.until) {
			return failure.New(failure.Invalid, "attempt.deadline_passed", "attempt %d is closing past its deadline", in.Attempt)
		}
		r.State, r.Token = chunk.Published, 1
		return nil
	})
}

func (f *fleet) Owe(_ context.Context, at switchover.Attempt, a switchover.Access, hosts []string) error {
	return f.locked(func() error {
		for _, h := range hosts {
			f.owed = append(f.owed, switchover.Owed{Placement: at.Source, Access: a, Host: h, Attempt: at.ID})
		}
		return nil
	})
}

func (f *fleet) Owed(context.Context) (out []switchover.Owed, err error) {
	return out, f.locked(func() error { out = append(out, f.owed...); return nil })
}

func (f *fleet) Paid(_ context.Context, o switchover.Owed) error {
	return f.locked(func() error {
		for i, x := range f.owed {
			if x == o {
				f.owed = append(f.owed[:i:i], f.owed[i+1:]...)
				break
			}
		}
		return nil
	})
}

func (f *fleet) GrantLock(ctx context.Context, _ string, do func(context.Context) error) error {
	if err := do(ctx); err != nil {
		return err
	}
	return f.locked(func() (err error) {
		if len(f.unlocked) > 0 {
			err, f.unlocked = f.unlocked[0], f.unlocked[1:]
		}
		return err
	})
}
func (f *fleet) Listen(context.Context) (switchover.Words, error) { return f, nil }
func (f *fleet) Wait(ctx context.Context, _ chunk.AttemptID, _ switchover.Access, _ switchover.Patience) ([]string, error) {
	if f.readsEnd == nil {
		return nil, nil
	}
	select {
	case <-f.readsEnd:
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
func (f *fleet) Close() {}
func (f *fleet) Count(context.Context) error {
	return f.locked(func() error { f.counted = maps.Clone(f.granted); return nil })
}
func (f *fleet) ForeseeBusy(context.Context, chunk.MigrationID, chunk.Placement, chunk.Placement) (func(context.Context) (int, error), error) {
	return func(context.Context) (int, error) { return 0, f.differ }, f.locked(func() error { f.asked = f.rows[1].State; return nil })
}

func (f *fleet) Side(ctx context.Context, shard string) (switchover.Side, error) {
	s := &fleetSide{f, shard}
	return s, s.call(ctx, func() error { return nil })
}

// fleetSide is one shard.
type fleetSide struct {
	f     *fleet
	shard string
}

// call reaches the shard, or does not.
func (s *fleetSide) call(ctx context.Context, do func() error) error {
	s.f.mu.Lock()
	hang, err := s.f.hang[s.shard], s.f.down[s.shard]
	s.f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	return s.f.locked(do)
}

func (s *fleetSide) nothing(ctx context.Context) error {
	return s.call(ctx, func() error { return nil })
}

func (s *fleetSide) CreateGrants(ctx context.Context, _ chunk.Placement, _ chunk.AttemptID) error {
	return s.call(ctx, func() error { s.f.created++; return nil })
}

func (s *fleetSide) Foresee(ctx context.Context, _ chunk.Placement) error { return s.nothing(ctx) }

func (s *fleetSide) Forget(p chunk.Placement) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.forgotten = append(s.f.forgotten, p.ID)
}

func (s *fleetSide) DropGrants(ctx context.Context, p chunk.Placement, _ chunk.AttemptID, access switchover.Access) (int, error) {
	return 1, s.call(ctx, func() error {
		delete(s.f.granted, p.ID)
		if access == switchover.Reads && s.f.readsEnd != nil {
			close(s.f.readsEnd)
		}
		return nil
	})
}

func (s *fleetSide) Barrier(ctx context.Context, _ chunk.Placement, _ switchover.Access) (owed []string, err error) {
	return owed, s.call(ctx, func() error { owed = s.f.owes; return nil })
}

func (s *fleetSide) Pay(ctx context.Context, host string, _ chunk.Placement, a switchover.Access) error {
	return s.call(ctx, func() error { s.f.paid = append(s.f.paid, string(a)+" "+host); return nil })
}

func (s *fleetSide) GrantToData(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error {
	return s.call(ctx, func() error {
		if s.f.void {
			return failure.New(failure.Lost, "grant.void", "the roles of attempt %d are gone", a)
		}
		s.f.granted[p.ID] = a
		return nil
	})
}

func (s *fleetSide) Identity(ctx context.Context) (switchover.Identity, error) {
	id := switchover.Identity{Term: 1}
	return id, s.call(ctx, func() error {
		s.f.met = append(s.f.met, s.shard)
		if n := len(s.f.reigns); n > 0 {
			id.Term = s.f.reigns[0]
			s.f.reigns = s.f.reigns[min(1, n-1):]
		}
		return nil
	})
}

func (s *fleetSide) Blind() bool { return false }

func (s *fleetSide) Drain(ctx context.Context, _ chunk.Placement, _ bool) (string, error) {
	return "counted", s.nothing(ctx)
}

func (s *fleetSide) WriteFence(ctx context.Context, p chunk.Placement, _ chunk.AttemptID, lease int64, _ time.Time) error {
	return s.call(ctx, func() error {
		if s.f.fenced[p.ID] > lease {
			return failure.New(failure.Lost, "shard.overtaken", "lease %d is newer than %d", s.f.fenced[p.ID], lease)
		}
		s.f.fenced[p.ID] = lease
		return nil
	})
}

func (s *fleetSide) LiftFence(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error {
	return s.call(ctx, func() error { s.f.opened[p.ID] = a; return nil })
}
func (s *fleetSide) WriteMarker(ctx context.Context, m chunk.Marker) error {
	return s.call(ctx, func() error { s.f.markers = append(s.f.markers, m); return nil })
}
func (s *fleetSide) Opened(ctx context.Context, p chunk.Placement) (a chunk.AttemptID, err error) {
	return a, s.call(ctx, func() error { a = s.f.opened[p.ID]; return nil })
}

func (s *fleetSide) WriteOpenRecord(ctx context.Context, p chunk.Placement, a chunk.AttemptID, _ chunk.Token) error {
	return s.call(ctx, func() error { s.f.opened[p.ID] = a; return nil })
}

func (s *fleetSide) SetForward(ctx context.Context, _ chunk.Placement, _ chunk.AttemptID, _ switchover.Forward) error {
	return s.nothing(ctx)
}

func (s *fleetSide) Passed(ctx context.Context, _ chunk.MigrationID, _ chunk.AttemptID, _ chunk.Placement, _ string) (passed bool, err error) {
	return passed, s.call(ctx, func() error { passed = !s.f.behind; return nil })
}

func (s *fleetSide) Parked(ctx context.Context, _ chunk.MigrationID) (int64, error) {
	return 0, s.nothing(ctx)
}

func (s *fleetSide) CloseLanes(ctx context.Context, _ chunk.MigrationID, _, _ chunk.AttemptID) error {
	return s.nothing(ctx)
}

func (s *fleetSide) DropApplierRole(ctx context.Context, _ chunk.Placement, _ chunk.MigrationID, _ chunk.AttemptID) error {
	return s.nothing(ctx)
}

func (s *fleetSide) ParkTTL(ctx context.Context, p chunk.Placement, _ chunk.AttemptID) error {
	return s.call(ctx, func() error { s.f.ttl[p.ID] = "parked"; return nil })
}

func (s *fleetSide) RestoreTTL(ctx context.Context, p chunk.Placement, _ chunk.AttemptID) error {
	if s.f.ttlBroken {
		return errDown
	}
	return s.call(ctx, func() error { s.f.ttl[p.ID] = "restored"; return nil })
}

// A dead target must not keep the source fenced: the row alone says that nobody
// was let onto it.
func TestWayBackNeedsNoTarget(t *testing.T) {
	t.Parallel()

	for _, state := range []chunk.AttemptState{chunk.Preparing, chunk.Fencing, chunk.Closing, chunk.AttemptAborting} {
		f := newFleet(state)
		f.down["b"] = errDown
		require.NoError(t, f.switcher().Abandon(t.Context(), 1, "test"), state)
		require.Equal(t, chunk.AttemptAborted, f.state(1))
		require.Equal(t, state == chunk.Preparing || state == chunk.AttemptAborting, f.created > 0, "roles that may be missing are made, and only these")
		require.EqualValues(t, 1, f.granted[placementA.ID])
	}
}

// Applications have the source back whatever becomes of its TTL indexes; the attempt
// stays open until these are restored too.
func TestWayBackGrantsBeforeTTL(t *testing.T) {
	t.Parallel()

	f := newFleet(chunk.Fencing)
	f.ttlBroken = true
	require.ErrorIs(t, f.switcher().Abandon(t.Context(), 1, "test"), errDown)
	require.EqualValues(t, 1, f.granted[placementA.ID])
	require.Equal(t, chunk.AttemptAborting, f.state(1))
	f.ttlBroken = false
	require.NoError(t, f.switcher().Abandon(t.Context(), 1, "test"))
	require.Equal(t, chunk.AttemptAborted, f.state(1))
	require.Equal(t, "restored", f.ttl[placementA.ID])
}

// A metadata whose server was exchanged may have forgotten the publish: then the
// target's word is needed, and its open record holds the fence.
func TestWayBackAsksTheTargetAfterAnExchangeOfTheMetadata(t *testing.T) {
	t.Parallel()

	for _, state := range []chunk.AttemptState{chunk.Fencing, chunk.Closing, chunk.AttemptAborting} {
		f := newFleet(state)
		f.rows[1].Unbroken = false
		f.down["b"] = errDown
		require.ErrorIs(t, f.switcher().Abandon(t.Context(), 1, "test"), errDown)
		f.down["b"] = nil
		f.opened[placementB.ID] = 1
		err := f.switcher().Abandon(t.Context(), 1, "test")
		require.True(t, failure.HasCode(err, "switch.open_record_newer"), "%v", err)
		require.Equal(t, state, f.state(1))
		require.Empty(t, f.granted, "the source was opened beside the target")
		f.opened[placementB.ID] = 0
		require.NoError(t, f.switcher().Abandon(t.Context(), 1, "test"))
	}

	f := newFleet(chunk.Closing)
	f.exchanged, f.opened[placementB.ID] = true, 1
	err := f.switcher().Abandon(t.Context(), 1, "test")
	require.True(t, failure.HasCode(err, "switch.open_record_newer"), "exchanged between the look at the row and its change: %v", err)
	require.Empty(t, f.granted)
}

// One attempt whose shard answers nothing must not keep the watchdog from the others.
func TestWatchdogEndsAttemptsBesideEachOther(t *testing.T) {
	t.Parallel()

	f := newFleet(chunk.Fencing, chunk.Published)
	f.hang["a"] = true
	w := f.watchdog()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	require.Eventually(t, func() bool { return f.state(2) == chunk.Open }, time.Minute, time.Millisecond)
	require.Equal(t, chunk.AttemptAborting, f.state(1))
	cancel()
	require.NoError(t, <-done, "Run ends although a shard hangs")
}

// TestWatchdogComesAtTheDeadline, and has met the shards before it.
func TestWatchdogComesAtTheDeadline(t *testing.T) {
	t.Parallel()

	f := newFleet(chunk.Fencing, chunk.Closing)
	for id, left := range map[chunk.AttemptID]time.Duration{1: time.Second, 2: 30 * time.Millisecond} {
		f.rows[id].Overdue, f.rows[id].Left = false, left
	}
	w := f.watchdog()
	w.Every = 100 * time.Millisecond
	for range 2 {
		require.Equal(t, 31*time.Millisecond, w.Look(t.Context()))
		w.Wait()
		require.ElementsMatch(t, []string{"a", "b", "c", "d"}, f.met, "once for each attempt")
	}
	f.rows[2].Overdue, f.rows[2].Left = true, -time.Millisecond
	require.Equal(t, 100*time.Millisecond, w.Look(t.Context()))
	w.Wait()
	require.Equal(t, chunk.Fencing, f.state(1))
	require.Equal(t, chunk.AttemptAborted, f.state(2))
}

// A watchdog that cannot act says so until it can: the number of such attempts is what
// the alarm goes by.
func TestWatchdogAlarmsWhileItCannotAct(t *testing.T) {
	t.Parallel()

	var said strings.Builder
	look := func(w *switchover.Watchdog) float64 {
		w.Look(t.Context())
		w.Wait()
		return testutil.ToFloat64(w.Metrics.Stuck)
	}
	f := newFleet(chunk.Fencing, chunk.Closing)
	f.down["a"] = errDown
	w := f.watchdog()
	w.Switcher.Log = slog.New(slog.NewTextHandler(&said, nil))
	require.InDelta(t, 1, look(w), 0, "the other one has ended")
	require.Contains(t, said.String(), "Watchdog cannot end an attempt")
	require.Contains(t, said.String(), errDown.Error())
	f.down["a"] = nil
	require.Zero(t, look(w))
	require.Equal(t, chunk.AttemptAborted, f.state(1))

	// Another one who was first is no trouble. That nobody ever is, is.
	f = newFleet(chunk.Published)
	f.void = true
	w = f.watchdog()
	require.Zero(t, look(w))
	require.InDelta(t, 1, look(w), 0)
	require.InDelta(t, 1, look(w), 0)
	f.void, f.down["b"] = false, errDown
	require.InDelta(t, 1, look(w), 0)
	f.void, f.down["b"] = true, nil
	require.InDelta(t, 1, look(w), 0, "refused and in vain by turns is no progress")
	f.void = false
	require.Zero(t, look(w))
	require.Equal(t, chunk.Open, f.state(1))

	f = newFleet(chunk.Published)
	f.void = true
	w = f.watchdog()
	require.Zero(t, look(w))
	f.rows[1].State = chunk.AttemptDone // it was another one
	require.Zero(t, look(w))
	f.rows[1].State = chunk.Published
	require.Zero(t, look(w), "what was said before is forgotten")
}

// A lock of grants that expired under its holder, or that cannot be given back, is an
// error although the grants are made: somebody may have changed them at the same time.
// Whoever comes next makes them again, and the attempt ends.
func TestGrantLockThatIsNotGivenBack(t *testing.T) {
	t.Parallel()

	expired := failure.New(failure.Lost, "grants.lost", "the grant lock was taken by another")
	for _, broken := range []error{expired, errDown} {
		f := newFleet(chunk.Closing)
		f.unlocked = []error{broken}
		err := f.switcher().PublishAndOpen(t.Context(), switchover.PublishInput{Attempt: 1})
		require.ErrorIs(t, err, broken)
		require.Equal(t, chunk.Published, f.state(1), "it is not said to be open")
		w := f.watchdog()
		w.Look(t.Context())
		w.Wait()
		require.Equal(t, chunk.Open, f.state(1))
		require.EqualValues(t, 1, f.granted[placementB.ID])

		f = newFleet(chunk.Fencing)
		f.unlocked = []error{broken}
		err = f.switcher().Abandon(t.Context(), 1, "test")
		require.ErrorIs(t, err, broken)
		require.Equal(t, chunk.AttemptAborting, f.state(1))
		w = f.watchdog()
		w.Look(t.Context())
		w.Wait()
		require.Equal(t, chunk.AttemptAborted, f.state(1))
		require.EqualValues(t, 1, f.granted[placementA.ID])
	}
}

// A member that was down at the fence is noted before anything goes on, and shown
// the barrier when it is back.
func TestWatchdogPaysWhatIsOwed(t *testing.T) {
	t.Parallel()

	f := newFleet(chunk.Preparing)
	f.rows[1].Overdue = false
	f.owes = []string{"a2:1"}
	_, err := f.switcher().Fence(t.Context(), 1, nil)
	require.NoError(t, err)
	require.Len(t, f.owed, 2)

	f.down["a"] = errDown
	w := f.watchdog()
	w.Look(t.Context())
	w.Wait()
	require.Len(t, f.owed, 2, "nobody was shown anything")
	f.down["a"] = nil
	w = f.watchdog()
	w.Look(t.Context())
	w.Wait()
	require.ElementsMatch(t, []string{"writes a2:1", "reads a2:1"}, f.paid)
	require.Empty(t, f.owed)
}

// Zombies: whoever wakes after its token, lease or turn is over changes nothing.
func TestZombiesAreRefused(t *testing.T) {
	t.Parallel()

	t.Run("a coordinator whose lease was taken anew", func(t *testing.T) {
		t.Parallel()
		f := newFleet(chunk.Preparing)
		f.granted[placementA.ID] = 9
		f.fenced[placementA.ID] = 8
		_, err := f.switcher().Fence(t.Context(), 1, map[string]int64{"a": 7})
		require.True(t, failure.Is(err, failure.Lost), "%v", err)
		require.EqualValues(t, 9, f.granted[placementA.ID], "it took a grant away")
		require.Equal(t, chunk.Preparing, f.state(1), "applications wait for a fence that does not come")
	})
	t.Run("a coordinator whose attempt went back", func(t *testing.T) {
		t.Parallel()
		f := newFleet(chunk.AttemptAborted)
		s := f.switcher()
		require.True(t, failure.Is(s.Prepare(t.Context(), 1), failure.Lost))
		_, err := s.Fence(t.Context(), 1, nil)
		require.True(t, failure.Is(err, failure.Lost), "%v", err)
		require.Empty(t, f.fenced)
		err = s.PublishAndOpen(t.Context(), switchover.PublishInput{Attempt: 1})
		require.True(t, failure.Is(err, failure.Lost), "%v", err)
		require.True(t, failure.Is(s.OpenTarget(t.Context(), 1), failure.Lost))
		require.True(t, failure.Is(s.Conclude(t.Context(), 1), failure.Lost))
		require.Empty(t, f.granted)
		require.Empty(t, f.ttl)
	})
	t.Run("a watchdog that read the row before the publish", func(t *testing.T) {
		t.Parallel()
		f := newFleet(chunk.Closing)
		stale := *f.rows[1]
		f.rows[1].State = chunk.Published
		require.True(t, failure.Is(f.watchdog().End(t.Context(), stale), failure.Lost))
		require.Equal(t, chunk.Published, f.state(1))
		require.Empty(t, f.granted)
	})
	t.Run("a watchdog that read the row before the way back", func(t *testing.T) {
		t.Parallel()
		f := newFleet(chunk.AttemptAborted)
		stale := *f.rows[1]
		stale.State = chunk.Published
		require.True(t, failure.Is(f.watchdog().End(t.Context(), stale), failure.Lost))
		require.Empty(t, f.granted)
	})
}
