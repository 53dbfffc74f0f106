package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/gate"
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
	until := time.Now().Add(time.Duration(in.For))
	err := beating(ctx, func() any { return nil }, func(ctx context.Context) error {
		tick := time.NewTicker(measureEvery)
		defer tick.Stop()
		since := time.Time{} // past the limit
		for time.Now().Before(until) {
			after, _, err := a.traffic(ctx, chunk.PlacementID(in.Serving.ID))
			if err != nil {
				return err
			}
			r.After, r.Why = after, a.Settings.Worse.Judge(in.Before, after)
			switch {
			case r.Why == "":
				since = time.Time{}
			case since.IsZero():
				since = time.Now()
			case time.Since(since) >= worseFor:
				r.Worse = true
				return nil
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
		}
		return nil
	})
	return r, err
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
