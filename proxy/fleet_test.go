package proxy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/testkit"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const (
	testDatabase = "flights"
	testPassword = "data-plane"
)

// fleet is a metadata store in memory over real shards with real roles.
type fleet struct {
	t      testing.TB
	roots  map[string]*mongo.Client
	acked  chan chunk.Ack
	lastID chunk.PlacementID

	mu        sync.Mutex
	shards    map[string]Shard
	databases map[string]chunk.Database
	routes    map[chunk.ID]chunk.Route
	attempts  map[chunk.ID]chunk.Notice
	former    []Former
	ears      map[int]func(Announcement)
	down      bool // the metadata cannot be read
	attempt   chunk.AttemptID
	token     chunk.Token
	granted   map[chunk.PlacementID]chunk.AttemptID
}

// newFleet starts shards, provisions a logical database of n chunks over them,
// round robin, and gives it its grants.
func newFleet(t testing.TB, shards, chunks int, collections ...chunk.Collection) *fleet {
	t.Helper()
	f := &fleet{
		t: t, roots: map[string]*mongo.Client{}, acked: make(chan chunk.Ack, 1000), lastID: 40,
		shards: map[string]Shard{}, databases: map[string]chunk.Database{}, routes: map[chunk.ID]chunk.Route{},
		attempts: map[chunk.ID]chunk.Notice{}, ears: map[int]func(Announcement){},
		granted: map[chunk.PlacementID]chunk.AttemptID{}, attempt: 5, token: 100,
	}
	for i := range shards {
		f.addShard(fmt.Sprintf("shard-%c", 'a'+i))
	}
	if len(collections) == 0 {
		collections = []chunk.Collection{{Name: "legs", ShardKey: "origin"}, {Name: "byid", ShardKey: "_id"}}
	}
	f.databases[testDatabase] = chunk.Database{Name: testDatabase, KeySpace: chunk.Hashed, Collections: collections}
	names := slices.Sorted(maps.Keys(f.shards))
	for i, r := range chunk.Hashed.Split(chunks) {
		id := chunk.NewID(testDatabase, i+1)
		p := f.provision(id, names[i%len(names)])
		f.grant(p, 0, true, true)
		f.token++
		f.routes[id] = chunk.Route{Chunk: chunk.Chunk{ID: id, Database: testDatabase, Range: r}, Placement: p, Token: f.token}
	}
	return f
}

// addShard starts one shard with the data plane's user.
func (f *fleet) addShard(name string) *testkit.ShardServer {
	f.t.Helper()
	s := testkit.Shard(f.t)
	root, err := mongo.Connect(options.Client().ApplyURI(s.AdminURI()))
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = root.Disconnect(context.Background()) })
	f.must(root, "admin", bson.D{{Key: "createUser", Value: chunk.DataUser}, {Key: "pwd", Value: testPassword}, {Key: "roles", Value: bson.A{}}})
	f.roots[name] = root
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shards[name] = Shard{Shard: chunk.Shard{Name: name, URI: s.URI()}, User: chunk.DataUser, Password: testPassword}
	return s
}

// must runs a command of root's.
func (f *fleet) must(c *mongo.Client, db string, cmd bson.D) {
	f.t.Helper()
	require.NoError(f.t, c.Database(db).RunCommand(context.Background(), cmd).Err(), "%v", cmd)
}

// provision makes a placement with its collections and no grant.
func (f *fleet) provision(id chunk.ID, shard string) chunk.Placement {
	f.t.Helper()
	f.lastID++
	p := chunk.Placement{ID: f.lastID, Chunk: id, Shard: shard, Database: chunk.PhysicalName(id, f.lastID), State: chunk.Live}
	for _, c := range f.databases[testDatabase].Collections {
		f.must(f.roots[shard], p.Database, bson.D{{Key: "create", Value: c.Name}})
	}
	return p
}

// grant makes the roles of attempt a and gives them to the data plane.
func (f *fleet) grant(p chunk.Placement, a chunk.AttemptID, write, read bool) {
	f.t.Helper()
	root := f.roots[p.Shard]
	on := bson.D{{Key: "db", Value: p.Database}, {Key: "collection", Value: ""}}
	f.mu.Lock()
	f.granted[p.ID] = a
	f.mu.Unlock()
	role := func(name string, actions ...string) {
		f.must(root, "admin", bson.D{
			{Key: "createRole", Value: name}, {Key: "roles", Value: bson.A{}},
			{Key: "privileges", Value: bson.A{bson.D{{Key: "resource", Value: on}, {Key: "actions", Value: actions}}}},
		})
		f.must(root, "admin", bson.D{{Key: "grantRolesToUser", Value: chunk.DataUser}, {Key: "roles", Value: bson.A{name}}})
	}
	if write {
		role(chunk.WriteGrant(p.ID, a), "insert", "update", "remove")
	}
	if read {
		role(chunk.ReadGrant(p.ID, a), "find", "listCollections", "listIndexes", "collStats", "dbStats")
	}
}

