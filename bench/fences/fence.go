package fences

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/proxy"
	"drover/shard/shardsim"
)

// MostRequests is how many requests of a kind a profile can make at one fence.
const MostRequests = 64

// DocumentOf names a document for each request of a profile.
func DocumentOf(profile, kind string, n int) string { return fmt.Sprintf("%s/%s/%d", profile, kind, n) }

// namespace is where the documents of a placement are.
func namespace(p chunk.Placement) string { return p.Database + "." + Collection }

// prepare writes the documents and lets every caller connect.
func (f *Fleet) prepare() error {
	set, ns := f.sets[f.route.Placement.Shard], namespace(f.route.Placement)
	for _, c := range f.Callers {
		for _, kind := range Kinds {
			for n := range MostRequests {
				id := DocumentOf(c.Name, kind, n)
				if !set.Put(ns, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: int64(0)}}) {
					return fmt.Errorf("document %s was not stored", id)
				}
			}
		}
		if err := c.Once(f.ctx, Read, DocumentOf(c.Name, Read, 0)); err != nil {
			return err
		}
	}
	return nil
}

// Counts gives the counter of every document where the chunk is: how often writes
// to it ran.
func (f *Fleet) Counts() map[string]int64 {
	set := f.sets[f.route.Placement.Shard]
	out := map[string]int64{}
	for _, doc := range set.Documents(set.Primary(), namespace(f.route.Placement)) {
		out[doc.Lookup("_id").StringValue()] = doc.Lookup("n").AsInt64()
	}
	return out
}

// Fence is a fence that is up.
type Fence struct {
	fleet *Fleet
	to    chunk.Placement
	once  sync.Once
	err   error
}

// Hold fences the chunk, lets the callers make their requests, all at once, and
// gives what became of them. end ends the fence, if it has not given up when all
// requests have; refused hears of each refusal.
func (f *Fleet) Hold(ctx context.Context, requests int, end func(ctx context.Context, up *Fence) error, refused func(up *Fence)) ([]Row, error) {
	before := f.Counts()
	up, err := f.fence()
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { ended <- end(asking, up) }()
	var rows []Row
	var results [][]request
	var wg sync.WaitGroup
	for _, c := range f.Callers {
		for _, kind := range Kinds {
			all := make([]request, requests)
			for n := range all {
				r := &all[n]
				r.id, r.codes, r.labels = DocumentOf(c.Name, kind, n), map[string]bool{}, map[string]bool{}
				if refused != nil {
					r.failed = func() { refused(up) }
				}
				wg.Go(func() { c.do(ctx, kind, r) })
			}
			rows, results = append(rows, Row{Profile: c.Name, Kind: kind, Of: c.Profile}), append(results, all)
		}
	}
	wg.Wait()
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		return nil, err
	}
	if err := errors.Join(up.Release(), ctx.Err()); err != nil {
		return nil, err
	}
	after := f.Counts()
	for i := range rows {
		rows[i].sum(results[i], func(id string) int64 { return after[id] - before[id] })
	}
	return rows, nil
}

// fence takes the placement's grants, and says so where the proxy hears.
func (f *Fleet) fence() (*Fence, error) {
	f.mu.Lock()
	f.unread = f.Blind
	to := f.place(shards[1])
	if f.route.Placement.Shard == shards[1] {
		to = f.place(shards[0])
	}
	f.attempt = chunk.Notice{
		Attempt: f.attempt.Attempt + 1, Migration: 1, Source: f.route.Placement.ID, Target: to.ID, Chunks: []chunk.ID{f.route.Chunk.ID},
		DeadlineUnixMS: time.Now().Add(time.Minute).UnixMilli(),
	}
	f.attempt.Attempt = max(f.attempt.Attempt, f.held+1)
	f.tried = true
	from, grants := f.route.Placement, f.held
	f.mu.Unlock()
	f.state(chunk.Fencing)
	f.state(chunk.Closing)
	return &Fence{fleet: f, to: to}, f.revoke(from, grants)
}

// Switch moves the chunk to the other shard, or back, while nobody asks.
func (f *Fleet) Switch() error {
	up, err := f.fence()
	if err != nil {
		return err
	}
	return up.Release()
}

// Serving is where the chunk is.
func (f *Fleet) Serving() chunk.Placement {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.route.Placement
}

// Arrivals counts applications' requests on a shard.
type Arrivals struct{ arrived, allowed *shardsim.Fault }

// Arrivals begins to count what comes to a shard as the data plane's user.
func (f *Fleet) Arrivals(name string) Arrivals {
	match := func(c shardsim.Call) bool {
		return c.User == chunk.DataUser && (c.Command == "find" || c.Command == "update")
	}
	set := f.sets[name]
	return Arrivals{set.Inject(shardsim.Fault{Stage: shardsim.Arrived, Match: match}), set.Inject(shardsim.Fault{Stage: shardsim.Checked, Match: match})}
}

// Arrived is how many came.
func (a Arrivals) Arrived() int { return a.arrived.Hits() }

// Refused is how many of them the shard refused, for they had no right to run.
func (a Arrivals) Refused() int { return a.arrived.Hits() - a.allowed.Hits() }

// Direct connects to a shard as the data plane's user, past the proxy. Disconnect
// it.
func (f *Fleet) Direct(name string) (*mongo.Client, error) {
	return mongo.Connect(options.Client().ApplyURI(f.sets[name].URI()).SetAuth(options.Credential{Username: chunk.DataUser, Password: password}))
}

// state writes the attempt's state and announces it.
func (f *Fleet) state(s chunk.AttemptState) {
	f.mu.Lock()
	f.attempt.State = s
	n := f.attempt
	f.mu.Unlock()
	f.Announce(proxy.Announcement{Notice: &n})
}

// Release ends the fence, once: forward where the proxy can know of the switch,
// else back, so that it needs no news to go on.
func (u *Fence) Release() error {
	u.once.Do(func() {
		if !u.fleet.Blind {
			u.err = u.fleet.forward(u.to)
			return
		}
		u.fleet.held = u.fleet.attempt.Attempt
		u.err = u.fleet.grant(u.fleet.route.Placement, u.fleet.held)
	})
	return u.err
}

// forward copies the documents, publishes the route and opens the target.
func (f *Fleet) forward(to chunk.Placement) error {
	from := f.route.Placement
	set := f.sets[from.Shard]
	for _, doc := range set.Documents(set.Primary(), namespace(from)) {
		if !f.sets[to.Shard].Put(namespace(to), doc) {
			return fmt.Errorf("the copy of %s was not stored", doc.Lookup("_id"))
		}
	}
	f.mu.Lock()
	f.former = append(f.former, proxy.Former{Route: f.route, Left: time.Now()})
	f.route.Token++
	f.route.Placement = to
	f.held = f.attempt.Attempt
	change := proxy.RouteChange{Database: database, Chunk: f.route.Chunk.ID, Token: f.route.Token, Placement: &to}
	f.mu.Unlock()
	f.state(chunk.Published)
	f.Announce(proxy.Announcement{Route: &change})
	if err := f.grant(to, f.held); err != nil {
		return err
	}
	f.state(chunk.Open)
	f.state(chunk.AttemptDone)
	return nil
}

// Waiting is how many requests the proxy holds now.
func (f *Fleet) Waiting() (int, error) {
	all, err := f.metrics.Gather()
	if err != nil {
		return 0, err
	}
	for _, m := range all {
		if strings.HasSuffix(m.GetName(), "_held_requests") {
			return int(m.GetMetric()[0].GetGauge().GetValue()), nil
		}
	}
	return 0, errors.New("the proxy does not say how many requests it holds")
}
