package activities

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
	"drover/replication"
	"drover/shard"
	"drover/switchover"
)

// Sides gives the switch protocol its shards. It keeps one warm fencer for each
// shard, so that the window pays for no handshake.
type Sides struct {
	Store      *metadata.Store
	Shards     *shard.Clients
	Partitions int32

	shared *sideCache
}

// sideCache is what Sides shares between calls: a slot for each shard, so that one
// that cannot be dialled holds up nobody who wants another.
type sideCache struct {
	mu    sync.Mutex
	slots map[string]*sideSlot
}

// sideSlot holds one shard's side. Whoever has put something into turn may look
// into it and dial.
type sideSlot struct {
	turn chan struct{}
	side *Side
}

// NewSides makes the ports.
func NewSides(store *metadata.Store, clients *shard.Clients, partitions int32) Sides {
	return Sides{Store: store, Shards: clients, Partitions: partitions, shared: &sideCache{slots: map[string]*sideSlot{}}}
}

// Set finds a shard by name.
func (s Sides) Set(ctx context.Context, name string) (*shard.Set, error) {
	sh, err := s.Store.Shard(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.Shards.Set(sh)
}

// Side implements [switchover.Shards].
func (s Sides) Side(ctx context.Context, name string) (switchover.Side, error) {
	return s.side(ctx, name)
}

func (s Sides) side(ctx context.Context, name string) (*Side, error) {
	return s.shared.get(ctx, name, s.open)
}

// get gives the side of a shard, opened by the first who asks. Those who ask
// meanwhile wait as long as their contexts allow.
func (c *sideCache) get(ctx context.Context, name string, open func(context.Context, string) (*Side, error)) (*Side, error) {
	c.mu.Lock()
	slot, ok := c.slots[name]
	if !ok {
		slot = &sideSlot{turn: make(chan struct{}, 1)}
		c.slots[name] = slot
	}
	c.mu.Unlock()
	release, err := slot.take(ctx, name)
	if err != nil {
		return nil, err
	}
	defer release()
	if slot.side != nil {
		return slot.side, nil
	}
	side, err := open(ctx, name)
	if err != nil {
		return nil, err
	}
	slot.side = side
	return side, nil
}

// take waits for one's turn at a slot.
func (s *sideSlot) take(ctx context.Context, name string) (release func(), err error) {
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the connections to shard %s: %w", name, context.Cause(ctx))
	}
}

// renew opens a side that is stale anew and puts it in the place of that one, which
// serves whoever asks meanwhile: they may be in a window. Who has it keeps it, with its
// connections, which end with the process.
func (c *sideCache) renew(ctx context.Context, name string, stale func(*Side) bool, open func(context.Context, string) (*Side, error)) error {
	c.mu.Lock()
	slot, ok := c.slots[name]
	c.mu.Unlock()
	if !ok {
		return nil
	}
	release, err := slot.take(ctx, name)
	if err != nil {
		return err
	}
	old := slot.side
	release()
	if old == nil || !stale(old) {
		return nil
	}
	side, err := open(ctx, name)
	if err != nil {
		return err
	}
	if release, err = slot.take(ctx, name); err != nil {
		side.close(ctx)
		return err
	}
	defer release()
	if slot.side != old { // somebody else was faster
		side.close(ctx)
		return nil
	}
	slot.side = side
	return nil
}

// open dials a shard's members.
func (s Sides) open(ctx context.Context, name string) (*Side, error) {
	set, err := s.Set(ctx, name)
	if err != nil {
		return nil, err
	}
	fencer, err := set.OpenFencer(ctx)
	if err != nil {
		return nil, err
	}
	return &Side{Set: set, fencer: fencer, partitions: s.Partitions, store: s.Store, cuts: map[cutKey]shard.Cut{}, foreseen: map[chunk.PlacementID][]shard.Grant{}}, nil
}

// Close ends the warm connections, after everybody who uses them has stopped.
func (s Sides) Close(ctx context.Context) {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	for name, slot := range s.shared.slots {
		if slot.side != nil {
			slot.side.close(ctx)
		}
		delete(s.shared.slots, name)
	}
}

// Side is one shard as the switch protocol sees it.
type Side struct {
	*shard.Set
	fencer     *shard.Fencer
	partitions int32
	store      *metadata.Store

	mu       sync.Mutex
	cuts     map[cutKey]shard.Cut                // what the newest drop of grants has to be seen as
	foreseen map[chunk.PlacementID][]shard.Grant // what the next drop will find, see [Side.Foresee]
}

// close ends its warm connections.
func (s *Side) close(ctx context.Context) { _ = s.fencer.Close(ctx) } // nobody uses them

// cutKey names a drop of grants.
type cutKey struct {
	placement chunk.PlacementID
	access    switchover.Access
}

var _ switchover.Side = (*Side)(nil)

