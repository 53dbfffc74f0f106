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

// trials are made once on each process that is a shard's primary: a server may have been
// exchanged for one that does less since its shard was registered.
type trials struct {
	mu   sync.Mutex
	on   map[string]shard.Identity // by shard: the primary that was tried last
	once shared[string]
}

// try tries what a shard's primary can do, unless it was tried. It says what came of it.
func (t *trials) try(ctx context.Context, set tried, rows capabilityRows) (string, error) {
	name := set.Shard().Name
	now, err := set.Identity(ctx)
	if err != nil {
		return "", err
	}
	now.Term = 0 // another reign of the same process can do the same
	t.mu.Lock()
	known := t.on[name] == now
	t.mu.Unlock()
	if known {
		return name + ": tried", nil
	}
	return t.once.do(ctx, name, func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, trialWithin)
		defer cancel()
		found, err := set.Probe(ctx)
		if err != nil {
			return "", fmt.Errorf("try what the servers of %s can do: %w", name, err)
		}
		said := name + ": tried"
		if found != set.Shard().Capabilities {
			said = name + ": tried, other than on record"
			if err := rows.SetCapabilities(ctx, name, found); err != nil {
				return "", err
			}
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.on == nil {
			t.on = map[string]shard.Identity{}
		}
		t.on[name] = now
		return said, nil
	})
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
		err = a.Sides.shared.renew(ctx, name, func(s *Side) bool { return s.Set.Shard().Capabilities != sh.Capabilities })
		if err != nil {
			return failure.New(failure.Transient, "switch.shard_busy", "look at what is kept of shard %s: %w", name, err)
		}
	}
	return nil
}
