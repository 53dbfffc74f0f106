// Package replsettest gives remediation a simulated set to work on: the set, its
// machines, and a hook that makes nodes anew.
package replsettest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/remediation"
	"drover/shard"
	"drover/shard/replset"
	"drover/shard/shardsim"
)

// Names of the shard that a World is.
const (
	ShardName = "s1"
	SetName   = "rs"
	secret    = "the fleet's secret"
)

// World is a simulated set with what works on it. Its fields may be changed while
// nothing runs on it, and by OnPause.
type World struct {
	Sim      *shardsim.Set
	Set      *replset.ReplicaSet
	Layout   remediation.Layout
	Hosts    []string // of the slots in their order, then of the spare machines
	Machines []remediation.Machine
	Calls    []string // of the hook
	Failing  error    // what the hook answers next
	OnPause  func()   // called when the set's time has passed
	Lost     bool     // the majority was lost, seen at any pause

	// Answer is how long a member may take to answer a set that is opened from now on;
	// short by default, as some tests have members that never do, but long beside what
	// members that are well take on this machine now.
	Answer time.Duration

	mu   sync.Mutex
	open []*replset.ReplicaSet
}

// New starts a set that meets the layout, with spare machines in some zones. Close
// it.
func New(l remediation.Layout, spares ...string) (*World, error) {
	o := shardsim.Options{Name: SetName, Auto: true, Spares: len(spares)}
	for _, s := range l.Slots {
		o.Members = append(o.Members, shardsim.Member{Votes: s.Votes, Priority: s.Priority, Hidden: s.Hidden, Delay: s.Delay, Arbiter: s.Arbiter, OplogMB: s.OplogMB})
	}
	sim, err := shardsim.New(o)
	if err != nil {
		return nil, err
	}
	w := &World{Sim: sim, Layout: l, Hosts: sim.Hosts()}
	for i, s := range l.Slots {
		w.Machines = append(w.Machines, remediation.Machine{Host: w.Hosts[i], Zone: s.Zone, Instance: s.Instance})
	}
	for i, zone := range spares {
		w.Machines = append(w.Machines, remediation.Machine{Host: w.Hosts[len(l.Slots)+i], Zone: zone, Instance: l.Slots[0].Instance})
	}
	cluster := bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}}, {Key: "actions", Value: bson.A{
		"replSetGetStatus", "replSetGetConfig", "replSetConfigure", "replSetStateChange", "replSetResizeOplog",
	}}}
	oplog := bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "local"}, {Key: "collection", Value: "oplog.rs"}}}, {Key: "actions", Value: bson.A{"collStats"}}}
	sim.AddUser(chunk.RemediatorUser, shard.Password(secret, ShardName, chunk.RemediatorUser), cluster, oplog)
	sim.Advance(3 * time.Minute)
	if w.Answer, err = w.patience(); err == nil {
		w.Set, err = w.Open(SetName)
	}
	if err != nil {
		_ = sim.Close() // the first error counts
		return nil, err
	}
	return w, nil
}

// What a member may take to answer: at least so long, and so many times of what all of
// them take together while the world is made.
const (
	leastAnswer  = 500 * time.Millisecond
	timesHealthy = 20
)

// patience measures how long members take that are well: on a busy machine one of them
// must not be taken for dead.
func (w *World) patience() (time.Duration, error) {
	set, err := w.connect(SetName, time.Minute)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	began := time.Now()
	_, err = set.Look(ctx)
	took := time.Since(began)
	return max(leastAnswer, timesHealthy*took), errors.Join(err, set.Close(ctx))
}

// Open connects to the set under a name.
func (w *World) Open(name string) (*replset.ReplicaSet, error) {
	set, err := w.connect(name, w.Answer)
	if err == nil {
		w.open = append(w.open, set)
	}
	return set, err
}

// connect connects to the set under a name, whose members may take so long to answer.
func (w *World) connect(name string, answer time.Duration) (*replset.ReplicaSet, error) {
	return replset.Open(chunk.Shard{Name: ShardName, URI: w.Sim.URI(), Capabilities: chunk.Capabilities{SetName: name}}, secret, replset.Options{
		Machines: w.inventory, Nodes: w, Answer: answer, Confirm: 10 * time.Second, Pause: w.pause,
	})
}

// Close ends everything.
func (w *World) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for _, set := range w.open {
		_ = set.Close(ctx) // members that are down take no goodbye
	}
	return w.Sim.Close()
}

// Executor works on the set.
func (w *World) Executor() (*remediation.Executor, error) {
	p, err := remediation.NewPlanner(w.Layout, remediation.DefaultCosts, 0)
	if err != nil {
		return nil, err
	}
	return &remediation.Executor{Planner: p, Shard: w.Set, Execute: true, Observer: remediation.Observer{Limits: remediation.Limits{ComingBack: 10 * time.Minute}}}, nil
}

// inventory lists the machines as they are.
func (w *World) inventory(context.Context) ([]remediation.Machine, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.Machines)
	for i := range all {
		all[i].Gone = w.Sim.Gone(all[i].Host)
	}
	return all, nil
}

// pause lets the set's time pass.
func (w *World) pause(ctx context.Context, d time.Duration) error {
	w.Sim.Advance(d)
	w.Lost = w.Lost || !w.Sim.HasMajority()
	if w.OnPause != nil {
		w.OnPause()
	}
	return context.Cause(ctx)
}

// hook notes a call and gives what it is to answer.
func (w *World) hook(call string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Calls = append(w.Calls, call)
	err := w.Failing
	w.Failing = nil
	return err
}

// Rebuild implements [replset.Nodes].
func (w *World) Rebuild(_ context.Context, n replset.Node) error {
	if err := w.hook("rebuild " + n.Host); err != nil {
		return err
	}
	return w.Sim.Wipe(n.Host, n.OplogMB)
}

// Provision implements [replset.Nodes].
func (w *World) Provision(_ context.Context, n replset.Node) error {
	if err := w.hook("provision " + n.Host); err != nil {
		return err
	}
	return w.Sim.Wipe(n.Host, n.OplogMB)
}

// Release implements [replset.Nodes].
func (w *World) Release(_ context.Context, n replset.Node) error {
	w.Sim.Kill(n.Host)
	return w.hook("release " + n.Host)
}
