package activities

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/gate"
	"drover/internal/failure"
	"drover/shard"
)

// trialWithin bounds the trials on one shard: those of what a server lacks take longest.
const trialWithin = 30 * time.Second

// tried is a shard whose server can be tried.
type tried interface {
	Shard() chunk.Shard
	Identity(ctx context.Context) (shard.Identity, error)
	Probe(ctx context.Context) (chunk.Capabilities, error)
}

// capabilityRows keeps what trials found.
type capabilityRows interface {
	SetCapabilities(ctx context.Context, name string, c chunk.Capabilities) error
}

// trialAgain is how long nothing is tried where a trial has failed: gates look each second.
const trialAgain = 10 * time.Second

// trials are made once on each process that is a shard's primary: a server may have been
// exchanged for one that does less since its shard was registered.
type trials struct {
	mu   sync.Mutex
	on   map[string]trial // by shard, the last one
	once shared[string]
}

// trial is what came of trying a primary.
type trial struct {
	of   shard.Identity
	err  error     // nil: what it can do is on record
	when time.Time // it failed
}

// of gives what a trial of that primary came to, not where it was none or may be
// made again.
func (t *trials) of(name string, now shard.Identity) (trial, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, ok := t.on[name]
	return last, ok && last.of == now && (last.err == nil || time.Since(last.when) < trialAgain)
}

// try tries what a shard's primary can do, unless it was tried. It says what came of it.
func (t *trials) try(ctx context.Context, set tried, rows capabilityRows) (string, error) {
	name := set.Shard().Name
	now, err := set.Identity(ctx)
	if err != nil {
		return "", err
	}
	now.Term = 0 // another reign of the same process can do the same
	said := name + ": tried"
	if last, known := t.of(name, now); known {
		return said, last.err
	}
	return t.once.do(ctx, name, func(ctx context.Context) (string, error) {
		if last, known := t.of(name, now); known { // who came while it was under way
			return said, last.err
		}
		changed, err := t.make(ctx, set, rows)
		if changed {
			said += ", other than on record"
		}
		if ctx.Err() == nil { // else it was not the server's fault
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.on == nil {
				t.on = map[string]trial{}
			}
			t.on[name] = trial{of: now, err: err, when: time.Now()}
		}
		return said, err
	})
}

// make tries what a shard's primary can do and says whether that is other than on
// record, where it stands then.
func (t *trials) make(ctx context.Context, set tried, rows capabilityRows) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, trialWithin)
	defer cancel()
	found, err := set.Probe(ctx)
	if err != nil {
		return false, fmt.Errorf("try what the servers of %s can do: %w", set.Shard().Name, err)
	}
	if found == set.Shard().Capabilities {
		return false, nil
	}
	return true, rows.SetCapabilities(ctx, set.Shard().Name, found)
}

// gateTrials sees that a switch picks its ways by what the servers can do now.
func (a *Activities) gateTrials(ctx context.Context, in contract.GateInput) contract.Check {
	if in.ReadOnly {
		return gate.Trials("", nil)
	}
	var said []string
	for _, name := range slices.Compact([]string{in.From.Shard, in.To.Shard}) {
		set, err := a.Sides.Set(ctx, name)
		if err != nil {
			return gate.Trials("", err)
		}
		word, err := a.trials.try(ctx, set, a.Store)
		if err != nil {
			return gate.Trials("", err)
		}
		said = append(said, word)
	}
	return gate.Trials(strings.Join(said, ", "), nil)
}

// renewSides sees that what a switch keeps of its shards goes by what was found last.
// Who is in a window keeps what it has.
func (a *Activities) renewSides(ctx context.Context, names ...string) error {
	for _, name := range names {
		sh, err := a.Store.Shard(ctx, name)
		if err != nil {
			return err
		}
		err = a.Sides.shared.renew(ctx, name, func(s *Side) bool { return s.Set.Shard().Capabilities != sh.Capabilities }, a.Sides.open)
		if err != nil {
			return failure.New(failure.Transient, "switch.shard_busy", "look at what is kept of shard %s: %w", name, err)
		}
	}
	return nil
}
