// Package fences is a proxy before simulated shards, applications that retry in
// different ways, and a chunk that can be fenced and switched while they ask. It
// needs no server.
package fences

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
	Collection = "counters" // one document for each request
)

// password is the data plane's.
const password = "fences"

// Settings of a fleet.
type Settings struct {
	Deaf     bool          // the proxy hears no announcement
	Blind    bool          // it cannot read the metadata while the chunk is fenced: the fence ends backwards
	Sure     time.Duration // how long it holds whatever it knows; 0: its default
	Live     time.Duration // how long it holds while it knows of a switch; 0: its default
	Profiles []Profile     // of the applications
}

// Fleet is a proxy before simulated shards, with the metadata in memory. What it
// was set to hold is replaced by what the proxy holds.
type Fleet struct {
	Settings
	Feed
	Callers []*Caller // an application of each profile

	ctx     context.Context //nolint:containedctx // the life of what runs
	cancel  context.CancelFunc
	sets    map[string]*shardsim.Set
	roots   map[string]*mongo.Client
	proxy   *proxy.Proxy
	metrics *prometheus.Registry
	done    chan error

	mu      sync.Mutex
	route   chunk.Route
	attempt chunk.Notice
	tried   bool // there was an attempt
	former  []proxy.Former
	last    chunk.PlacementID
	held    chunk.AttemptID // whose grants the serving placement has
	unread  bool            // the metadata cannot be read
}

// The shards of the fleet.
var shards = []string{"a", "b"} //nolint:gochecknoglobals // a constant

// New starts everything. Close it.
func New(s Settings) (f *Fleet, err error) {
	f = &Fleet{Settings: s, sets: map[string]*shardsim.Set{}, roots: map[string]*mongo.Client{}, done: make(chan error, 1), last: 40, held: 5, metrics: prometheus.NewRegistry()}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
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
	for _, p := range s.Profiles {
		c, err := newCaller("mongodb://"+f.proxy.Addr()+"/", p)
		if err != nil {
			return f, err
		}
		f.Callers = append(f.Callers, c)
	}
	return f, f.prepare()
}

// addShard starts a simulated set of one member with the data plane's user.
func (f *Fleet) addShard(name string) error {
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
func (f *Fleet) place(name string) chunk.Placement {
	f.last++
	id := chunk.NewID(database, 1)
	return chunk.Placement{ID: f.last, Chunk: id, Shard: name, Database: chunk.PhysicalName(id, f.last), State: chunk.Live}
}

// grant makes the roles of an attempt and gives them to the data plane.
func (f *Fleet) grant(p chunk.Placement, a chunk.AttemptID) error {
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
func (f *Fleet) revoke(p chunk.Placement, a chunk.AttemptID) error {
	admin := f.roots[p.Shard].Database("admin")
	return errors.Join(
		admin.RunCommand(f.ctx, bson.D{{Key: "dropRole", Value: chunk.WriteGrant(p.ID, a)}}).Err(),
		admin.RunCommand(f.ctx, bson.D{{Key: "dropRole", Value: chunk.ReadGrant(p.ID, a)}}).Err(),
	)
}

// startProxy runs the proxy.
func (f *Fleet) startProxy() error {
	f.proxy = proxy.New(proxy.Config{ID: "fences", Listen: "127.0.0.1:0", SwitchWait: f.Sure, LiveWait: f.Live, Deaf: f.Deaf, Registerer: f.metrics},
		proxy.Ports{Routes: f, Attempts: f, Feed: f, Acks: f, Presence: f, Shards: f})
	go func() { f.done <- f.proxy.Run(f.ctx) }()
	select {
	case <-f.proxy.Ready():
	case err := <-f.done:
		f.done <- nil
		return fmt.Errorf("the proxy ended: %w", err)
	}
	f.Sure, f.Live = f.proxy.Holds()
	return nil
}

// Close ends everything.
func (f *Fleet) Close() error {
	var errs []error
	for _, c := range f.Callers {
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
func (f *Fleet) Snapshot(context.Context) (proxy.Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unread {
		return proxy.Snapshot{}, errBlind
	}
	db := chunk.Database{Name: database, KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: Collection, ShardKey: "_id"}}}
	return proxy.Snapshot{Databases: []chunk.Database{db}, Routes: []chunk.Route{f.route}, Former: f.former}, nil
}

// errBlind is what a proxy gets that cannot read the metadata.
var errBlind = errors.New("the metadata cannot be reached")

// Route implements [proxy.Routes].
func (f *Fleet) Route(context.Context, chunk.ID) (chunk.Route, []proxy.Former, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unread {
		return chunk.Route{}, nil, errBlind
	}
	return f.route, f.former, nil
}

// LatestAttempt implements [proxy.Attempts].
func (f *Fleet) LatestAttempt(context.Context, chunk.ID) (chunk.Notice, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unread {
		return chunk.Notice{}, false, errBlind
	}
	return f.attempt, f.tried, nil
}

// Shard implements [proxy.Shards].
func (f *Fleet) Shard(_ context.Context, name string) (proxy.Shard, error) {
	return proxy.Shard{Shard: chunk.Shard{Name: name, URI: f.sets[name].URI()}, User: chunk.DataUser, Password: password}, nil
}
