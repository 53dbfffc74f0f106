package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"drover/contract"
	"drover/gate"
	"drover/internal/failure"
	"drover/internal/pause"
	"drover/metadata"
)

// settingsLedger is what a trial of settings needs of the metadata.
type settingsLedger interface {
	LiveProxies(ctx context.Context) ([]metadata.Proxy, error)
	KeepSettings(ctx context.Context, n metadata.Settings, over int64, try time.Duration) (int64, error)
	DecideSettings(ctx context.Context, version int64, state, outcome string) error
}

// Bounds of a trial.
const (
	trialTakes = 30 * time.Second // for a proxy to take settings over
	trialSlack = 15 * time.Second // of the metadata, beyond what a trial may take
	trialLook  = time.Second      // between two looks
	trialWorse = 10 * time.Second // a figure past its limit for so long is no accident
)

// trialLimits are those of a chunk after its switch.
var trialLimits = gate.Worse{ //nolint:gochecknoglobals // a constant
	Errors:  gate.Rate{Name: "failed requests", Value: 0.01, Source: "default"},
	Latency: gate.Rate{Name: "p99", Value: 3, Source: "default"},
}

// trial lets one proxy run settings before all others do.
type trial struct {
	store settingsLedger
	on    string
	watch time.Duration
	say   func(format string, args ...any)
}

// proxyState is what a live proxy says of itself.
type proxyState struct {
	ID      string           `json:"id"`
	Version int64            `json:"version"`
	Hears   bool             `json:"hears"`
	Health  contract.Traffic `json:"health"`
}

// states reads what the live proxies say.
func states(ctx context.Context, store settingsLedger) ([]proxyState, error) {
	all, err := store.LiveProxies(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]proxyState, 0, len(all))
	for _, p := range all {
		s := proxyState{ID: p.ID, Version: p.Settings, Hears: p.Hears}
		if len(p.Health) > 0 {
			if err := json.Unmarshal(p.Health, &s.Health); err != nil {
				return nil, fmt.Errorf("read what %s says of itself: %w", p.ID, err)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// keep keeps a new version: tried on one proxy where it concerns proxies and there are
// any. It returns when the version is live.
func (t *trial) keep(ctx context.Context, n metadata.Settings, c change) (int64, error) {
	if !c.proxies() {
		return t.store.KeepSettings(ctx, n, c.Over, 0)
	}
	before, err := t.choose(ctx)
	if err != nil {
		return 0, err
	}
	if before.ID == "" {
		t.say("no proxy lives: nothing tries it")
		return t.store.KeepSettings(ctx, n, c.Over, 0)
	}
	n.Canary = before.ID
	version, err := t.store.KeepSettings(ctx, n, c.Over, t.watch+trialTakes+trialSlack)
	if err != nil {
		return 0, err
	}
	t.say("%s tries version %d for %s", before.ID, version, t.watch)
	outcome, err := t.observe(ctx, version, before)
	if err != nil {
		refused := context.WithoutCancel(ctx)
		if e := t.store.DecideSettings(refused, version, metadata.SettingsRefused, err.Error()); e != nil {
			t.say("the trial ends by itself within %s: %v", t.watch+trialTakes+trialSlack, e)
		}
		return 0, failure.New(failure.Invalid, "settings.trial_failed", "version %d is refused, %s goes back to version %d: %w", version, before.ID, c.Over, err).
			WithHint("drover config history keeps the outcome; nothing has changed for the other proxies")
	}
	t.say("%s", outcome)
	return version, t.store.DecideSettings(ctx, version, metadata.SettingsLive, outcome)
}

// choose gives the proxy that is to try settings, as it is before; none where no proxy
// lives.
func (t *trial) choose(ctx context.Context) (proxyState, error) {
	all, err := states(ctx, t.store)
	if err != nil {
		return proxyState{}, err
	}
	if t.on != "" {
		if at := slices.IndexFunc(all, func(p proxyState) bool { return p.ID == t.on }); at >= 0 {
			return all[at], nil
		}
		return proxyState{}, failure.New(failure.Invalid, "settings.no_proxy", "no proxy %s lives", t.on).WithHint("drover config status shows those that do")
	}
	if len(all) == 0 {
		return proxyState{}, nil
	}
	return slices.MaxFunc(all, func(a, b proxyState) int {
		return cmp.Or(cmp.Compare(a.Health.Requests, b.Health.Requests), cmp.Compare(b.ID, a.ID))
	}), nil
}

// observe watches the proxy: it takes the version over, lives, hears, and answers no
// worse than before.
func (t *trial) observe(ctx context.Context, version int64, before proxyState) (outcome string, err error) {
	began := time.Now()
	var taken, worse time.Time
	for {
		all, err := states(ctx, t.store)
		if err != nil {
			return "", err
		}
		now := time.Now()
		at := slices.IndexFunc(all, func(p proxyState) bool { return p.ID == before.ID })
		if at < 0 {
			return "", fmt.Errorf("%s has fallen silent", before.ID)
		}
		p := all[at]
		why := ""
		switch {
		case before.Hears && !p.Hears:
			return "", fmt.Errorf("%s hears no announcements any more", p.ID)
		case p.Version != version && taken.IsZero() && now.Sub(began) < trialTakes:
		case p.Version != version:
			return "", fmt.Errorf("%s runs version %d: it has not taken the new one over; its log says why", p.ID, p.Version)
		default:
			if taken.IsZero() {
				taken = now
			}
			why = trialLimits.Judge(before.Health, p.Health)
		}
		switch {
		case why == "":
			worse = time.Time{}
		case worse.IsZero():
			worse = now
		case now.Sub(worse) >= trialWorse:
			return "", fmt.Errorf("%s answers worse: %s", p.ID, why)
		}
		if !taken.IsZero() && now.Sub(taken) >= t.watch && why == "" {
			return fmt.Sprintf("%s is as healthy as before: %d requests, %.2f %% failed, p99 %.1f ms", p.ID, p.Health.Requests, 100*p.Health.ErrorRate(), p.Health.P99MS), nil
		}
		if err := pause.For(ctx, trialLook); err != nil {
			return "", err
		}
	}
}

// waitForAll waits until all live proxies run a version, for a while, and names those
// that do not.
func waitForAll(ctx context.Context, store settingsLedger, version int64) (behind []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, trialTakes)
	defer cancel()
	for {
		all, err := states(ctx, store)
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		if err == nil {
			behind = nil
			for _, p := range all {
				if p.Version != version {
					behind = append(behind, p.ID)
				}
			}
			if len(behind) == 0 {
				return nil, nil
			}
		}
		if pause.For(ctx, trialLook) != nil {
			return behind, nil
		}
	}
}
