package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/proxy"
	"drover/shard/shardsim"
)

// What the application works in.
const (
	database   = "app"
	collection = "counters"
)

// password is the data plane's.
const password = "profiles"

// settings of a fleet.
type settings struct {
	known    bool          // the proxy hears announcements and reads the metadata
	sure     time.Duration // how long it holds whatever it knows; 0: its default
	live     time.Duration // how long it holds while it knows of a switch; 0: its default
	profiles []profile     // of the applications
}

// fleet is a proxy before simulated shards, with the metadata in memory.
type fleet struct {
	settings
	ctx     context.Context //nolint:containedctx // the life of what runs
	cancel  context.CancelFunc
	sets    map[string]*shardsim.Set
	roots   map[string]*mongo.Client
	proxy   *proxy.Proxy
	metrics *prometheus.Registry
	done    chan error
	callers []*caller

	mu      sync.Mutex
	route   chunk.Route
	attempt chunk.Notice
	tried   bool // there was an attempt
	former  []proxy.Former
	hear    func(proxy.Announcement)
	last    chunk.PlacementID
	held    chunk.AttemptID // whose grants the serving placement has
	blind   bool            // the metadata cannot be read
}

// The shards of the fleet.
var shards = []string{"a", "b"} //nolint:gochecknoglobals // a constant

// newFleet starts everything.
func newFleet(s settings) (f *fleet, err error) {
	f = &fleet{settings: s, sets: map[string]*shardsim.Set{}, roots: map[string]*mongo.Client{}, done: make(chan error, 1), last: 40, held: 5, metrics: prometheus.NewRegistry()}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	for _, name := range shards {
		if err := f.addShard(name); err != nil {
			return f, err
		}
	}
	id := chunk.NewID(database, 1)
	f.route = chunk.Route{Chunk: chunk.Chunk{ID: id, Database: database, Range: chunk.Hashed.Split(1)[0]}, Token: 100, Placement: f.place(shards[0])}
	if err := f.grant(f.route.Placement, f.held); err != nil {
		return f, err
	}
	if err := f.startProxy(); err != nil {
		return f, err
	}
	for _, p := range s.profiles {
		c, err := newCaller("mongodb://"+f.proxy.Addr()+"/", p)
		if err != nil {
			return f, err
		}
		f.callers = append(f.callers, c)
	}
	return f, f.prepare()
}

// addShard starts a simulated set of one member with the data plane's user.
func (f *fleet) addShard(name string) error {
	s, err := shardsim.New(shardsim.Options{Name: name, Members: []shardsim.Member{{Votes: 1, Priority: 1}}, Auto: true})
	if err != nil {
		return err
	}
	f.sets[name] = s
	s.AddUser(chunk.DataUser, password)
	f.roots[name], err = mongo.Connect(options.Client().ApplyURI(s.URI()).SetAuth(options.Credential{Username: "root", Password: "root"}))
	return err
}

// place names a new placement on a shard.
func (f *fleet) place(name string) chunk.Placement {
	f.last++
	id := chunk.NewID(database, 1)
	return chunk.Placement{ID: f.last, Chunk: id, Shard: name, Database: chunk.PhysicalName(id, f.last), State: chunk.Live}
}

// grant makes the roles of an attempt and gives them to the data plane.
func (f *fleet) grant(p chunk.Placement, a chunk.AttemptID) error {
	admin := f.roots[p.Shard].Database("admin")
	on := bson.D{{Key: "db", Value: p.Database}, {Key: "collection", Value: ""}}
	for name, actions := range map[string]bson.A{
		chunk.WriteGrant(p.ID, a): {"insert", "update", "remove"}, chunk.ReadGrant(p.ID, a): {"find"},
	} {
		for _, cmd := range []bson.D{
			{{Key: "createRole", Value: name}, {Key: "roles", Value: bson.A{}}, {Key: "privileges", Value: bson.A{bson.D{{Key: "resource", Value: on}, {Key: "actions", Value: actions}}}}},
			{{Key: "grantRolesToUser", Value: chunk.DataUser}, {Key: "roles", Value: bson.A{name}}},
		} {
			if err := admin.RunCommand(f.ctx, cmd).Err(); err != nil {
				return fmt.Errorf("grant %s: %w", name, err)
			}
		}
	}
	return nil
}

