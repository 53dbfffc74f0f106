package main

import (
	"math"
	"time"

	"drover/bench/figures"
	"drover/contract"
)

// report is the flat object.
func (b *bench) report() map[string]any {
	var windows, writes, reads, calm, slowest, since, behind []float64
	for _, s := range b.switches {
		p := b.work.Pauses(s.FencedAt.Add(-around), s.OpenedAt.Add(around))
		windows, writes, reads = append(windows, s.WindowMS), append(writes, ms(p.Writes)), append(reads, ms(p.Reads))
		slowest, since, behind = append(slowest, ms(p.Slowest)), append(since, ms(p.Since.Sub(s.FencedAt))), append(behind, ms(p.Since.Add(p.Writes).Sub(s.OpenedAt)))
	}
	for _, d := range b.calm {
		calm = append(calm, ms(d))
	}
	n, first := b.work.Errors()
	r := map[string]any{
		"switches": len(b.switches), "attempts_gone_back": b.back, "last_reason_gone_back": b.firstBad,
		"client_errors": n, "first_client_error": first,
		"ops_offered_per_s": b.o.rate, "ops_acknowledged_per_s": round(b.work.Rate()), "clients": b.o.clients, "chunk_mb": b.o.chunkMB,
		"write_gap_without_switch_p50_ms": round(figures.Quantile(calm, 0.5)), "write_gap_without_switch_p99_ms": round(figures.Quantile(calm, 0.99)),
		"seconds": round(time.Since(b.began).Seconds()), "sync_on_commit": true,
	}
	for name, values := range map[string][]float64{"window": windows, "write_pause": writes, "read_pause": reads,
		"slowest_write": slowest, "write_pause_begins_behind_fence": since, "write_pause_ends_behind_open": behind} {
		for _, q := range quantiles {
			r[name+q.name] = round(figures.Quantile(values, q.at))
		}
	}
	for step, values := range steps(b.switches) {
		r["step_"+step+"_switches"] = len(values) // lanes that are near have one marker less to pass
		for _, q := range quantiles[:2] {
			r["step_"+step+q.name] = round(figures.Quantile(values, q.at))
		}
	}
	return r
}

// quantiles are those that are reported.
var quantiles = []struct {
	name string
	at   float64
}{{"_p50_ms", 0.5}, {"_p99_ms", 0.99}, {"_max_ms", 1}}

// steps gives how long each step of each switch took, by name: from the mark before
// it to its own.
func steps(all []contract.SwitchResult) map[string][]float64 {
	out := map[string][]float64{}
	for _, s := range all {
		last := int64(0)
		for _, m := range s.Timeline {
			if m.AtUS < last { // another clock begins
				last = 0
			}
			out[m.Step] = append(out[m.Step], float64(m.AtUS-last)/1000)
			last = m.AtUS
		}
	}
	return out
}

// round keeps a figure readable.
func round(v float64) float64 { return math.Round(v*10) / 10 }
