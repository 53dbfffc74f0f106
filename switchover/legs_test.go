package switchover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
)

// recordedShards are shards that note what is asked of them.
type recordedShards struct {
	mu     sync.Mutex
	calls  []string
	locked string           // whose grants may be changed now
	behind map[string]bool  // markers that are not passed yet
	parked map[string]int64 // by shard
	terms  map[string]int64
	fails  string // the call that fails
}

// note keeps a call.
func (r *recordedShards) note(format string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := fmt.Sprintf(format, args...)
	r.calls = append(r.calls, call)
	if call == r.fails {
		return errors.New("no")
	}
	return nil
}

// taken gives the calls so far in order of their text, and forgets them.
func (r *recordedShards) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Sorted(slices.Values(r.calls))
	r.calls = nil
	return out
}

// Side implements [Shards].
func (r *recordedShards) Side(_ context.Context, shard string) (Side, error) {
	return &recordedSide{r: r, shard: shard}, nil
}

// recordedSide is one of them; what a test does not need is left out.
type recordedSide struct {
	Side
	r     *recordedShards
	shard string
}

func (s *recordedSide) GrantToData(_ context.Context, p chunk.Placement, a chunk.AttemptID) error {
	if s.r.locked != s.shard {
		return fmt.Errorf("grants of %s are changed under the lock of %q", s.shard, s.r.locked)
	}
	return s.r.note("grant p%d a%d on %s", p.ID, a, s.shard)
}

func (s *recordedSide) WriteFence(_ context.Context, p chunk.Placement, a chunk.AttemptID, lease int64, _ time.Time) error {
	return s.r.note("fence p%d a%d lease %d on %s", p.ID, a, lease, s.shard)
}

func (s *recordedSide) WriteMarker(_ context.Context, m chunk.Marker) error {
	return s.r.note("%s on %s", m.Key(), s.shard)
}

func (s *recordedSide) Passed(_ context.Context, m chunk.MigrationID, d chunk.AttemptID, source chunk.Placement, key string) (bool, error) {
	call := fmt.Sprintf("m%d/d%d of p%d: %s on %s", m, d, source.ID, key, s.shard)
	return !s.r.behind[call], s.r.note("%s", call)
}

func (s *recordedSide) CloseLanes(_ context.Context, m chunk.MigrationID, d, by chunk.AttemptID) error {
	return s.r.note("close m%d/d%d by a%d on %s", m, d, by, s.shard)
}

func (s *recordedSide) DropApplierRole(_ context.Context, p chunk.Placement, m chunk.MigrationID, d chunk.AttemptID) error {
	return s.r.note("drop a_p%d_m%d_d%d on %s", p.ID, m, d, s.shard)
}

func (s *recordedSide) Parked(context.Context, chunk.MigrationID) (int64, error) {
	return s.r.parked[s.shard], nil
}

func (s *recordedSide) Barrier(_ context.Context, p chunk.Placement, _ Access) ([]string, error) {
	return []string{s.shard + ":27017"}, s.r.note("barrier p%d on %s", p.ID, s.shard)
}

func (s *recordedSide) Forget(p chunk.Placement) {
	_ = s.r.note("forget p%d on %s", p.ID, s.shard)
}

func (s *recordedSide) Identity(context.Context) (Identity, error) {
	return Identity{Term: s.r.terms[s.shard], ProcessID: s.shard}, nil
}

func (s *recordedSide) Opened(_ context.Context, p chunk.Placement) (chunk.AttemptID, error) {
	return chunk.AttemptID(p.ID), nil
}

// lockingLedger locks grants, and notes what is owed.
type lockingLedger struct {
	Ledger
	r *recordedShards
}

// GrantLock implements [Ledger].
func (l lockingLedger) GrantLock(ctx context.Context, shard string, do func(context.Context) error) error {
	l.r.locked = shard
	defer func() { l.r.locked = "" }()
	return do(ctx)
}

// Owe implements [Ledger].
func (l lockingLedger) Owe(_ context.Context, at Attempt, access Access, hosts []string) error {
	return l.r.note("owe %v %s of p%d", hosts, access, at.Source.ID)
}

// reshaped is an attempt of two sources and two targets with three legs.
func reshaped() Attempt {
	p := func(id chunk.PlacementID, shard string) chunk.Placement { return chunk.Placement{ID: id, Shard: shard} }
	return Attempt{
		ID: 9, Migration: 7, Direction: 5, Source: p(1, "a"), Target: p(3, "c"),
		Legs: []Leg{{7, p(1, "a"), p(3, "c")}, {8, p(1, "a"), p(4, "a")}, {10, p(2, "b"), p(4, "a")}},
	}
}