// revoke drops an attempt's grants.
func (f *fleet) revoke(p chunk.Placement, a chunk.AttemptID) error {
	admin := f.roots[p.Shard].Database("admin")
	return errors.Join(
		admin.RunCommand(f.ctx, bson.D{{Key: "dropRole", Value: chunk.WriteGrant(p.ID, a)}}).Err(),
		admin.RunCommand(f.ctx, bson.D{{Key: "dropRole", Value: chunk.ReadGrant(p.ID, a)}}).Err(),
	)
}

// startProxy runs the proxy.
func (f *fleet) startProxy() error {
	f.proxy = proxy.New(proxy.Config{ID: "profiles", Listen: "127.0.0.1:0", SwitchWait: f.sure, LiveWait: f.live, Deaf: !f.known, Registerer: f.metrics},
		proxy.Ports{Routes: f, Attempts: f, Feed: f, Acks: f, Presence: f, Shards: f})
	go func() { f.done <- f.proxy.Run(f.ctx) }()
	select {
	case <-f.proxy.Ready():
	case err := <-f.done:
		f.done <- nil
		return fmt.Errorf("the proxy ended: %w", err)
	}
	f.sure, f.live = f.proxy.Holds()
	return nil
}

// close ends everything.
func (f *fleet) close() error {
	var errs []error
	for _, c := range f.callers {
		errs = append(errs, c.client.Disconnect(context.Background()))
	}
	f.cancel()
	if f.proxy != nil {
		errs = append(errs, <-f.done)
	}
	for name, c := range f.roots {
		errs = append(errs, c.Disconnect(context.Background()), f.sets[name].Close())
	}
	return errors.Join(errs...)
}

// Snapshot implements [proxy.Routes].
func (f *fleet) Snapshot(context.Context) (proxy.Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.blind {
		return proxy.Snapshot{}, errBlind
	}
	db := chunk.Database{Name: database, KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: collection, ShardKey: "_id"}}}
	return proxy.Snapshot{Databases: []chunk.Database{db}, Routes: []chunk.Route{f.route}, Former: f.former}, nil
}

// errBlind is what a proxy gets that cannot read the metadata.
var errBlind = errors.New("the metadata cannot be reached")

// Route implements [proxy.Routes].
func (f *fleet) Route(context.Context, chunk.ID) (chunk.Route, []proxy.Former, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.blind {
		return chunk.Route{}, nil, errBlind
	}
	return f.route, f.former, nil
}

// LatestAttempt implements [proxy.Attempts].
func (f *fleet) LatestAttempt(context.Context, chunk.ID) (chunk.Notice, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.blind {
		return chunk.Notice{}, false, errBlind
	}
	return f.attempt, f.tried, nil
}

// Listen implements [proxy.Feed].
func (f *fleet) Listen(ctx context.Context, deliver func(proxy.Announcement)) error {
	f.mu.Lock()
	f.hear = deliver
	f.mu.Unlock()
	deliver(proxy.Announcement{Resync: true})
	<-ctx.Done()
	return ctx.Err()
}

// Ack implements [proxy.Acks].
func (f *fleet) Ack(context.Context, chunk.Ack) error { return nil }

// Beat implements [proxy.Presence].
func (f *fleet) Beat(context.Context, proxy.Life) error { return nil }

// Leave implements [proxy.Presence].
func (f *fleet) Leave(context.Context, string) error { return nil }

// Shard implements [proxy.Shards].
func (f *fleet) Shard(_ context.Context, name string) (proxy.Shard, error) {
	return proxy.Shard{Shard: chunk.Shard{Name: name, URI: f.sets[name].URI()}, User: chunk.DataUser, Password: password}, nil
}
