// Package replset reads and changes a replica set through MongoDB's own commands,
// for remediation: replSetGetStatus, replSetGetConfig, replSetReconfig,
// replSetStepDown, replSetFreeze, replSetResizeOplog, replSetSyncFrom. What no
// command can do, making a node anew, is a hook's, see [Nodes].
package replset

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/internal/pause"
	"drover/remediation"
	"drover/shard"
)

// Options of a replica set.
type Options struct {
	Machines func(ctx context.Context) ([]remediation.Machine, error)
	Nodes    Nodes         // what makes nodes anew; nil refuses to
	Answer   time.Duration // for a member to answer; 3 s
	Confirm  time.Duration // for a majority to install a configuration; 30 s
	Pause    func(ctx context.Context, d time.Duration) error
}

// ReplicaSet is one shard as remediation works on it. It implements
// [remediation.Shard]. One executor uses it at a time.
type ReplicaSet struct {
	shard  chunk.Shard
	secret string
	opts   Options

	mu      sync.Mutex
	clients map[string]*mongo.Client
	last    []remediation.View // of the last reading
}

// Open prepares for a shard, which must be registered: its set's name counts. It
// does not talk to the server. Close it.
func Open(s chunk.Shard, secret string, o Options) (*ReplicaSet, error) {
	if s.Capabilities.SetName == "" {
		return nil, failure.New(failure.Invalid, "remediation.foreign_set", "set: shard %s is registered without its replica set's name", s.Name).
			WithHint("run `drover shard add` for it again")
	}
	if o.Answer == 0 {
		o.Answer = 3 * time.Second
	}
	if o.Confirm == 0 {
		o.Confirm = 30 * time.Second
	}
	if o.Pause == nil {
		o.Pause = pause.For
	}
	return &ReplicaSet{shard: s, secret: secret, opts: o, clients: map[string]*mongo.Client{}}, nil
}

