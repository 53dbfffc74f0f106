package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"drover/bench/loads"
	"drover/chunk"
	"drover/contract"
	"drover/demo"
	"drover/demo/workload"
)

// Sizes of what is measured on a fleet.
const (
	fleetDocuments = 150_000
	changed        = 20_000 // documents that updates go to
	backlog        = 60_000 // updates
	largeDocuments = 200
	largeBytes     = 100_000
	largeBacklog   = 10_000
	lagRate        = 2000 // writes per second
	lagFor         = 75 * time.Second
)

// onFleet is a move on a whole fleet: two workers, two proxies, three shards that
// sync each commit.
type onFleet struct {
	b      *bench
	f      *demo.Fleet
	id     chunk.ID
	client *mongo.Client // through the proxies
	target *mongo.Client // the target shard itself
	rows   *mongo.Collection
	copied *mongo.Collection
}

// measureFleet measures one move from the beginning to the gate: what applications
// feel of its import, its validation, its lag, and how fast it works off a backlog.
func measureFleet(ctx context.Context, b *bench) error {
	return b.onFleet(ctx, (*onFleet).importUnderLoad, (*onFleet).validation, (*onFleet).apply, (*onFleet).applyLarge, (*onFleet).lag, (*onFleet).peerApplies)
}

// measureForeground measures only what applications feel of an import.
func measureForeground(ctx context.Context, b *bench) error {
	return b.onFleet(ctx, (*onFleet).importUnderLoad)
}

