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

// healthOf sums up what a proxy did on all placements within the last minute.
func healthOf(all []proxy.Traffic) *contract.Traffic {
	out := &contract.Traffic{Proxies: 1}
	var latency []int64
	for _, t := range all {
		out.Requests, out.Errors = out.Requests+t.Requests, out.Errors+t.Errors
		if latency == nil {
			latency = make([]int64, len(t.Latency))
		}
		for b, n := range t.Latency {
			latency[b] += n
		}
	}
	ms := func(q float64) float64 {
		return float64(gate.Quantile(latency, q, proxy.TrafficEdge).Microseconds()) / 1000
	}
	out.P50MS, out.P99MS = ms(0.5), ms(0.99)
	return out
}

// followSettings takes over what is kept for the whole fleet, as far as it is meant for
// this proxy, and whenever that changes. What cannot be read stays as it was.
func followSettings(ctx context.Context, store *metadata.Store, id string, s *self, o ProxyOptions) {
	tick := time.NewTicker(settingsPause)
	defer tick.Stop()
	failed := int64(-1) // the version that was not taken over: it is told once
	for {
		next, err := store.SettingsOf(ctx, id)
		if err == nil && next.Version != s.settings.Load() && next.Version != failed {
			if err := o.Settings(ctx, next.Content); err != nil {
				failed = next.Version
				o.Logger.ErrorContext(ctx, "Settings of the fleet are not taken over", slog.Int64("version", next.Version), slog.Any("error", err))
			} else {
				failed = -1
				s.settings.Store(next.Version)
				o.Logger.InfoContext(ctx, "Settings of the fleet are taken over", slog.Int64("version", next.Version))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
