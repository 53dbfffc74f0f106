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
	"drover/workers"
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
	// newestIntents is how many intents are looked at for those that run.
	newestIntents = 50
	// silentAfter is how long a shard's capture may be silent.
	silentAfter = time.Minute
)

// How what was never measured gets measured.
const (
	sendWork  = "let applications work through the proxies: they learn it within a minute"
	firstMove = "complete a first move of a small chunk, or run drover demo"
	noShard   = "no shard is registered"
	addShard  = "drover shard add"
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
	surveyed      []workers.Surveyed
	room          []metadata.Admission // of each shard
	intents       []metadata.Intent
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

// survey asks the shards, and what they were seen to take.
func (e *evidence) survey(ctx context.Context, a *app, store *metadata.Store) (err error) {
	for _, sh := range e.shards {
		room, err := store.Converging(ctx, sh.Name)
		if err != nil {
			return err
		}
		e.room = append(e.room, room)
	}
	e.surveyed, err = workers.Survey(ctx, &a.cfg, store)
	return err
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
		func() error { e.intents, err = store.Intents(ctx, newestIntents); return err },
		func() error { return e.survey(ctx, a, store) },
	} {
		if err := read(); err != nil {
			return e, err
		}
	}
	e.callers, err = mergeEnvelopes(clients)
	return e, err
}

// answers answers every question.
func (e *evidence) answers() []answer {
	return []answer{
		e.envelope(), e.withoutRetries(), e.writersBeside(), e.controllers(), e.hold(), e.retained(), e.spareApply(), e.captured(), e.drilled(),
		e.wentBack(), e.stragglers(), e.repairable(), e.fanOut(),
	}
}

// envelope: does the least patient caller outlast a fence?
func (e *evidence) envelope() answer {
	x := answer{
		Question: "shortest retry envelope", Verdict: readyUnknown, Measured: "no caller was refused yet, and none gives a deadline",
		Advice: "drover migrate drill CHUNK in a quiet hour: proxies see who comes back, and for how long",
	}
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
	x.Verdict, x.Advice = readyGood, ""
	if shortest <= e.fenceDeadline {
		x.Verdict, x.Advice = readyLook, fmt.Sprintf("a fence may last %s: give that application more time, or lower --fence-deadline", e.fenceDeadline)
	}
	return x
}

// withoutRetries: whose writes does no driver repeat?
func (e *evidence) withoutRetries() answer {
	x := answer{Question: "writers without retries", Verdict: readyUnknown, Measured: "no proxy has seen a write yet", Advice: sendWork}
	var who []string
	for _, c := range e.callers {
		if c.Writes > 0 && x.Verdict == readyUnknown {
			x.Verdict, x.Measured, x.Advice = readyGood, "none", ""
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
	kept := e.retention // the archive takes over where Kafka ends
	text := "the archive is kept for ever"
	if e.retention > 0 {
		text = fmt.Sprintf("the archive is kept for %s", e.retention)
	}
	for _, s := range e.surveyed {
		switch {
		case s.KafkaErr != nil:
			text += fmt.Sprintf(", Kafka was not asked about %s (%v)", s.Shard, s.KafkaErr)
		case s.Kafka.For > 0:
			text += fmt.Sprintf(", Kafka keeps %s for %s", s.Shard, s.Kafka.For)
		}
		if s.OwnLog > 0 {
			text += fmt.Sprintf(", the own log of %s goes back %s", s.Shard, s.OwnLog.Round(time.Second))
		}
	}
	x := answer{Question: "log retention against the longest move", Verdict: readyUnknown, Measured: text + "; no move has been completed yet", Advice: firstMove}
	if kept == 0 {
		x.Verdict, x.Measured, x.Advice = readyGood, text, ""
		return x
	}
	if e.past.Done == 0 {
		return x
	}
	x.Verdict, x.Measured, x.Advice = readyGood, fmt.Sprintf("the longest of %d moves took %s; %s", e.past.Done, e.past.Longest.Round(time.Second), text), ""
	if kept < 2*e.past.Longest {
		x.Verdict, x.Advice = readyLook, "raise --archive-retention to twice the longest move"
	}
	return x
}

// spareApply: do the targets of moves apply twice what is written?
func (e *evidence) spareApply() answer {
	x := answer{
		Question: "spare apply capacity", Verdict: readyUnknown, Measured: "no shard was ever seen to apply all it can",
		Advice: "the first move that is behind measures its target; drover migrate pause and resume lets one fall behind",
	}
	least := 0.0
	note := func(ratio float64, measured string) {
		if least != 0 && ratio >= least {
			return
		}
		least, x.Verdict, x.Measured, x.Advice = ratio, readyGood, measured, ""
		if ratio < contract.SpareFactor {
			x.Verdict, x.Advice = readyLook, "less than twice: fewer moves to that shard, or a quieter time"
		}
	}
	for _, m := range e.figures.Moves {
		var p contract.Progress
		if json.Unmarshal(m.Progress, &p) == nil && p.Backlog > 0 && p.WritePerSecond > 0 {
			ratio := p.ApplyPerSecond / p.WritePerSecond
			note(ratio, fmt.Sprintf("%s applies %.1f times what is written", m.Chunk, ratio))
		}
	}
	var idle []string
	for _, r := range e.room {
		switch {
		case r.Capacity > 0 && r.Converging > 0:
			note(r.Capacity/r.Converging, fmt.Sprintf("%s was seen to apply %.0f/s, and %.0f/s converge on it", r.Shard, r.Capacity, r.Converging))
		case r.Capacity > 0:
			idle = append(idle, fmt.Sprintf("%s was seen to apply %.0f/s", r.Shard, r.Capacity))
		}
	}
	if least == 0 && len(idle) > 0 {
		x.Verdict, x.Measured, x.Advice = readyGood, strings.Join(idle, ", ")+"; nothing converges on it now", ""
	}
	return x
}

// captured: is every shard captured?
func (e *evidence) captured() answer {
	x := answer{Question: "every shard is captured", Verdict: readyGood, Measured: fmt.Sprintf("%d shards", len(e.figures.Captures))}
	if len(e.figures.Captures) == 0 {
		x.Verdict, x.Measured, x.Advice = readyUnknown, noShard, addShard
	}
	var silent []string
	for _, c := range e.figures.Captures {
		if c.Silence > silentAfter.Seconds() {
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
	x := answer{Question: "attempts that went back", Verdict: readyUnknown, Measured: "nothing was switched yet", Advice: firstMove}
	if all == 0 {
		return x
	}
	x.Verdict, x.Measured, x.Advice = readyGood, fmt.Sprintf("%d of %d", e.past.WentBack, all), ""
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
	if len(e.shards) == 0 {
		x.Verdict, x.Measured, x.Advice = readyUnknown, noShard, addShard
	}
	if len(e.layouts) < len(e.shards) {
		x.Verdict, x.Advice = readyLook, "drover shard layout set: without one nothing is mended"
	}
	return x
}
