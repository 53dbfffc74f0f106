package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
	"drover/proxy"
)

// The verdicts of a readiness question.
const (
	readyGood    = "good"
	readyLook    = "look"    // a person should
	readyUnknown = "unknown" // nothing was measured
)

const (
	// drillEvery is how old the newest rollback may be.
	drillEvery = 30 * 24 * time.Hour
	// silentAfter is how long a shard's capture may be silent.
	silentAfter = time.Minute
)

// answer is one question that an architect would ask, with what was measured.
type answer struct {
	Question string `json:"question"`
	Verdict  string `json:"verdict"`
	Measured string `json:"measured"`
	Advice   string `json:"advice,omitempty"`
}

// evidence is what the answers rest on.
type evidence struct {
	now           time.Time
	fenceDeadline time.Duration
	retention     time.Duration // of the archive; 0: for ever
	callers       []proxy.Envelope
	proxies       []metadata.Proxy
	past          metadata.Past
	figures       metadata.Figures
	shards        []chunk.Shard
	layouts       []metadata.Declared
}

func newReadinessCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "readiness", Short: "Tell from measured values what a switch would meet today", Args: cobra.NoArgs,
		Long: "Tell from measured values what a switch would meet today: callers, proxies, logs, drills. Settings are those that workers started\n" +
			"from here would have. Exit status 3: a person should look at something.",
		Example: "  drover readiness",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.load(cmd, config.Worker); err != nil {
				return err
			}
			store, err := a.openStore(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close()
			e, err := a.evidence(cmd.Context(), store)
			if err != nil {
				return err
			}
			answers := e.answers()
			err = a.print(answers, []string{"QUESTION", "VERDICT", "MEASURED", "WHAT TO DO"}, func() (rows [][]string) {
				for _, x := range answers {
					rows = append(rows, []string{x.Question, x.Verdict, x.Measured, x.Advice})
				}
				return rows
			})
			if err == nil && slices.ContainsFunc(answers, func(x answer) bool { return x.Verdict == readyLook }) {
				return &exitError{exitWaits}
			}
			return err
		},
	}
	a.cfg.Flags(c.Flags(), config.Worker)
	return c
}

// evidence reads what the answers rest on.
func (a *app) evidence(ctx context.Context, store *metadata.Store) (e evidence, err error) {
	e = evidence{now: time.Now(), fenceDeadline: a.cfg.FenceDeadline, retention: a.cfg.ArchiveRetention}
	var clients []metadata.ProxyClient
	for _, read := range []func() error{
		func() error { clients, err = store.ProxyClients(ctx); return err },
		func() error { e.proxies, err = store.LiveProxies(ctx); return err },
		func() error { e.past, err = store.Past(ctx); return err },
		func() error { e.figures, err = store.Figures(ctx); return err },
		func() error { e.shards, err = store.Shards(ctx); return err },
		func() error { e.layouts, err = store.DeclaredLayouts(ctx); return err },
	} {
		if err := read(); err != nil {
			return e, err
		}
	}
	for _, c := range clients {
		var x proxy.Envelope
		if err := json.Unmarshal(c.Envelope, &x); err != nil {
			return e, fmt.Errorf("read what %s knows of %s: %w", c.Proxy, c.App, err)
		}
		e.callers = append(e.callers, x)
	}
	return e, nil
}

// answers answers every question.
func (e *evidence) answers() []answer {
	return []answer{
		e.envelope(), e.withoutRetries(), e.hold(), e.retained(), e.spareApply(), e.captured(), e.drilled(), e.wentBack(), e.stragglers(), e.repairable(),
		{"writers beside the proxies", readyUnknown, "the metadata does not see them", "drover shard check SHARD lists them"},
		{"fan-out of requests", readyUnknown, "the metadata does not see it", "drover_proxy_fan_out_chunks, on the dashboard proxy"},
	}
}

// envelope: does the least patient caller outlast a fence?
func (e *evidence) envelope() answer {
	x := answer{Question: "shortest retry envelope", Verdict: readyUnknown, Measured: "no caller was refused yet, and none gives a deadline"}
	var shortest time.Duration
	note := func(ms int64, c proxy.Envelope, what string) {
		if d := time.Duration(ms) * time.Millisecond; ms > 0 && (shortest == 0 || d < shortest) {
			shortest, x.Measured = d, fmt.Sprintf("%s: %s of %s (%s)", d, what, c.App, c.User)
		}
	}
	for _, c := range e.callers {
		note(c.ShortestMS, c, "the shortest maxTimeMS")
		if c.GaveUp > 0 {
			note(c.PatienceMS, c, "gave up after")
		}
	}
	if shortest == 0 {
		return x
	}
	x.Verdict = readyGood
	if shortest <= e.fenceDeadline {
		x.Verdict, x.Advice = readyLook, fmt.Sprintf("a fence may last %s: give that application more time, or lower --fence-deadline", e.fenceDeadline)
	}
	return x
}

// withoutRetries: whose writes does no driver repeat?
func (e *evidence) withoutRetries() answer {
	x := answer{Question: "writers without retries", Verdict: readyUnknown, Measured: "no proxy has seen a write yet"}
	var who []string
	for _, c := range e.callers {
		if c.Writes > 0 && x.Verdict == readyUnknown {
			x.Verdict, x.Measured = readyGood, "none"
		}
		if c.Unnumbered > 0 {
			who = append(who, fmt.Sprintf("%s (%s) %.0f%%", c.App, c.User, 100*float64(c.Unnumbered)/float64(max(1, c.Writes))))
		}
	}
	if len(who) > 0 {
		x.Verdict, x.Measured, x.Advice = readyLook, strings.Join(who, ", "), "retryWrites=true, and single statements in place of multi-document ones"
	}
	return x
}

