package workers

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"drover/contract"
	"drover/gate"
	"drover/metadata"
	"drover/proxy"
)

// settingsPause is the time between two looks at the settings that are kept for the
// whole fleet.
const settingsPause = 2 * time.Second

// self is what a proxy says of itself beside its life.
type self struct {
	settings atomic.Int64 // version of the fleet's settings that it runs
	health   atomic.Pointer[contract.Traffic]
}

// healthOf sums up what a proxy did on all placements within the last minute. One that
// has not answered yet, to a transaction that began, has no histogram.
func healthOf(all []proxy.Traffic) *contract.Traffic {
	out := &contract.Traffic{Proxies: 1}
	var latency []int64
	for _, t := range all {
		out.Requests, out.Errors = out.Requests+t.Requests, out.Errors+t.Errors
		latency = gate.Sum(latency, t.Latency)
	}
	ms := func(q float64) float64 {
		return float64(gate.Quantile(latency, q, proxy.TrafficEdge).Microseconds()) / 1000
	}
	out.P50MS, out.P99MS = ms(0.5), ms(0.99)
	return out
}

// liveSettings tells which settings a proxy should run.
type liveSettings interface {
	SettingsOf(ctx context.Context, proxy string) (metadata.Settings, error)
}

// followSettings takes over what is kept for the whole fleet, as far as it is meant for
// this proxy, and whenever that changes. What cannot be read stays as it was. What is
// not taken over is told once and tried again: what is in its way may be this proxy's own
// file.
func followSettings(ctx context.Context, store liveSettings, id string, s *self, o ProxyOptions) {
	tick := time.NewTicker(settingsPause)
	defer tick.Stop()
	failed := int64(-1) // the version that was told
	for {
		if next, err := store.SettingsOf(ctx, id); err == nil && next.Version != s.settings.Load() {
			version := slog.Int64("version", next.Version)
			switch err := o.Settings(ctx, next.Content); {
			case err == nil:
				failed = -1
				s.settings.Store(next.Version)
				o.Logger.InfoContext(ctx, "Settings of the fleet are taken over", version)
			case failed != next.Version:
				failed = next.Version
				o.Logger.ErrorContext(ctx, "Settings of the fleet are not taken over", version, slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