// TestFanReachesEveryPlacementOnce: whatever the protocol asks of a side is done
// on all of its placements, and on a lane's own shard for every leg.
func TestFanReachesEveryPlacementOnce(t *testing.T) {
	t.Parallel()

	r := &recordedShards{parked: map[string]int64{"c": 1, "a": 2}, terms: map[string]int64{"a": 4, "b": 6}}
	s := &Switcher{Shards: r, Ledger: lockingLedger{r: r}}
	at := reshaped()
	ctx := t.Context()
	src, dst, err := s.sides(ctx, at)
	require.NoError(t, err)
	src.(*fan).leases = map[string]int64{"a": 11, "b": 12}

	require.NoError(t, src.WriteFence(ctx, at.Source, 9, 0, time.Time{}))
	require.Equal(t, []string{"fence p1 a9 lease 11 on a", "fence p2 a9 lease 12 on b"}, r.taken())

	src.Forget(at.Source)
	require.Equal(t, []string{"forget p1 on a", "forget p2 on b"}, r.taken())

	m := chunk.Marker{Kind: chunk.FinalMarker, Migration: 7, Attempt: 9, Placement: 1, Round: 2}
	require.NoError(t, src.WriteMarker(ctx, m))
	require.Equal(t, []string{"final/m7/a9/p1/r2 on a", "final/m7/a9/p2/r2 on b"}, r.taken())
	passed, err := dst.Passed(ctx, 7, 5, chunk.Placement{}, m.Key())
	require.NoError(t, err)
	require.True(t, passed)
	all := []string{"m10/d5 of p2: final/m7/a9/p2/r2 on a", "m7/d5 of p1: final/m7/a9/p1/r2 on c", "m8/d5 of p1: final/m7/a9/p1/r2 on a"}
	require.Equal(t, all, r.taken())
	for _, late := range all {
		r.behind = map[string]bool{late: true}
		passed, err := dst.Passed(ctx, 7, 5, chunk.Placement{}, m.Key())
		require.NoError(t, err)
		require.False(t, passed, "one leg is behind: %s", late)
	}
	r.taken()

	require.NoError(t, s.grant(ctx, dst, at.Target, 9))
	require.Equal(t, []string{"grant p3 a9 on c", "grant p4 a9 on a"}, r.taken())
	require.NoError(t, dst.CloseLanes(ctx, 7, 5, 9))
	require.Equal(t, []string{"close m10/d5 by a9 on a", "close m7/d5 by a9 on c", "close m8/d5 by a9 on a"}, r.taken())
	require.NoError(t, dst.DropApplierRole(ctx, at.Target, 7, 5))
	require.Equal(t, []string{"drop a_p3_m7_d5 on c", "drop a_p4_m10_d5 on a", "drop a_p4_m8_d5 on a"}, r.taken())
	n, err := dst.Parked(ctx, 7)
	require.NoError(t, err)
	require.EqualValues(t, 5, n)
	opened, err := dst.Opened(ctx, at.Target)
	require.NoError(t, err)
	require.EqualValues(t, 4, opened, "any target that was opened is a publish that happened")
}

// TestFanOwesEachPlacementItsOwn: a member is owed the barrier of the placement
// that it may serve again, not of the one that leads.
func TestFanOwesEachPlacementItsOwn(t *testing.T) {
	t.Parallel()

	r := &recordedShards{}
	s := &Switcher{Shards: r, Ledger: lockingLedger{r: r}}
	src, err := s.source(t.Context(), reshaped())
	require.NoError(t, err)
	f := &fence{Switcher: s, at: reshaped(), src: src, clock: clockOf(t.Context())}
	require.NoError(t, f.barrier(t.Context(), Writes))
	require.Equal(t, []string{"barrier p1 on a", "barrier p2 on b", "owe [a:27017] writes of p1", "owe [b:27017] writes of p2"}, r.taken())
}

// TestFanTellsReignsApart: a new primary on any source is another reign.
func TestFanTellsReignsApart(t *testing.T) {
	t.Parallel()

	r := &recordedShards{terms: map[string]int64{"a": 4, "b": 6}}
	s := &Switcher{Shards: r, Ledger: lockingLedger{r: r}}
	src, err := s.source(t.Context(), reshaped())
	require.NoError(t, err)
	before, err := src.Identity(t.Context())
	require.NoError(t, err)
	again, err := src.Identity(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, again)
	r.terms["a"] = 5
	after, err := src.Identity(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, before, after)
}

// TestFanFailsWithOne: a step that one placement refuses is not done.
func TestFanFailsWithOne(t *testing.T) {
	t.Parallel()

	r := &recordedShards{fails: "fence p2 a9 lease 0 on b"}
	s := &Switcher{Shards: r, Ledger: lockingLedger{r: r}}
	src, err := s.source(t.Context(), reshaped())
	require.NoError(t, err)
	require.ErrorContains(t, src.WriteFence(t.Context(), chunk.Placement{}, 9, 0, time.Time{}), "placement 2 on b")
}