// hold: do proxies hold requests for longer than a fence lasts?
func (e *evidence) hold() answer {
	x := answer{Question: "proxies hold requests past a fence", Verdict: readyLook, Measured: "no proxy is alive", Advice: "start proxies"}
	for i, p := range e.proxies {
		if i == 0 || p.Hold <= e.fenceDeadline {
			x.Verdict, x.Measured, x.Advice = readyGood, fmt.Sprintf("%d proxies, %s holds for %s, a fence lasts at most %s", len(e.proxies), p.ID, p.Hold, e.fenceDeadline), ""
		}
		if p.Hold <= e.fenceDeadline {
			x.Verdict, x.Advice = readyLook, "raise --switch-wait of that proxy, or lower --fence-deadline of the workers"
			break
		}
	}
	return x
}

// retained: is the log kept for longer than the longest move?
func (e *evidence) retained() answer {
	x := answer{Question: "log retention against the longest move", Verdict: readyUnknown, Measured: fmt.Sprintf("kept for %s; no move has been completed yet", e.retention)}
	if e.retention == 0 {
		x.Verdict, x.Measured = readyGood, "the archive is kept for ever"
		return x
	}
	if e.past.Done == 0 {
		return x
	}
	x.Verdict, x.Measured = readyGood, fmt.Sprintf("kept for %s; the longest of %d moves took %s", e.retention, e.past.Done, e.past.Longest.Round(time.Second))
	if e.retention < 2*e.past.Longest {
		x.Verdict, x.Advice = readyLook, "raise --archive-retention to twice the longest move"
	}
	return x
}

// spareApply: do the targets of moves that are behind apply twice what is written?
func (e *evidence) spareApply() answer {
	x := answer{Question: "spare apply capacity", Verdict: readyUnknown, Measured: "no move is behind now, so nothing is measured"}
	least := 0.0
	for _, m := range e.figures.Moves {
		var p contract.Progress
		if json.Unmarshal(m.Progress, &p) != nil || p.Backlog == 0 || p.WritePerSecond == 0 {
			continue
		}
		if ratio := p.ApplyPerSecond / p.WritePerSecond; least == 0 || ratio < least {
			least, x.Verdict = ratio, readyGood
			x.Measured = fmt.Sprintf("%s applies %.1f times what is written", m.Chunk, ratio)
			if ratio < 2 {
				x.Verdict, x.Advice = readyLook, "less than twice: fewer moves to that shard, or a quieter time"
			}
		}
	}
	return x
}

// captured: is every shard captured?
func (e *evidence) captured() answer {
	x := answer{Question: "every shard is captured", Verdict: readyGood, Measured: fmt.Sprintf("%d shards", len(e.figures.Captures))}
	var silent []string
	for _, c := range e.figures.Captures {
		if c.Silence == nil || *c.Silence > silentAfter.Seconds() {
			silent = append(silent, c.Shard)
		}
	}
	if len(silent) > 0 {
		x.Verdict, x.Measured, x.Advice = readyLook, "silent: "+strings.Join(silent, ", "), "docs/alarms.md, CaptureSilent"
	}
	return x
}

// drilled: when was a way back last gone?
func (e *evidence) drilled() answer {
	x := answer{Question: "last rollback, or drill of one", Verdict: readyLook, Measured: "never", Advice: "drover migrate drill CHUNK, during a burn-in"}
	if e.past.Rollback != nil {
		age := e.now.Sub(*e.past.Rollback)
		x.Measured = fmt.Sprintf("%s ago, %d in all", age.Round(time.Second), e.past.Rollbacks)
		if age <= drillEvery {
			x.Verdict, x.Advice = readyGood, ""
		}
	}
	return x
}

// wentBack: how many attempts do not make it?
func (e *evidence) wentBack() answer {
	all := e.past.Switches + e.past.WentBack
	x := answer{Question: "attempts that went back", Verdict: readyUnknown, Measured: "nothing was switched yet"}
	if all == 0 {
		return x
	}
	x.Verdict, x.Measured = readyGood, fmt.Sprintf("%d of %d", e.past.WentBack, all)
	if 4*e.past.WentBack > all {
		x.Verdict, x.Advice = readyLook, "drover migrate timeline CHUNK shows the step that takes long"
	}
	return x
}

// stragglers: are there any that nobody has dealt with?
func (e *evidence) stragglers() answer {
	x := answer{Question: "open stragglers", Verdict: readyGood, Measured: "none"}
	total := int64(0)
	for _, n := range e.figures.Stragglers {
		total += n
	}
	if total > 0 {
		x.Verdict, x.Measured, x.Advice = readyLook, fmt.Sprint(total), "docs/alarms.md, Stragglers"
	}
	return x
}

// repairable: which shards can remediation mend?
func (e *evidence) repairable() answer {
	x := answer{Question: "shards with a declared layout", Verdict: readyGood, Measured: fmt.Sprintf("%d of %d", len(e.layouts), len(e.shards))}
	if len(e.layouts) < len(e.shards) {
		x.Verdict, x.Advice = readyLook, "drover shard layout set: without one nothing is mended"
	}
	return x
}