// kind translates the protocol's word.
func kind(a switchover.Access) shard.GrantKind {
	if a == switchover.Reads {
		return shard.Reads
	}
	return shard.Writes
}

// Foresee implements [switchover.Side].
func (s *Side) Foresee(ctx context.Context, p chunk.Placement) error {
	grants, err := s.Set.Grants(ctx, p.ID)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foreseen[p.ID] = grants
	return nil
}

// DropGrants implements [switchover.Side].
func (s *Side) DropGrants(ctx context.Context, p chunk.Placement, a chunk.AttemptID, access switchover.Access) (int, error) {
	drop := s.Set.DropWriteGrants
	if access == switchover.Reads {
		drop = s.Set.DropReadGrants
	}
	s.mu.Lock()
	foreseen := s.foreseen[p.ID]
	s.mu.Unlock()
	cut, err := drop(ctx, p.ID, a, foreseen...)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	s.cuts[cutKey{p.ID, access}] = cut
	s.mu.Unlock()
	return len(cut.Dropped), nil
}

// Forget implements [switchover.Side].
func (s *Side) Forget(p chunk.Placement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.foreseen, p.ID)
	for _, access := range []switchover.Access{switchover.Writes, switchover.Reads} {
		delete(s.cuts, cutKey{p.ID, access})
	}
}

// Barrier implements [switchover.Side].
func (s *Side) Barrier(ctx context.Context, p chunk.Placement, access switchover.Access) ([]string, error) {
	s.mu.Lock()
	cut := s.cuts[cutKey{p.ID, access}]
	s.mu.Unlock()
	owed, err := s.fencer.Barrier(ctx, p, kind(access), cut)
	hosts := make([]string, 0, len(owed))
	for _, o := range owed {
		hosts = append(hosts, o.Host)
	}
	return hosts, err
}

// Warm opens the connections that the window will need.
func (s *Side) Warm(ctx context.Context) error { return s.fencer.Warm(ctx) }

// Identity implements [switchover.Side].
func (s *Side) Identity(ctx context.Context) (switchover.Identity, error) {
	id, err := s.Set.Identity(ctx)
	return switchover.Identity{Term: id.Term, ProcessID: id.Host + "/" + id.Process.Hex()}, err
}

// Blind implements [switchover.Side].
func (s *Side) Blind() bool { return !s.Set.Shard().Capabilities.ListsOperations }

// Drain implements [switchover.Side].
func (s *Side) Drain(ctx context.Context, p chunk.Placement, silent bool) (string, error) {
	res, err := s.Set.Drain(ctx, shard.DrainRequest{Placement: p, Budget: 300 * time.Millisecond, Silent: silent})
	return fmt.Sprintf("%s: waited for %d, killed %d, aborted %d", res.Way, res.Waited, res.Killed, res.Aborted), err
}

// WriteFence implements [switchover.Side].
func (s *Side) WriteFence(ctx context.Context, p chunk.Placement, a chunk.AttemptID, lease int64, deadline time.Time) error {
	return s.Set.WriteFence(ctx, p.ID, a, lease, deadline)
}

// Pay implements [switchover.Side].
func (s *Side) Pay(ctx context.Context, host string, p chunk.Placement, access switchover.Access) error {
	return s.fencer.Pay(ctx, host, p, kind(access), shard.Cut{})
}

