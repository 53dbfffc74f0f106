package rig

import (
	"context"
	"fmt"
	"time"

	"drover/contract"
	"drover/demo/workload"
	"drover/shard"
)

// Verdict is what a judgement found, of everything since the start.
type Verdict struct {
	Lost         int64 `json:"lost"`
	Duplicated   int64 `json:"duplicated"`
	StaleReads   int64 `json:"stale_reads"`
	NotLinear    int   `json:"not_linearizable"`
	Undecided    int   `json:"undecided"` // histories of registers that could not be judged in time
	Stragglers   int   `json:"stragglers"`
	TwoOwners    int   `json:"two_owners"`    // times when a placement that is not published could be written, or the published one not
	ClientErrors int64 `json:"client_errors"` // allowed: servers of the application's own data were down
	Acknowledged int64 `json:"acknowledged"`
	Registers    int   `json:"register_operations"`
}

// Judged runs do with registers in use, and fills the cell with what came of it. It
// reports whether the rig can go on.
func (r *Rig) Judged(ctx context.Context, c *Cell, do func(context.Context, *Cell) error) (Verdict, bool) {
	began := time.Now()
	errorsBefore, _ := r.work.Errors()
	running, stop := context.WithCancel(ctx)
	type judgement struct {
		operations      int
		linear, decided bool
	}
	history := make(chan judgement, 1)
	r.cells++
	name := fmt.Sprint(r.cells)
	go func() {
		h := r.regs.run(running, name)
		linear, decided := judge(h)
		history <- judgement{len(h), linear, decided}
	}()
	err := do(ctx, c)
	stop()
	j := <-history
	v := r.known
	v.Registers += j.operations
	problem := ""
	switch {
	case !j.decided:
		v.Undecided++
		problem = "the registers' history could not be judged in time"
	case !j.linear:
		v.NotLinear++
		problem = "the registers' history is not linearizable"
	}
	found := r.look(ctx, &v)
	c.Outcome = Held
	for _, p := range []string{problem, found} {
		if p != "" {
			c.Outcome = p
		}
	}
	if err != nil {
		c.Outcome = err.Error()
	}
	c.Seconds, c.Errors = time.Since(began).Seconds(), v.ClientErrors-errorsBefore
	if c.Errors > 0 {
		c.Error = r.work.LastError()
	}
	r.known = v
	return v, err == nil && ctx.Err() == nil
}

// look compares every document with what the application was told, and the grants
// with the routes. It gives what is new and wrong, empty if nothing is.
func (r *Rig) look(ctx context.Context, v *Verdict) string {
	got, err := r.compare(ctx)
	v.Acknowledged = r.work.Acknowledged()
	v.ClientErrors, _ = r.work.Errors()
	if err != nil {
		return err.Error()
	}
	before := *v
	v.Lost, v.Duplicated, v.StaleReads = max(v.Lost, got.Lost), max(v.Duplicated, got.Duplicated), max(v.StaleReads, got.StaleReads)
	stragglers, err := r.store.Stragglers(ctx)
	if err != nil {
		return err.Error()
	}
	v.Stragglers = max(v.Stragglers, len(stragglers))
	owners, err := r.owners(ctx)
	if err != nil {
		return err.Error()
	}
	switch {
	case v.Lost > before.Lost || v.Duplicated > before.Duplicated:
		return fmt.Sprintf("lost %d, duplicated %d: %v", v.Lost, v.Duplicated, got.Examples)
	case v.StaleReads > before.StaleReads:
		return fmt.Sprintf("%d stale reads", v.StaleReads-before.StaleReads)
	case v.Stragglers > before.Stragglers:
		return fmt.Sprintf("%d stragglers, the last: %+v", len(stragglers), stragglers[len(stragglers)-1])
	case owners != "":
		v.TwoOwners++
		return owners
	}
	return ""
}

// compare holds the application still and compares every document.
func (r *Rig) compare(ctx context.Context) (v workload.Verdict, err error) {
	resume := r.work.Pause()
	defer resume()
	err = until(ctx, "every document can be read", func() (bool, error) {
		v, err = r.work.Check(ctx)
		return err == nil, nil
	})
	return v, err
}

// owners says what is wrong with the grants: the published placement of the chunk
// can be written, and no other.
func (r *Rig) owners(ctx context.Context) (wrong string, err error) {
	route, err := r.store.Route(ctx, r.hot.Chunk.ID)
	if err != nil {
		return "", err
	}
	placements, err := r.store.Placements(ctx, "")
	if err != nil {
		return "", err
	}
	clients := shard.NewClients(r.stack.Secret, shard.Options{})
	defer func() { _ = clients.Close(context.WithoutCancel(ctx)) }()
	for _, p := range placements {
		if p.Chunk != r.hot.Chunk.ID {
			continue
		}
		sh, err := r.store.Shard(ctx, p.Shard)
		if err != nil {
			return "", err
		}
		set, err := clients.Set(sh)
		if err != nil {
			return "", err
		}
		held, err := set.HeldGrants(ctx, p.ID)
		if err != nil {
			return "", err
		}
		writes := 0
		for _, g := range held {
			if g.Kind == shard.Writes {
				writes++
			}
		}
		if published := p.ID == route.Placement.ID; published != (writes > 0) {
			return fmt.Sprintf("placement %d on %s has %d write grants, published is %d", p.ID, p.Shard, writes, route.Placement.ID), nil
		}
	}
	return "", nil
}

// Recover brings the fleet back to where it was before something broke a cell: all of it
// runs, nothing holds, and a move that runs has come to where it can be switched.
func (r *Rig) Recover(ctx context.Context) error {
	for _, all := range [][]*process{r.proxies, r.workers} {
		for _, p := range all {
			if p.paused {
				if err := p.resume(); err != nil {
					return err
				}
			}
		}
	}
	for _, p := range r.workers {
		p.kill()
	}
	for _, p := range append([]string{ImportPoint, LanePoint, AbortingPoint, CleanupPoint}, SwitchPoints...) {
		if err := r.disarm(p); err != nil {
			return err
		}
	}
	if err := r.heal(ctx); err != nil {
		return err
	}
	_, open, err := r.store.OpenMigration(ctx, r.hot.Chunk.ID)
	if err != nil || !open {
		return err
	}
	st, err := r.starter.Status(ctx, r.hot.Chunk.ID)
	if err == nil && stuck(st) {
		err = r.ask(ctx, contract.ResumeUpdate)
	}
	if err == nil {
		_, err = r.Forward(ctx)
	}
	return err
}