// revoke drops a role.
func (f *fleet) revoke(p chunk.Placement, role string) {
	f.t.Helper()
	f.must(f.roots[p.Shard], "admin", bson.D{{Key: "dropRole", Value: role}})
}

// ports gives the proxy's view of the fleet.
func (f *fleet) ports() Ports {
	return Ports{Routes: f, Attempts: f, Feed: f, Acks: f, Presence: f, Shards: f}
}

// start runs a proxy over the fleet until the test ends.
func (f *fleet) start(cfg Config) *Proxy {
	f.t.Helper()
	if cfg.ID == "" {
		cfg.ID = "proxy-1"
	}
	p := New(cfg, f.ports())
	f.run(p)
	return p
}

// run runs a proxy until the test ends.
func (f *fleet) run(p *Proxy) {
	f.t.Helper()
	p.cfg.Listen = "127.0.0.1:0"
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-done)
	})
	select {
	case <-p.Ready():
	case err := <-done:
		done <- nil
		require.NoError(f.t, err)
	}
}

// dial connects the official driver to a proxy.
func (f *fleet) dial(p *Proxy, opts ...*options.ClientOptions) *mongo.Client {
	f.t.Helper()
	all := append([]*options.ClientOptions{options.Client().ApplyURI("mongodb://" + p.Addr())}, opts...)
	c, err := mongo.Connect(all...)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// Snapshot implements [Routes].
func (f *fleet) Snapshot(context.Context) (Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return Snapshot{}, failure.New(failure.Transient, "test.down", "metadata is down")
	}
	return Snapshot{Databases: slices.Collect(maps.Values(f.databases)), Routes: slices.Collect(maps.Values(f.routes)), Former: slices.Clone(f.former)}, nil
}

// Route implements [Routes].
func (f *fleet) Route(_ context.Context, id chunk.ID) (chunk.Route, []Former, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return chunk.Route{}, nil, failure.New(failure.Transient, "test.down", "metadata is down")
	}
	return f.routes[id], slices.Clone(f.former), nil
}

// LatestAttempt implements [Attempts].
func (f *fleet) LatestAttempt(_ context.Context, id chunk.ID) (chunk.Notice, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return chunk.Notice{}, false, failure.New(failure.Transient, "test.down", "metadata is down")
	}
	n, ok := f.attempts[id]
	return n, ok, nil
}

// Listen implements [Feed].
func (f *fleet) Listen(ctx context.Context, deliver func(Announcement)) error {
	var mu sync.Mutex
	one := func(a Announcement) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			deliver(a)
		}
	}
	f.mu.Lock()
	key := len(f.ears)
	f.ears[key] = one
	f.mu.Unlock()
	one(Announcement{Resync: true})
	<-ctx.Done()
	f.mu.Lock()
	f.ears[key] = func(Announcement) {}
	f.mu.Unlock()
	return ctx.Err()
}

// Ack implements [Acks].
func (f *fleet) Ack(_ context.Context, a chunk.Ack) error {
	f.acked <- a
	return nil
}

// Beat implements [Presence].
func (f *fleet) Beat(context.Context, Life) error { return nil }

// Leave implements [Presence].
func (f *fleet) Leave(context.Context, string, string) error { return nil }

// Shard implements [Shards].
func (f *fleet) Shard(_ context.Context, name string) (Shard, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.shards[name]
	if !ok {
		return Shard{}, failure.New(failure.Invalid, "test.unknown", "no shard %s", name)
	}
	return s, nil
}

// tell delivers an announcement to every proxy that listens.
func (f *fleet) tell(a Announcement) {
	f.mu.Lock()
	ears := slices.Collect(maps.Values(f.ears))
	f.mu.Unlock()
	for _, ear := range ears {
		ear(a)
	}
}

// move is one attempt to switch a chunk, step by step.
type move struct {
	f           *fleet
	id          chunk.ID
	from, to    chunk.Placement
	attempt     chunk.AttemptID
	before      chunk.AttemptID // whose grants the source has
	notice      chunk.Notice
	silent      bool // announce nothing
	readsClosed bool
	near        bool          // the read grants go with the write grants
	waitForAcks int           // of that many proxies
	drain       time.Duration // how long is waited for the requests of those who say nothing
}

// newMove prepares a switch of a chunk to a shard.
func (f *fleet) newMove(id chunk.ID, shard string) *move {
	f.mu.Lock()
	f.attempt++
	attempt, from := f.attempt, f.routes[id].Placement
	f.mu.Unlock()
	m := &move{f: f, id: id, from: from, to: f.provision(id, shard), attempt: attempt, waitForAcks: 1}
	f.mu.Lock()
	m.before = f.granted[from.ID]
	f.mu.Unlock()
	m.notice = chunk.Notice{
		Attempt: attempt, Migration: 1, Source: from.ID, Target: m.to.ID, Chunks: []chunk.ID{id},
		DeadlineUnixMS: time.Now().Add(5 * time.Second).UnixMilli(),
	}
	return m
}

