package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/demo/workload"
	"drover/internal/pause"
)

// warmUp is how long the application runs before and between the steps.
const warmUp = 3 * time.Second

// startWorkload lets the application run.
func (d *demo) startWorkload(ctx context.Context) error {
	uri := d.uri()
	if d.o.Sabotage != "" {
		var err error
		if uri, err = d.startSaboteurs(ctx); err != nil {
			return err
		}
	}
	w, err := workload.Start(ctx, workload.Config{
		URI: uri, Database: database, Clients: d.o.Clients, Rate: d.o.Rate, Origins: d.origins, HotOrigins: d.hotOrigins,
		HotShare: 0.6, Documents: 40, Seed: 1,
	})
	if err != nil {
		return err
	}
	d.work = w
	d.say("the application runs: %d clients, %d operations per second, open loop", d.o.Clients, d.o.Rate)
	return pause.For(ctx, warmUp)
}

// move moves the chunk, goes back, forth again, and completes.
func (d *demo) move(ctx context.Context) error {
	in := manual
	in.Chunk = d.report.Chunk
	run, err := d.starter.Migrate(ctx, in)
	if err != nil {
		return err
	}
	d.report.UI = fmt.Sprintf("%s/namespaces/%s/workflows/%s/%s/history", d.stack.Temporal.UI, d.stack.Temporal.Namespace, escape(run.WorkflowID), run.RunID)
	d.say("moving %s from %s to %s: %s", in.Chunk, d.report.From, target, d.report.UI)
	for _, leg := range []struct {
		what, ask string
		until     func(contract.Status) bool
	}{
		{"move", "", func(s contract.Status) bool {
			return s.Phase == chunk.BurnIn && s.Serving.ID == s.Target.ID && s.WaitingFor != ""
		}},
		{"rollback", contract.RollbackUpdate, func(s contract.Status) bool {
			return s.Serving.ID == s.Source.ID && s.WaitingFor != "" && len(s.Updates) > 0 && slices.Contains(s.Updates, contract.ApproveUpdate)
		}},
		{"forth again", contract.ApproveUpdate, func(s contract.Status) bool {
			return s.Phase == chunk.BurnIn && s.Serving.ID == s.Target.ID && slices.Contains(s.Updates, contract.CompleteUpdate)
		}},
	} {
		if err := d.leg(ctx, in.Chunk, leg.what, leg.ask, leg.until); err != nil {
			return err
		}
		if err := pause.For(ctx, warmUp); err != nil {
			return err
		}
	}
	if _, err := d.starter.Ask(ctx, in.Chunk, contract.CompleteUpdate, contract.UpdateInput{By: "drover demo"}); err != nil {
		return err
	}
	began := time.Now()
	res, err := d.starter.Result(ctx, in.Chunk)
	if err != nil {
		return err
	}
	d.report.Steps = append(d.report.Steps, Step{Name: "complete and drop", Seconds: time.Since(began).Seconds()})
	d.say("%s is %s, served by %s", res.Chunk, res.Phase, res.Serving.Shard)
	d.report.Switches = nil
	for _, s := range res.Switches {
		d.report.Switches = append(d.report.Switches, d.switchReport(s))
	}
	return pause.For(ctx, warmUp)
}

// tellEvery is how often a wait is explained.
const tellEvery = 10 * time.Second

// leg asks for something and follows the move until it is there.
func (d *demo) leg(ctx context.Context, id chunk.ID, what, ask string, until func(contract.Status) bool) error {
	if ask != "" {
		if _, err := d.starter.Ask(ctx, id, ask, contract.UpdateInput{By: "drover demo", Reason: "drill"}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	step, since := "", time.Now()
	began, told := time.Now(), time.Now()
	close := func(st contract.Status) {
		if step == "" {
			return
		}
		s := Step{Name: step, Seconds: time.Since(since).Seconds()}
		switch {
		case step == "import" && st.Import != nil:
			s.Documents, s.Bytes = st.Import.Documents, st.Import.Bytes
		case step == "validate" && st.Validation != nil:
			s.Documents, s.Bytes = st.Validation.Documents, st.Validation.Bytes
		}
		d.report.Steps = append(d.report.Steps, s)
		d.say("  %-26s %6.1f s  %s", s.Name, s.Seconds, s.amount())
	}
	for {
		st, err := d.starter.Status(ctx, id)
		if err != nil {
			return err
		}
		if st.Attention != "" {
			return fmt.Errorf("%s: the move needs a person: %s", what, st.Attention)
		}
		if ask == "" && st.Step != step {
			close(st)
			step, since = st.Step, time.Now()
		}
		if st.WaitingFor != "" && time.Since(told) > tellEvery {
			d.say("  it waits for %s", st.WaitingFor)
			told = time.Now()
		}
		if until(st) {
			if ask != "" {
				d.report.Steps = append(d.report.Steps, Step{Name: what, Seconds: time.Since(began).Seconds()})
			}
			d.say("%s: %s serves; %d operations acknowledged so far, %.0f per second", what, st.Serving.Shard, d.work.Acknowledged(), d.work.Rate())
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not come to its end, it is at %q waiting for %q: %w", what, st.Step, st.WaitingFor, ctx.Err())
		case <-tick.C:
		}
	}
}

// check stops the application and compares everything.
func (d *demo) check(ctx context.Context) error {
	d.work.Stop()
	d.report.Acknowledged = d.work.Acknowledged()
	d.report.Rate = d.work.Rate()
	d.report.ClientErrors, d.report.FirstError = d.work.Errors()
	v, err := d.work.Check(ctx)
	if err == nil {
		err = d.checkRows(ctx, &v)
	}
	d.report.Verdict = v
	if err != nil {
		return err
	}
	stragglers, err := d.store.Stragglers(ctx)
	if err != nil {
		return err
	}
	d.report.Stragglers = int64(len(stragglers))
	return nil
}