// onFleet starts a fleet, fills the chunk that is to move, and measures step by step.
func (b *bench) onFleet(ctx context.Context, steps ...func(*onFleet, context.Context) error) (err error) {
	f, err := demo.StartFleet(ctx, demo.Options{
		Self: b.o.self, Dir: filepath.Join(b.o.dir, "fleet"), Out: b.out, Rate: 1, Clients: 1, LookupEnv: os.LookupEnv,
	})
	defer f.Close(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	m := &onFleet{b: b, f: f, id: f.Hot().Chunk.ID}
	defer func() { err = errors.Join(err, m.close(context.WithoutCancel(ctx))) }()
	for _, step := range append([]func(*onFleet, context.Context) error{(*onFleet).connect, (*onFleet).fill}, steps...) {
		if err := step(m, ctx); err != nil {
			return err
		}
	}
	return nil
}

// connect opens the clients.
func (m *onFleet) connect(context.Context) (err error) {
	if m.client, err = workload.Connect(m.f.URI()); err != nil {
		return err
	}
	m.rows = m.client.Database(demo.Database).Collection(demo.Rows)
	access, ok := m.f.Stack().Shard(m.f.Target())
	if !ok {
		return fmt.Errorf("the stack has no shard %s", m.f.Target())
	}
	m.target, err = mongo.Connect(options.Client().ApplyURI(access.AdminURI))
	return err
}

// close ends the clients.
func (m *onFleet) close(ctx context.Context) error {
	var errs []error
	for _, c := range []*mongo.Client{m.client, m.target} {
		if c != nil {
			errs = append(errs, c.Disconnect(ctx))
		}
	}
	return errors.Join(errs...)
}

// origin gives the shard key of document n.
func (m *onFleet) origin(n int) string {
	all := m.f.HotOrigins()
	return all[n%len(all)]
}

// fill puts documents into the chunk that is to move.
func (m *onFleet) fill(ctx context.Context) error {
	total := int(fleetDocuments * m.b.o.scale)
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for from := 0; from < total; from += 1000 {
		g.Go(func() error {
			var docs []any
			for n := from; n < min(from+1000, total); n++ {
				docs = append(docs, bson.D{
					{Key: "_id", Value: n}, {Key: "origin", Value: m.origin(n)}, {Key: "date", Value: time.Unix(int64(n*7919%total), 0)},
					{Key: "v", Value: -1}, {Key: "pad", Value: strings.Repeat("x", loads.Padding)},
				})
			}
			_, err := m.rows.InsertMany(inner, docs, options.InsertMany().SetOrdered(false))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("fill the chunk: %w", err)
	}
	m.b.say("%d documents are in %s", total, m.id)
	return nil
}

// status asks the move.
func (m *onFleet) status(ctx context.Context) (contract.Status, error) {
	st, err := m.f.Starter().Status(ctx, m.id)
	if err == nil && st.Attention != "" {
		err = fmt.Errorf("the move needs a person: %s", st.Attention)
	}
	return st, err
}

// until asks the move until it is as wanted.
func (m *onFleet) until(ctx context.Context, what string, wanted func(contract.Status) bool) (contract.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, m.b.o.limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		st, err := m.status(ctx)
		if err != nil || wanted(st) {
			return st, err
		}
		select {
		case <-ctx.Done():
			return st, fmt.Errorf("%s did not come about; the move is at %q, waiting for %q", what, st.Step, st.WaitingFor)
		case <-tick.C:
		}
	}
}

// validation waits for the move's own validation and takes its rate, markers and
// rounds included.
func (m *onFleet) validation(ctx context.Context) error {
	st, err := m.until(ctx, "the validation", func(st contract.Status) bool { return st.Phase == chunk.Validating })
	if err != nil {
		return err
	}
	began := st.StepSince
	st, err = m.until(ctx, "the end of the validation", func(st contract.Status) bool { return st.Phase == chunk.Switching })
	if err != nil {
		return err
	}
	m.b.set("validate_docs_per_s", float64(st.Validation.Documents)/st.StepSince.Sub(began).Seconds())
	m.copied = m.target.Database(st.Target.Database).Collection(demo.Rows)
	_, err = m.until(ctx, "the wait for approval", func(st contract.Status) bool { return st.WaitingFor != "" })
	return err
}

// apply works off a backlog that was written while the lanes stood.
func (m *onFleet) apply(ctx context.Context) error {
	rate, err := m.workOff(ctx, backlog, "small", func(ctx context.Context, n int) error {
		return updateMany(ctx, m.rows, n, changed, "small", func(i int) bson.D { return bson.D{{Key: "_id", Value: i}, {Key: "origin", Value: m.origin(i)}} })
	})
	if err != nil {
		return err
	}
	m.b.set("apply_ops_per_s", rate)
	return nil
}

// applyLarge does so with updates of one field of large documents.
func (m *onFleet) applyLarge(ctx context.Context) error {
	const first = 10_000_000
	pad := make([]byte, largeBytes)
	for n := range largeDocuments {
		_, err := m.rows.InsertOne(ctx, bson.D{
			{Key: "_id", Value: first + n}, {Key: "origin", Value: m.origin(n)}, {Key: "date", Value: time.Unix(int64(n), 0)}, {Key: "v", Value: -1}, {Key: "pad", Value: pad},
		})
		if err != nil {
			return err
		}
	}
	rate, err := m.workOff(ctx, largeBacklog, "large", func(ctx context.Context, n int) error {
		return updateMany(ctx, m.rows, n, largeDocuments, "large", func(i int) bson.D { return bson.D{{Key: "_id", Value: first + i}, {Key: "origin", Value: m.origin(i)}} })
	})
	if err != nil {
		return err
	}
	m.b.set("apply_large_documents_ops_per_s", rate)
	return nil
}

// workOff pauses the move, lets n updates be written, resumes it, and gives the rate
// from the first to the last that shows on the target. A chunk is one lane's, so the
// last that was written is the last that is applied.
func (m *onFleet) workOff(ctx context.Context, n int, what string, write func(context.Context, int) error) (float64, error) {
	by := contract.UpdateInput{By: "bench/move"}
	if _, err := m.f.Starter().Ask(ctx, m.id, contract.PauseUpdate, by); err != nil {
		return 0, err
	}
	if _, err := m.until(ctx, "the pause", func(st contract.Status) bool { return strings.HasPrefix(st.WaitingFor, "paused") }); err != nil {
		return 0, err
	}
	if err := write(ctx, n); err != nil {
		return 0, err
	}
	m.b.say("%d updates are written", n)
	if _, err := m.f.Starter().Ask(ctx, m.id, contract.ResumeUpdate, by); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.b.o.limit)
	defer cancel()
	if err := m.shows(ctx, what, 0); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := m.shows(ctx, what, n-1); err != nil {
		return 0, err
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// shows waits until the target shows an update that is as new as number n.
func (m *onFleet) shows(ctx context.Context, what string, n int) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var doc struct {
			V int `bson:"v"`
		}
		err := m.copied.FindOne(ctx, bson.D{{Key: "last", Value: what}, {Key: "v", Value: bson.D{{Key: "$gte", Value: n}}}}).Decode(&doc)
		if err == nil {
			return nil
		}
		if !errors.Is(err, mongo.ErrNoDocuments) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// lag lets an application write at a steady rate and takes what the lanes say of the
// last minute.
func (m *onFleet) lag(ctx context.Context) error {
	if _, err := m.until(ctx, "the wait for approval", func(st contract.Status) bool { return strings.Contains(st.WaitingFor, "approv") }); err != nil {
		return err
	}
	written, err := pacedWrites(ctx, m, lagRate, lagFor)
	if err != nil {
		return err
	}
	p, err := m.progress(ctx)
	if err != nil {
		return err
	}
	m.b.set("lag_writes_per_s", written)
	m.b.set("lag_p99_ms", p.LatencyP99MS)
	return nil
}

// progress reads what the lanes say.
func (m *onFleet) progress(ctx context.Context) (p contract.Progress, err error) {
	open, ok, err := m.f.Store().OpenMigration(ctx, m.id)
	if err != nil || !ok {
		return p, errors.Join(err, fmt.Errorf("the move is open: %t", ok))
	}
	return p, json.Unmarshal(open.Progress, &p)
}

// peerApplies lets Percona ClusterSync do the same between two shards that sync too.
func (m *onFleet) peerApplies(ctx context.Context) (err error) {
	if !m.b.onPath("pcsm") {
		return nil
	}
	s, err := loads.Start(ctx, filepath.Join(m.b.o.dir, "peer"))
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	s.Synced = true
	from, source, err := s.Shard(ctx, "source", 512)
	if err != nil {
		return err
	}
	docs := from.Database(loads.SourceDB).Collection(loads.Collection)
	var all []any
	for n := range changed {
		all = append(all, bson.D{{Key: "_id", Value: n}, {Key: "v", Value: -1}, {Key: "pad", Value: strings.Repeat("x", loads.Padding)}})
	}
	if _, err := docs.InsertMany(ctx, all); err != nil {
		return err
	}
	rate, err := m.b.pcsmApply(ctx, s, func(ctx context.Context, _ *mongo.Client) (int, error) {
		return backlog, updateMany(ctx, docs, backlog, changed, "small", func(i int) bson.D { return bson.D{{Key: "_id", Value: i}} })
	}, from, source)
	if err != nil {
		return err
	}
	if rate > 0 {
		m.b.set("pcsm_apply_ops_per_s", rate)
	}
	if ours, ok := m.b.figures["apply_ops_per_s"].(float64); ok {
		m.b.ratio("apply_vs_pcsm", ours, rate)
	}
	return nil
}