// state writes the row and announces it.
func (m *move) state(s chunk.AttemptState) {
	m.notice.State = s
	m.f.mu.Lock()
	m.f.attempts[m.id] = m.notice
	m.f.mu.Unlock()
	if !m.silent {
		n := m.notice
		m.f.tell(Announcement{Notice: &n})
	}
}

// await waits for clean acknowledgements.
func (m *move) await(kind string) {
	m.f.t.Helper()
	clean := map[string]bool{}
	timeout := time.After(10 * time.Second)
	for len(clean) < m.waitForAcks {
		select {
		case a := <-m.f.acked:
			if a.Attempt == m.attempt && a.Kind == kind && a.State == ackClean {
				clean[a.Proxy] = true
			}
		case <-timeout:
			require.FailNow(m.f.t, "no acknowledgement", "%s of attempt %d", kind, m.attempt)
		}
	}
}

// fence takes the source's write grant.
func (m *move) fence() {
	m.state(chunk.Fencing)
	m.f.revoke(m.from, chunk.WriteGrant(m.from.ID, m.before))
	if m.near {
		m.readsClosed = true
		m.f.revoke(m.from, chunk.ReadGrant(m.from.ID, m.before))
	}
	if !m.silent && m.waitForAcks > 0 {
		m.await("writes")
	}
	m.grace()
}

// grace waits for what may be under way unannounced.
func (m *move) grace() {
	if m.drain > 0 {
		<-time.After(m.drain)
	}
}

// shut takes the source's read grant and copies what is there.
func (m *move) shut() {
	m.state(chunk.Closing)
	if !m.near {
		m.readsClosed = true
		m.f.revoke(m.from, chunk.ReadGrant(m.from.ID, m.before))
	}
	if !m.silent && m.waitForAcks > 0 {
		m.await("reads")
	}
	m.grace()
	ctx := context.Background()
	for _, c := range m.f.databases[testDatabase].Collections {
		cur, err := m.f.roots[m.from.Shard].Database(m.from.Database).Collection(c.Name).Find(ctx, bson.D{})
		require.NoError(m.f.t, err)
		var docs []bson.Raw
		require.NoError(m.f.t, cur.All(ctx, &docs))
		if len(docs) > 0 {
			_, err = m.f.roots[m.to.Shard].Database(m.to.Database).Collection(c.Name).InsertMany(ctx, docs)
			require.NoError(m.f.t, err)
		}
	}
}

// publish changes the route.
func (m *move) publish() {
	m.f.mu.Lock()
	m.f.token++
	r := m.f.routes[m.id]
	m.f.former = append(m.f.former, Former{Route: r, Left: time.Now()})
	r.Placement, r.Token = m.to, m.f.token
	m.f.routes[m.id] = r
	m.f.mu.Unlock()
	m.state(chunk.Published)
	if !m.silent {
		m.f.tell(Announcement{Route: &RouteChange{Database: testDatabase, Chunk: m.id, Token: r.Token}})
	}
}

// open gives the target its grants.
func (m *move) open() {
	m.f.grant(m.to, m.attempt, true, true)
	m.state(chunk.Open)
	m.state(chunk.AttemptDone)
}

// back ends the attempt without a change.
func (m *move) back() {
	m.state(chunk.AttemptAborting)
	m.f.grant(m.from, m.attempt, true, m.readsClosed)
	m.state(chunk.AttemptAborted)
}

// run does the whole switch.
func (m *move) run() {
	m.fence()
	m.shut()
	m.publish()
	m.open()
}

// keysOf finds, for each chunk, a value of the shard key that lies in it.
func (f *fleet) keysOf(n int) map[chunk.ID][]string {
	out := map[chunk.ID][]string{}
	for i := range 10_000 {
		value := fmt.Sprintf("key-%d", i)
		typ, data, err := bson.MarshalValue(value)
		require.NoError(f.t, err)
		k, err := chunk.Hashed.Point(bson.RawValue{Type: typ, Value: data})
		require.NoError(f.t, err)
		for id, r := range f.routes {
			if r.Chunk.Range.Contains(k) && len(out[id]) < n {
				out[id] = append(out[id], value)
			}
		}
	}
	return out
}

// physical counts the documents of a placement.
func (f *fleet) physical(p chunk.Placement, collection string) int64 {
	f.t.Helper()
	n, err := f.roots[p.Shard].Database(p.Database).Collection(collection).CountDocuments(context.Background(), bson.D{})
	require.NoError(f.t, err)
	return n
}

// How long a test waits for what must come, and how often it looks.
const (
	waitFor = 20 * time.Second
	tick    = 5 * time.Millisecond
)