// LiftFence implements [switchover.Side]: the placement is open for attempt a.
func (s *Side) LiftFence(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error {
	r, err := s.store.Route(ctx, p.Chunk)
	if err != nil {
		return err
	}
	return s.Set.WriteOpenRecord(ctx, p.ID, a, r.Token)
}

// WriteMarker implements [switchover.Side].
func (s *Side) WriteMarker(ctx context.Context, m chunk.Marker) error {
	_, err := s.Set.WriteMarker(ctx, m)
	return err
}

// Opened implements [switchover.Side].
func (s *Side) Opened(ctx context.Context, p chunk.Placement) (chunk.AttemptID, error) {
	f, ok, err := s.Set.ReadFence(ctx, p.ID)
	if err != nil || !ok {
		return 0, err
	}
	return f.Opened, nil
}

// WriteOpenRecord implements [switchover.Side].
func (s *Side) WriteOpenRecord(ctx context.Context, p chunk.Placement, a chunk.AttemptID, token chunk.Token) error {
	return s.Set.WriteOpenRecord(ctx, p.ID, a, token)
}

// SetForward implements [switchover.Side].
func (s *Side) SetForward(ctx context.Context, p chunk.Placement, a chunk.AttemptID, f switchover.Forward) error {
	return s.Set.SetForward(ctx, p.ID, a, shard.Forward{Shard: f.Shard, Placement: f.Placement, Database: f.Database, Token: f.Token})
}

// Passed implements [switchover.Side].
func (s *Side) Passed(ctx context.Context, m chunk.MigrationID, d chunk.AttemptID, source chunk.Placement, key string) (bool, error) {
	p, err := partitionOf(source.Database, s.partitions)
	if err != nil {
		return false, err
	}
	return s.Set.PassedMarker(ctx, m, d, p, key)
}

// Parked implements [switchover.Side].
func (s *Side) Parked(ctx context.Context, m chunk.MigrationID) (int64, error) {
	return s.Set.ParkedCount(ctx, m)
}

// CloseLanes implements [switchover.Side].
func (s *Side) CloseLanes(ctx context.Context, m chunk.MigrationID, d, by chunk.AttemptID) error {
	admin, err := s.Client(chunk.AdminUser)
	if err != nil {
		return err
	}
	return replication.CloseLanes(ctx, admin, s, m, d, by)
}

// DropApplierRole implements [switchover.Side].
func (s *Side) DropApplierRole(ctx context.Context, p chunk.Placement, m chunk.MigrationID, d chunk.AttemptID) error {
	return s.Set.DropApplierRole(ctx, p.ID, m, d)
}

// ttl guards the changes of p's TTL on behalf of attempt a.
func (s *Side) ttl(p chunk.Placement, a chunk.AttemptID) ttlGuard {
	return ttlGuard{
		placement: p.ID, attempt: a,
		latest: func(ctx context.Context) (metadata.Attempt, error) { return s.store.LatestAttempt(ctx, p.Chunk) },
		park: func(ctx context.Context) error {
			_, err := s.Set.ParkTTL(ctx, p.Database)
			return err
		},
		restore: func(ctx context.Context) error { return s.restoreTTL(ctx, p) },
	}
}

// ParkTTL implements [switchover.Side].
func (s *Side) ParkTTL(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error {
	return s.ttl(p, a).Park(ctx)
}

// RestoreTTL implements [switchover.Side].
func (s *Side) RestoreTTL(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error {
	return s.ttl(p, a).Restore(ctx)
}

func (s *Side) restoreTTL(ctx context.Context, p chunk.Placement) error {
	catalog, err := s.store.Collections(ctx, databaseOf(p.Chunk))
	if err != nil {
		return err
	}
	return s.Set.RestoreTTL(ctx, p.Database, catalog)
}

// Ledger gives the switch protocol its metadata.
type Ledger struct {
	Store *metadata.Store
	Owner string
}

var _ switchover.Ledger = Ledger{}

// attempt translates a row.
func attempt(a metadata.Attempt) switchover.Attempt {
	legs := make([]switchover.Leg, 0, len(a.Legs))
	for _, l := range a.Legs {
		legs = append(legs, switchover.Leg(l))
	}
	return switchover.Attempt{
		ID: a.ID, Migration: a.Migration, Direction: a.Direction, State: a.State, Source: a.Source, Target: a.Target, Legs: legs,
		Deadline: a.Deadline, Unbroken: a.Unbroken, Overdue: a.Overdue, Left: a.Left, Token: a.Token,
	}
}

// Attempt implements [switchover.Ledger].
func (l Ledger) Attempt(ctx context.Context, id chunk.AttemptID) (switchover.Attempt, error) {
	a, err := l.Store.Attempt(ctx, id)
	return attempt(a), err
}

// OpenAttempts implements [switchover.Ledger].
func (l Ledger) OpenAttempts(ctx context.Context) ([]switchover.Attempt, error) {
	all, err := l.Store.OpenAttempts(ctx)
	out := make([]switchover.Attempt, 0, len(all))
	for _, a := range all {
		out = append(out, attempt(a))
	}
	return out, err
}

// Advance implements [switchover.Ledger].
func (l Ledger) Advance(ctx context.Context, id chunk.AttemptID, from, to chunk.AttemptState, o switchover.AdvanceOptions) (switchover.Attempt, error) {
	a, err := l.Store.AdvanceAttempt(ctx, id, from, to, metadata.AdvanceOptions{
		Deadline: o.Deadline, Reason: o.Reason, Term: o.Identity.Term, Process: o.Identity.ProcessID,
	})
	return attempt(a), err
}

// Publish implements [switchover.Ledger].
func (l Ledger) Publish(ctx context.Context, in switchover.PublishInput) (chunk.Token, error) {
	return l.Store.Publish(ctx, publishRequest(in))
}

// publishRequest translates what a publish checks.
func publishRequest(in switchover.PublishInput) metadata.PublishRequest {
	r := metadata.PublishRequest{Attempt: in.Attempt, CatalogVersion: in.CatalogVersion}
	for name, epoch := range in.LeaseEpochs {
		r.Leases = append(r.Leases, metadata.Lease{Shard: name, Epoch: epoch})
	}
	return r
}

// Owe implements [switchover.Ledger].
func (l Ledger) Owe(ctx context.Context, at switchover.Attempt, access switchover.Access, hosts []string) error {
	return l.Store.OweBarrier(ctx, at.Source.ID, string(access), at.ID, hosts)
}

// Owed implements [switchover.Ledger].
func (l Ledger) Owed(ctx context.Context) ([]switchover.Owed, error) {
	all, err := l.Store.OwedBarriers(ctx)
	out := make([]switchover.Owed, 0, len(all))
	for _, o := range all {
		out = append(out, switchover.Owed{Placement: o.Placement, Access: switchover.Access(o.Access), Host: o.Host, Attempt: o.Attempt})
	}
	return out, err
}

// Paid implements [switchover.Ledger].
func (l Ledger) Paid(ctx context.Context, o switchover.Owed) error {
	return l.Store.BarrierPaid(ctx, metadata.OwedBarrier{Placement: o.Placement, Access: string(o.Access), Host: o.Host, Attempt: o.Attempt})
}

// grantLockTTL bounds how long a dead holder keeps others from a shard's grants.
const grantLockTTL = 2 * time.Second

// GrantLock implements [switchover.Ledger].
func (l Ledger) GrantLock(ctx context.Context, name string, do func(context.Context) error) error {
	lock, err := l.Store.LockGrants(ctx, name, l.Owner, grantLockTTL)
	if err != nil {
		return err
	}
	err = do(ctx)
	unlocking, cancel := context.WithTimeout(context.WithoutCancel(ctx), grantLockTTL) // later it is over by itself
	defer cancel()
	if unlockErr := l.Store.UnlockGrants(unlocking, lock); err == nil {
		err = unlockErr
	}
	return err
}

// Words gives the switch protocol the proxies' word.
type Words struct{ Store *metadata.Store }

var _ switchover.Proxies = Words{}

// Listen implements [switchover.Proxies].
func (w Words) Listen(ctx context.Context) (switchover.Words, error) {
	waiter, err := w.Store.NewAckWaiter(ctx)
	if err != nil {
		return nil, err
	}
	return &heard{waiter: waiter, lists: w.Store}, nil
}

// Count implements [switchover.Words].
func (h *heard) Count(ctx context.Context) error {
	live, err := h.lists.LiveProxies(ctx)
	if err != nil {
		return err
	}
	// Read last: one that vanishes meanwhile is on one list.
	vanished, err := h.lists.VanishedProxies(ctx)
	if err != nil {
		return err
	}
	h.sort(live, vanished)
	return nil
}

// sort tells proxies by whether a word of theirs can be expected. One that died and is
// back speaks for itself, and nobody for the run before it.
func (h *heard) sort(live, vanished []metadata.Proxy) {
	h.proxies, h.deaf = nil, nil
	for _, p := range live {
		if p.Hears {
			h.proxies = append(h.proxies, p)
		} else {
			h.deaf = append(h.deaf, p.ID+": hears nothing")
		}
	}
	for _, p := range vanished {
		why := ": vanished"
		if p.Back {
			why = ": vanished, and is back"
		}
		h.deaf = append(h.deaf, p.ID+why)
	}
}

// proxyLists are the proxies that the metadata knows of.
type proxyLists interface {
	LiveProxies(ctx context.Context) ([]metadata.Proxy, error)
	VanishedProxies(ctx context.Context) ([]metadata.Proxy, error)
}

// acks collects what proxies say.
type acks interface {
	Wait(ctx context.Context, attempt chunk.AttemptID, kind string, proxies []metadata.Proxy, grace time.Duration, must bool) (metadata.AckResult, error)
	Close()
}

// heard is one listening.
type heard struct {
	waiter  acks
	lists   proxyLists
	proxies []metadata.Proxy // that hear
	deaf    []string         // that give no word, and why
}

// Wait implements [switchover.Words].
func (h *heard) Wait(ctx context.Context, a chunk.AttemptID, access switchover.Access, p switchover.Patience) ([]string, error) {
	res, err := h.waiter.Wait(ctx, a, string(access), h.proxies, p.Grace, p.All)
	if err != nil {
		return nil, err
	}
	silent := slices.Clone(h.deaf)
	for proxy, word := range res.Words {
		if word != metadata.AckClean {
			silent = append(silent, proxy+": "+word)
		}
	}
	slices.Sort(silent)
	if p.All && (res.Has(metadata.AckSilent) || res.Has(metadata.AckRunning)) {
		return silent, failure.New(failure.Transient, "switch.proxy_silent", "not every proxy said that none of its %s runs: %s: %w",
			access, strings.Join(silent, ", "), context.Cause(ctx)).
			WithHint("this shard cannot list its operations, so a proxy that hears must say so; a slow shard makes the word late: the attempt goes back and is tried again")
	}
	return silent, nil
}

// Close implements [switchover.Words].
func (h *heard) Close() { h.waiter.Close() }