// Close disconnects.
func (r *ReplicaSet) Close(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for host, c := range r.clients {
		delete(r.clients, host)
		if err := c.Disconnect(ctx); err != nil && !errors.Is(err, mongo.ErrClientDisconnected) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Set implements [remediation.Shard].
func (r *ReplicaSet) Set() string { return r.shard.Capabilities.SetName }

// Inventory implements [remediation.Shard].
func (r *ReplicaSet) Inventory(ctx context.Context) ([]remediation.Machine, error) {
	return r.opts.Machines(ctx)
}

// Pause implements [remediation.Shard].
func (r *ReplicaSet) Pause(ctx context.Context, d time.Duration) error { return r.opts.Pause(ctx, d) }

// client gives a connection to one member. One that does not answer is made anew
// when asked for next: it may be another process by then.
func (r *ReplicaSet) client(ctx context.Context, host string) (*mongo.Client, error) {
	r.mu.Lock()
	c := r.clients[host]
	r.mu.Unlock()
	if c != nil {
		return c, nil
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	c, err := shard.Connect(ctx, r.shard, chunk.RemediatorUser, r.secret, shard.Options{
		AppName: "drover-remediate", Host: host, SelectionTimeout: r.opts.Answer, ConnectTimeout: r.opts.Answer, MaxPool: 2,
		OnSilence: giveUp, // the driver would try again until the time is over
	})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.clients[host] = c
	r.mu.Unlock()
	return c, nil
}

// forget closes the connection to a member.
func (r *ReplicaSet) forget(ctx context.Context, host string) {
	r.mu.Lock()
	c := r.clients[host]
	delete(r.clients, host)
	r.mu.Unlock()
	if c != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Millisecond)
		defer cancel()
		_ = c.Disconnect(ctx) // who does not answer takes no goodbye
	}
}

// run runs a command on database admin of one member, in the time that a member
// has to answer.
func (r *ReplicaSet) run(ctx context.Context, host string, cmd bson.D) (bson.Raw, error) {
	return r.runFor(ctx, r.opts.Answer, host, "admin", cmd)
}

// runFor is run with another time limit and database. The driver passes the limit
// on to the server.
func (r *ReplicaSet) runFor(ctx context.Context, limit time.Duration, host, db string, cmd bson.D) (bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := r.client(ctx, host)
	if err != nil {
		return nil, err
	}
	raw, err := c.Database(db).RunCommand(ctx, cmd).Raw()
	if err != nil && mongocode.IsNetwork(err) {
		r.forget(ctx, host)
	}
	return raw, err //nolint:wrapcheck // callers say what it was for
}

// Look implements [remediation.Shard]: it asks the members that the shard's address
// names and those that they name. Arbiters have no users, so nobody can ask them.
func (r *ReplicaSet) Look(ctx context.Context) ([]remediation.View, error) {
	seeds := options.Client().ApplyURI(r.shard.URI).Hosts
	var asked []string
	var views []remediation.View
	for next := seeds; len(next) > 0; {
		asked = append(asked, next...)
		views = append(views, r.ask(ctx, next)...)
		next = nil
		for _, v := range views {
			for _, m := range v.Config.Members {
				if !m.Arbiter && !slices.Contains(asked, m.Host) && !slices.Contains(next, m.Host) {
					next = append(next, m.Host)
				}
			}
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	views = once(views)
	r.mu.Lock()
	r.last = views
	r.mu.Unlock()
	return views, nil
}

// once leaves one view of each member: an address may be another name of it.
func once(views []remediation.View) []remediation.View {
	seen := map[string]bool{}
	return slices.DeleteFunc(views, func(v remediation.View) bool {
		was := seen[v.Host]
		seen[v.Host] = true
		return was
	})
}

// ask asks several members at once. Who does not answer is not in the result; a
// connection that broke is tried once more.
func (r *ReplicaSet) ask(ctx context.Context, hosts []string) []remediation.View {
	views := make([]*remediation.View, len(hosts))
	var wg sync.WaitGroup
	for i, host := range hosts {
		wg.Go(func() {
			r.mu.Lock()
			known := r.clients[host] != nil
			r.mu.Unlock()
			v, err := r.view(ctx, host)
			if err != nil && known && mongocode.IsNetwork(err) {
				v, err = r.view(ctx, host)
			}
			if err == nil {
				views[i] = v
			}
		})
	}
	wg.Wait()
	var out []remediation.View
	for _, v := range views {
		if v != nil {
			out = append(out, *v)
		}
	}
	return out
}

// status is what is read of replSetGetStatus.
type status struct {
	Set     string    `bson:"set"`
	Date    time.Time `bson:"date"`
	Term    int64     `bson:"term"`
	Members []struct {
		Name       string    `bson:"name"`
		Health     float64   `bson:"health"`
		State      string    `bson:"stateStr"`
		OptimeDate time.Time `bson:"optimeDate"`
		Heard      time.Time `bson:"lastHeartbeatRecv"`
		Self       bool      `bson:"self"`
	} `bson:"members"`
}

// leads reports whether the member that was asked is the primary.
func (s *status) leads() bool {
	for _, m := range s.Members {
		if m.Self {
			return m.State == "PRIMARY"
		}
	}
	return false
}

// configuration is what is read of replSetGetConfig.
type configuration struct {
	Committed bool `bson:"commitmentStatus"` // a primary tells it, when it is asked
	Config    struct {
		Version int64 `bson:"version"`
		Term    int64 `bson:"term"`
		Members []struct {
			ID       int64   `bson:"_id"`
			Host     string  `bson:"host"`
			Arbiter  bool    `bson:"arbiterOnly"`
			Hidden   bool    `bson:"hidden"`
			Priority float64 `bson:"priority"`
			Votes    int     `bson:"votes"`
			Delay    int64   `bson:"secondaryDelaySecs"`
		} `bson:"members"`
	} `bson:"config"`
}

// view asks one member.
func (r *ReplicaSet) view(ctx context.Context, host string) (*remediation.View, error) {
	raw, err := r.run(ctx, host, bson.D{{Key: "replSetGetStatus", Value: 1}})
	if err != nil {
		return nil, err
	}
	var st status
	if err := bson.Unmarshal(raw, &st); err != nil {
		return nil, err //nolint:wrapcheck // it counts as no answer
	}
	ask, leads := bson.D{{Key: "replSetGetConfig", Value: 1}}, st.leads()
	if leads { // no other member takes the question
		ask = append(ask, bson.E{Key: "commitmentStatus", Value: true})
	}
	if raw, err = r.run(ctx, host, ask); err != nil {
		return nil, err
	}
	var cfg configuration
	if err := bson.Unmarshal(raw, &cfg); err != nil {
		return nil, err //nolint:wrapcheck // it counts as no answer
	}
	v := &remediation.View{Uncommitted: leads && !cfg.Committed, Host: host, Set: st.Set, Term: st.Term, Now: st.Date, Config: remediation.Config{Term: cfg.Config.Term, Version: cfg.Config.Version}}
	for _, m := range cfg.Config.Members {
		v.Config.Members = append(v.Config.Members, remediation.Configured{
			Host: m.Host, Votes: m.Votes, Priority: m.Priority, Hidden: m.Hidden, Delay: time.Duration(m.Delay) * time.Second, Arbiter: m.Arbiter,
		})
	}
	for _, m := range st.Members {
		if m.Self {
			v.Host = m.Name
		}
		v.Sights = append(v.Sights, remediation.Sight{Host: m.Name, State: m.State, Up: m.Health > 0, Optime: m.OptimeDate, Heard: m.Heard})
	}
	if raw, err = r.runFor(ctx, r.opts.Answer, host, "local", bson.D{{Key: "collStats", Value: "oplog.rs"}}); err == nil {
		size, _ := raw.Lookup("maxSize").AsInt64OK()
		v.OplogMB = int(size >> 20)
	}
	return v, nil
}

// primary gives the member that the last reading showed as primary of the newest
// term, and the newest configuration that was seen.
func (r *ReplicaSet) primary() (host string, seen remediation.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var term int64 = -1
	for _, v := range r.last {
		if v.Config.Term > seen.Term || v.Config.Term == seen.Term && v.Config.Version > seen.Version {
			seen = v.Config
		}
		for _, s := range v.Sights {
			if s.Host == v.Host && s.State == "PRIMARY" && v.Term > term {
				host, term = v.Host, v.Term
			}
		}
	}
	return host, seen
}
