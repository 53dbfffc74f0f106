package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/demo"
	"drover/demo/workload"
	"drover/internal/pause"
)

// Spans around a switch.
const (
	around  = 400 * time.Millisecond // how far before the fence and behind the opening pauses are looked for
	warmUp  = 3 * time.Second        // of the application before the move
	patient = 3 * time.Minute        // for one switch to come about, and longer by the chunk's size: the first comes behind the import
	copied  = 5                      // MB that are imported in a second
	looks   = 200 * time.Millisecond // between two looks at the metadata
)

// bench is one run.
type bench struct {
	o     options
	fleet *demo.Fleet
	began time.Time

	work     *workload.Workload
	switches []contract.SwitchResult
	back     int // attempts that went back
	firstBad string
	calm     []time.Duration // longest gaps between acknowledged writes where nothing was switched
}

// run moves the chunk and switches it back and forth.
func (b *bench) run(ctx context.Context) (err error) {
	id := b.fleet.Hot().Chunk.ID
	if err := b.fleet.Fill(ctx, b.o.chunkMB<<20); err != nil {
		return err
	}
	first, then := b.application, b.migrate
	if b.o.behind {
		first, then = b.migrated, b.application
	}
	defer func() {
		if b.work != nil {
			b.work.Stop()
		}
	}()
	if err := first(ctx, id); err != nil {
		return err
	}
	if err := then(ctx, id); err != nil {
		return err
	}
	for len(b.switches) < b.o.switches {
		if err := b.one(ctx, id); err != nil {
			return err
		}
		if b.o.limit > 0 && time.Since(b.began) > b.o.limit {
			b.fleet.Say("stopped after %s with %d of %d switches", b.o.limit, len(b.switches), b.o.switches)
			break
		}
	}
	return nil
}

// application begins to work.
func (b *bench) application(ctx context.Context, _ chunk.ID) (err error) {
	b.fleet.Say("%d clients offer %d operations per second", b.o.clients, b.o.rate)
	if b.work, err = b.fleet.Run(ctx, b.o.hotShare); err != nil {
		return err
	}
	return pause.For(ctx, warmUp)
}

// migrate begins the move.
func (b *bench) migrate(ctx context.Context, id chunk.ID) error {
	b.fleet.Say("moving %s of %d MB to %s", id, b.o.chunkMB, b.fleet.Target())
	_, err := b.fleet.Starter().Migrate(ctx, contract.MigrateInput{
		Chunk: id, To: b.fleet.Target(), Complete: contract.Manual, BurnIn: contract.Duration(24 * time.Hour), RequestedBy: "bench/switch",
	})
	return err
}

// migrated begins the move and waits until the chunk is imported.
func (b *bench) migrated(ctx context.Context, id chunk.ID) error {
	if err := b.migrate(ctx, id); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	for {
		switch st, err := b.fleet.Starter().Status(ctx, id); {
		case err != nil:
			return err
		case st.Attention != "":
			return fmt.Errorf("the move needs a person: %s", st.Attention)
		case st.Phase != chunk.Registered && st.Phase != chunk.Importing:
			return nil
		}
		if err := pause.For(ctx, looks); err != nil {
			return err
		}
	}
}

// patience is how long one switch may be waited for.
func (b *bench) patience() time.Duration {
	return patient + time.Duration(b.o.chunkMB)*time.Second/copied
}

// one waits for the next switch and asks for the one after it.
func (b *bench) one(ctx context.Context, id chunk.ID) error {
	ctx, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	for {
		st, err := b.fleet.Starter().Status(ctx, id)
		if err != nil {
			return err
		}
		if st.Attention != "" {
			return fmt.Errorf("the move needs a person: %s", st.Attention)
		}
		published := b.published(st.Switches)
		next := nextOf(st)
		if fresh := b.fresh(published); len(fresh) > 0 && next != "" {
			b.note(fresh)
			_, err := b.fleet.Starter().Ask(ctx, id, next, contract.UpdateInput{By: "bench/switch"})
			return err
		}
		if err := pause.For(ctx, looks); err != nil {
			return fmt.Errorf("no switch came about; the move is at %q waiting for %q: %w", st.Step, st.WaitingFor, err)
		}
	}
}

// fresh are those that were not noted yet: a long move tells the newest only.
func (b *bench) fresh(published []contract.SwitchResult) []contract.SwitchResult {
	if len(b.switches) == 0 {
		return published
	}
	last := b.switches[len(b.switches)-1].Attempt
	return slices.DeleteFunc(published, func(s contract.SwitchResult) bool { return s.Attempt <= last })
}

// published are the attempts that went forward; the others are counted.
func (b *bench) published(all []contract.SwitchResult) []contract.SwitchResult {
	var out []contract.SwitchResult
	b.back = 0
	for _, s := range all {
		if s.Published {
			out = append(out, s)
			continue
		}
		b.back++
		b.firstBad = s.Reason
	}
	return out
}

// nextOf is what asks for the way back, or forth again; empty while neither may be
// asked for.
func nextOf(st contract.Status) string {
	if st.Phase != chunk.BurnIn || st.WaitingFor == "" {
		return ""
	}
	for _, u := range []string{contract.RollbackUpdate, contract.ApproveUpdate} {
		if slices.Contains(st.Updates, u) {
			return u
		}
	}
	return ""
}

// note keeps switches, and looks at a span like theirs in which nothing happened.
func (b *bench) note(done []contract.SwitchResult) {
	for _, s := range done {
		b.switches = append(b.switches, s)
		length := s.OpenedAt.Sub(s.FencedAt) + 2*around
		end := s.FencedAt.Add(-around)
		b.calm = append(b.calm, b.work.Pauses(end.Add(-length), end).Writes)
		p := b.work.Pauses(s.FencedAt.Add(-around), s.OpenedAt.Add(around))
		b.fleet.Say("switch %d: window %.1f ms, writes paused %.1f ms, reads %.1f ms", len(b.switches), s.WindowMS, ms(p.Writes), ms(p.Reads))
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
