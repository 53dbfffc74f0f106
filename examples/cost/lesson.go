package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/contract"
	"drover/demo/workload"
)

// told is what the move came to.
type told struct {
	status  contract.Status // in burn-in
	objects int             // that the move stored
	stored  int64           // their bytes
	errors  int64           // of the application
	verdict workload.Verdict
}

// lesson moves the chunk while an application uses it.
func (f *fleet) lesson(ctx context.Context, out io.Writer, s size) (t told, err error) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		f.parts.Wait()
	}()
	if err := f.begin(ctx); err != nil {
		return t, err
	}
	if err := f.fill(ctx, s.documents); err != nil {
		return t, err
	}
	w, err := workload.Start(ctx, workload.Config{
		URI: "mongodb://" + f.address + "/", Database: f.database, Clients: 8, Rate: s.rate, Origins: origins, HotOrigins: origins, HotShare: 1, Documents: 20, Seed: 3,
		Guarded: true,
	})
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, w.Close(context.WithoutCancel(ctx))) }()
	id := chunk.NewID(f.database, 1)
	say("%s has %d documents on %s; an application asks %d times a second. It moves to %s.\n", id, s.documents, f.shards[0].name, s.rate, f.shards[1].name)
	before, beforeSize, err := f.stored(ctx)
	if err != nil {
		return t, err
	}
	if _, err := f.drover(ctx, "migrate", "start", string(id), "--to", f.shards[1].name, "--complete", contract.Manual); err != nil {
		return t, err
	}
	if err := f.follow(ctx, id, &t, say); err != nil {
		return t, err
	}
	after, afterSize, err := f.stored(ctx)
	if err != nil {
		return t, err
	}
	t.objects, t.stored = after-before, afterSize-beforeSize
	if _, err := f.drover(ctx, "migrate", "complete", string(id), "--yes"); err != nil {
		return t, err
	}
	if err := f.until(ctx, "the end of the move", func() (bool, error) { return f.gone(ctx), nil }); err != nil {
		return t, err
	}
	w.Stop()
	if t.verdict, err = w.Check(ctx); err != nil {
		return t, err
	}
	t.errors, _ = w.Errors()
	t.print(say, w)
	return t, nil
}

// gone reports whether no move of the database is left.
func (f *fleet) gone(ctx context.Context) bool {
	out, err := f.drover(ctx, "migrate", "list", "--unfinished", "-o", "json")
	return err == nil && !strings.Contains(out, f.database)
}

// origins are the shard keys of the lesson: all live in the one chunk.
var origins = []string{"ATL", "DEN", "JFK", "LAX", "ORD"} //nolint:gochecknoglobals // a constant

// fill gives the chunk its size.
func (f *fleet) fill(ctx context.Context, documents int) error {
	c, err := workload.Connect("mongodb://" + f.address + "/")
	if err != nil {
		return err
	}
	defer func() { _ = c.Disconnect(context.WithoutCancel(ctx)) }()
	rows, pad := c.Database(f.database).Collection("rows"), strings.Repeat("x", 1000)
	for all := range slices.Chunk(numbers(documents), 1000) {
		var docs []any
		for _, n := range all {
			docs = append(docs, bson.D{{Key: "_id", Value: n}, {Key: "origin", Value: origins[n%len(origins)]}, {Key: "pad", Value: pad}})
		}
		if _, err := rows.InsertMany(ctx, docs); err != nil {
			return fmt.Errorf("fill the chunk: %w", err)
		}
	}
	return nil
}

// numbers are 0 to n-1.
func numbers(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// follow tells each phase when it is over, until the target serves.
func (f *fleet) follow(ctx context.Context, id chunk.ID, t *told, say func(string, ...any)) error {
	step, since := "", time.Now()
	return f.until(ctx, "burn-in", func() (bool, error) {
		var st contract.Status
		if err := f.ask(ctx, &st, "migrate", "status", string(id)); err != nil {
			return false, nil //nolint:nilerr // a move that has just begun cannot be asked; patience ends it
		}
		if st.Attention != "" {
			return false, fmt.Errorf("the move needs a person: %s", st.Attention)
		}
		if st.Step != step {
			if step != "" {
				say("  %-28s %6.1f s", step, time.Since(since).Seconds())
			}
			step, since = st.Step, time.Now()
		}
		t.status = st
		return st.Phase == chunk.BurnIn && st.Serving.ID == st.Target.ID && slices.Contains(st.Updates, contract.CompleteUpdate), nil
	})
}

// print says what it cost.
func (t told) print(say func(string, ...any), w *workload.Workload) {
	mb := func(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
	say("")
	if i := t.status.Import; i != nil {
		say("copied     %d documents, %s; %s", i.Documents, mb(i.Bytes), i.Sort)
	}
	say("stored     %d objects, %s compressed, of imports and captured logs", t.objects, mb(t.stored))
	if v := t.status.Validation; v != nil {
		say("compared   %d documents, %s, byte by byte", v.Documents, mb(v.Bytes))
	}
	for _, s := range t.status.Switches {
		p := w.Pauses(s.FencedAt.Add(-around), s.OpenedAt.Add(around))
		say("switch     window %.0f ms; longest gap between acknowledged writes %d ms, reads %d ms", s.WindowMS, p.Writes.Milliseconds(), p.Reads.Milliseconds())
	}
	say("felt       %d operations acknowledged, %d errors; %d documents compared with the application's memory: %d lost, %d doubled",
		w.Acknowledged(), t.errors, t.verdict.Documents, t.verdict.Lost, t.verdict.Duplicated)
}

// around is how far beside the window gaps are looked for.
const around = 400 * time.Millisecond
