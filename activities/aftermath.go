package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/gate"
	"drover/internal/pause"
	"drover/metadata"
)

// worseFor is how long a figure must be past its limit: one slow minute-window that
// a cold cache made passes.
const worseFor = 10 * time.Second

// WatchSwitch watches how a chunk does on its new placement, against before. It
// ends when a figure has been past its limit for [worseFor], or the time is over.
//
// If interrupted: run again; the time begins anew.
func (a *Activities) WatchSwitch(ctx context.Context, in contract.AftermathInput) (contract.AftermathResult, error) {
	r := contract.AftermathResult{Before: in.Before, Limits: a.Settings.Worse.List()}
	err := beating(ctx, func() any { return nil }, func(ctx context.Context) error {
		rows, err := a.Store.Legs(ctx, in.Migration)
		if err != nil {
			return err
		}
		opened := doomedOf(rows, chunk.PlacementID(in.Serving.ID))
		r.Worse, err = stays(ctx, time.Duration(in.For), func() (bool, error) {
			all, err := a.serving(ctx, opened)
			if err == nil {
				r.After, r.Why = worst(a.Settings.Worse, in.Before, all)
			}
			return r.Why != "", err
		})
		return err
	})
	return r, err
}

// stays looks again and again for some time, and ends before it when what it looks for
// has been so at every look for [worseFor].
func stays(ctx context.Context, within time.Duration, look func() (bool, error)) (bool, error) {
	until := time.Now().Add(within)
	since := time.Time{}
	for time.Now().Before(until) {
		is, err := look()
		switch {
		case err != nil:
			return false, err
		case !is:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= worseFor:
			return true, nil
		}
		if err := pause.For(ctx, measureEvery); err != nil {
			return false, err
		}
	}
	return false, nil
}

// partTraffic is how a placement serves.
type partTraffic struct {
	placement chunk.Placement
	traffic   contract.Traffic
}

// serving is how every placement serves that a switch has opened.
func (a *Activities) serving(ctx context.Context, opened []doomed) ([]partTraffic, error) {
	var all []partTraffic
	for _, o := range opened {
		t, _, err := a.traffic(ctx, o.placement.ID)
		if err != nil {
			return nil, err
		}
		all = append(all, partTraffic{o.placement, t})
	}
	return all, nil
}

// worst judges each placement for itself, against before: a slow one does not hide
// among others. Where none is worse off it gives the slowest.
func worst(limits gate.Worse, before contract.Traffic, all []partTraffic) (slowest contract.Traffic, why string) {
	for i, s := range all {
		if why := limits.Judge(before, s.traffic); why != "" {
			if len(all) > 1 {
				why = fmt.Sprintf("%s on %s: %s", s.placement.Chunk, s.placement.Shard, why)
			}
			return s.traffic, why
		}
		if i == 0 || s.traffic.P99MS > slowest.P99MS {
			slowest = s.traffic
		}
	}
	return slowest, ""
}

// word is what one proxy says of a placement.
type word struct {
	Requests          int64   `json:"requests"`
	Errors            int64   `json:"errors"`
	Latency           []int64 `json:"latency"`
	Transactions      int     `json:"transactions"`
	OldestTransaction int64   `json:"oldest_transaction_ms"`
	Cursors           int     `json:"cursors"`
	OldestCursor      int64   `json:"oldest_cursor_ms"`
}

// traffic sums up what the live proxies say of a placement: how it serves, and what
// is open on it.
func (a *Activities) traffic(ctx context.Context, p chunk.PlacementID) (contract.Traffic, contract.OpenWork, error) {
	raw, err := a.Store.Traffic(ctx, p)
	if err != nil {
		return contract.Traffic{}, contract.OpenWork{}, err
	}
	words := make([]word, len(raw))
	for i, b := range raw {
		if err := json.Unmarshal(b, &words[i]); err != nil {
			return contract.Traffic{}, contract.OpenWork{}, fmt.Errorf("read a proxy's word on placement %d: %w", p, err)
		}
	}
	t, w := together(words, a.LatencyEdge)
	return t, w, nil
}

// together sums up words; edge gives the upper edge of a bucket of their histogram.
func together(words []word, edge func(int) time.Duration) (contract.Traffic, contract.OpenWork) {
	t, w := contract.Traffic{Proxies: len(words)}, contract.OpenWork{Way: "proxies"}
	var latency []int64
	for _, x := range words {
		t.Requests, t.Errors = t.Requests+x.Requests, t.Errors+x.Errors
		latency = gate.Sum(latency, x.Latency)
		w.Transactions, w.Cursors = w.Transactions+x.Transactions, w.Cursors+x.Cursors
		oldest := time.Duration(max(x.OldestTransaction, x.OldestCursor)) * time.Millisecond
		w.Oldest = max(w.Oldest, contract.Duration(oldest))
	}
	ms := func(q float64) float64 {
		return float64(gate.Quantile(latency, q, edge).Microseconds()) / 1000
	}
	t.P50MS, t.P99MS = ms(0.5), ms(0.99)
	return t, w
}

// envelope is what one proxy has learned about one caller.
type envelope struct {
	Writes     int64 `json:"writes"`
	Unnumbered int64 `json:"unnumbered"`
	ShortestMS int64 `json:"shortest_ms"`
	GaveUp     int64 `json:"gave_up"`
	PatienceMS int64 `json:"patience_ms"`
}

// callers gives what the proxies have learned about those who use them, each once for
// each proxy.
func (a *Activities) callers(ctx context.Context) ([]gate.Caller, error) {
	all, err := a.Store.ProxyClients(ctx)
	if err != nil {
		return nil, err
	}
	return callersOf(all)
}

// callersOf reads what proxies have recorded.
func callersOf(all []metadata.ProxyClient) ([]gate.Caller, error) {
	out := make([]gate.Caller, 0, len(all))
	for _, c := range all {
		var e envelope
		if err := json.Unmarshal(c.Envelope, &e); err != nil {
			return nil, fmt.Errorf("what %s says about %s: %w", c.Proxy, c.User, err)
		}
		out = append(out, gate.Caller{
			User: c.User, App: c.App, Writes: e.Writes, Unrepeated: e.Unnumbered, GaveUp: e.GaveUp,
			Shortest: time.Duration(e.ShortestMS) * time.Millisecond, Patience: time.Duration(e.PatienceMS) * time.Millisecond,
		})
	}
	return out, nil
}
