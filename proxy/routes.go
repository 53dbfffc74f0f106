package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/internal/failure"
	"drover/proxy/upstream"
	"drover/proxy/wire"
)

// route is where a chunk is served, as far as this proxy knows.
type route struct {
	chunk.Route
	gate    *gate
	pool    *upstream.Pool
	comment []byte // the value of comment.drover
}

// entry is one chunk. It lives as long as the proxy, and its route changes.
type entry struct {
	id    chunk.ID
	rng   chunk.Range
	route atomic.Pointer[route]
	room  room
	past  placements
	ended atomic.Bool // no keys are its own any more: it was split or merged
	alone []*entry    // it and no other: what most requests are for
}

// newEntry makes the entry of a chunk.
func newEntry(id chunk.ID, rng chunk.Range) *entry {
	e := &entry{id: id, rng: rng}
	e.alone = []*entry{e}
	return e
}

// collection is one collection of a database.
type collection struct {
	name     string
	shardKey string          // its fields with commas between them
	key      []string        // the same as a list; see keys
	simple   bool            // no collation of its own
	leads    map[string]bool // first fields of its indexes
}

// keys gives the fields of the shard key.
func (c *collection) keys() []string {
	if c.key == nil {
		return chunk.KeyFields(c.shardKey)
	}
	return c.key
}

// database is one logical database of a table.
type database struct {
	name        string
	space       chunk.KeySpace
	collections map[string]*collection
	entries     []*entry // by range
}

// at gives the chunk that holds k, nil when the metadata has a gap.
func (d *database) at(k chunk.Key) *entry {
	if i := d.place(k); i >= 0 {
		return d.entries[i]
	}
	return nil
}

// place gives the place of the chunk that holds k, -1 when the metadata has a gap.
func (d *database) place(k chunk.Key) int {
	i, found := slices.BinarySearchFunc(d.entries, k, func(e *entry, k chunk.Key) int { return cmp.Compare(e.rng.Lo, k) })
	if !found {
		i--
	}
	if i < 0 || !d.entries[i].rng.Contains(k) {
		return -1
	}
	return i
}

// table is a snapshot of the metadata. It is never changed, except that the
// entries' routes move on.
type table map[string]*database

// routing keeps the table and what it is made of. It may be arbitrarily stale.
type routing struct {
	ports   Ports
	gates   *gates
	pools   *pools
	current atomic.Pointer[table]

	mu      sync.Mutex
	entries map[chunk.ID]*entry
	loaded  time.Time // when the newest reading of everything began

	reading sync.Mutex // one reload at a time
}

// reloadPause bounds how often unknown names make the proxy read the metadata.
const reloadPause = 200 * time.Millisecond

// load reads everything.
func (t *routing) load(ctx context.Context) error {
	began := time.Now()
	snapshot, err := t.ports.Routes.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("read routes: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if began.Before(t.loaded) {
		return nil // a later reading was faster
	}
	t.loaded = began
	fresh := table{}
	for _, d := range snapshot.Databases {
		db := &database{name: d.Name, space: d.KeySpace, collections: map[string]*collection{}}
		for _, c := range d.Collections {
			_, own := wire.Find(c.Options, "collation")
			db.collections[c.Name] = &collection{name: c.Name, shardKey: c.ShardKey, key: chunk.KeyFields(c.ShardKey), simple: !own, leads: leadsOf(c)}
		}
		fresh[d.Name] = db
	}
	for _, r := range snapshot.Routes {
		db := fresh[r.Chunk.Database]
		if db == nil {
			continue
		}
		e := t.entries[r.Chunk.ID]
		if e == nil || e.rng != r.Chunk.Range {
			e = newEntry(r.Chunk.ID, r.Chunk.Range)
			t.entries[r.Chunk.ID] = e
		}
		e.remember(db.name, snapshot.Former)
		if err := t.set(ctx, e, r); err != nil {
			return err
		}
		db.entries = append(db.entries, e)
	}
	t.end(fresh)
	for _, db := range fresh {
		slices.SortFunc(db.entries, func(a, b *entry) int { return strings.Compare(string(a.rng.Lo), string(b.rng.Lo)) })
	}
	t.current.Store(&fresh)
	for _, e := range t.entries {
		if e.ended.Load() {
			e.room.news()
		}
	}
	return nil
}

// end marks the chunks that are in no table any more, and unmarks those that came
// back; t.mu is held. Who waits for one that has ended looks for its keys elsewhere.
func (t *routing) end(fresh table) {
	current := make(map[*entry]bool, len(t.entries))
	for _, db := range fresh {
		for _, e := range db.entries {
			current[e] = true
		}
	}
	for _, e := range t.entries {
		e.ended.Store(!current[e])
	}
}

// reload reads everything as it is when it is called, or later: a name that is
// unknown afterwards did not exist when it was asked for. Callers share readings,
// and two of them are at least reloadPause apart.
func (t *routing) reload(ctx context.Context) error {
	asked := time.Now()
	t.reading.Lock()
	defer t.reading.Unlock()
	t.mu.Lock()
	last := t.loaded
	t.mu.Unlock()
	if last.After(asked) {
		return nil
	}
	if pause := reloadPause - time.Since(last); pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
	return t.load(ctx)
}

// set gives e a newer route; an older one is ignored. t.mu need not be held.
func (t *routing) set(ctx context.Context, e *entry, r chunk.Route) error {
	for {
		old := e.route.Load()
		if old != nil && old.Token >= r.Token {
			return nil
		}
		pool, err := t.pools.get(ctx, r.Placement.Shard)
		if err != nil {
			return err
		}
		fresh := &route{Route: r, gate: t.gates.of(r.Placement.ID), pool: pool, comment: stamp(r)}
		if old != nil && old.Placement.ID != r.Placement.ID {
			e.past.add(former{Route: old.Route, left: time.Now()}) // before anybody can see the new one
		}
		if e.route.CompareAndSwap(old, fresh) {
			return nil
		}
	}
}

// stamp is what the proxy adds to the comment of every command for r: nothing
// in it is unique for a request.
func stamp(r chunk.Route) []byte {
	at, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "chunk", string(r.Chunk.ID))
	doc = bsoncore.AppendInt64Element(doc, "token", int64(r.Token))
	doc, _ = bsoncore.AppendDocumentEnd(doc, at)
	return doc
}

// refresh reads one chunk's route.
func (t *routing) refresh(ctx context.Context, e *entry) error {
	r, past, err := t.ports.Routes.Route(ctx, e.id)
	if failure.HasCode(err, "chunk.unknown") { // split or merged: its keys are elsewhere
		return t.load(ctx)
	}
	if err != nil {
		return fmt.Errorf("read route of %s: %w", e.id, err)
	}
	e.remember(r.Chunk.Database, past)
	return t.set(ctx, e, r)
}

// entry gives a known chunk, nil otherwise.
func (t *routing) entry(id chunk.ID) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.entries[id]
}

// database gives a logical database. An unknown one makes the proxy look again.
func (t *routing) database(ctx context.Context, name []byte) (*database, error) {
	if db := (*t.current.Load())[string(name)]; db != nil {
		return db, nil
	}
	if err := t.reload(ctx); err != nil {
		return nil, err
	}
	return (*t.current.Load())[string(name)], nil
}

// collection gives a collection and its database; both or the collection may be
// nil. An unknown one makes the proxy look again.
func (t *routing) collection(ctx context.Context, database, name []byte) (*database, *collection, error) {
	db, err := t.database(ctx, database)
	if err != nil || db == nil {
		return nil, nil, err
	}
	if c := db.collections[string(name)]; c != nil {
		return db, c, nil
	}
	if err := t.reload(ctx); err != nil {
		return nil, nil, err
	}
	if db = (*t.current.Load())[string(database)]; db == nil {
		return nil, nil, nil
	}
	return db, db.collections[string(name)], nil
}

// pools keeps one pool for each shard.
type pools struct {
	shards  Shards
	appName string
	max     int
	tls     func() *tls.Config // for shards whose URI says tls=true

	mu     sync.Mutex
	byName map[string]*upstream.Pool
	keeps  map[string]bool // shards that keep records of retryable writes
	wire   int32           // the lowest maxWireVersion that the registered shards were found to have
	closed bool
}

// get gives the shard's pool and makes it at first. Nobody waits for the look at
// where another shard is.
func (p *pools) get(ctx context.Context, name string) (*upstream.Pool, error) {
	p.mu.Lock()
	known := p.byName[name]
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	s, err := p.shards.Shard(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("look up shard %s: %w", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if pool := p.byName[name]; pool != nil { // somebody else was faster
		return pool, nil
	}
	pool, err := upstream.New(upstream.Config{
		Name: name, URI: s.URI, User: s.User, Password: s.Password, AppName: p.appName, MaxConns: p.max, TLS: p.tls,
	})
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", name, err)
	}
	if p.closed {
		pool.Close()
	}
	p.byName[name] = pool
	if s.Capabilities.KeepsTransactionRecord {
		p.keeps[name] = true
	}
	if v := s.Capabilities.MaxWireVersion; v > 0 && (p.wire == 0 || v < p.wire) {
		p.wire = v
	}
	return pool, nil
}

// has reports whether there is a pool of a shard.
func (p *pools) has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byName[name] != nil
}

// keepsRecords reports whether a shard keeps records of retryable writes.
func (p *pools) keepsRecords(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keeps[name]
}

// each calls fn for every pool.
func (p *pools) each(fn func(*upstream.Pool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pool := range p.byName {
		fn(pool)
	}
}

// close ends every connection.
func (p *pools) close() {
	p.each((*upstream.Pool).Close)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// Wire versions that the proxy speaks itself.
const (
	leastWireVersion   = 0
	unknownWireVersion = 17 // 6.0, the oldest that is supported
	mostWireVersion    = 25 // 8.0: newer ones promise commands that the proxy does not know
)

// wireVersion is what hello advertises: no more than any shard understands.
func (p *pools) wireVersion() int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	lowest := p.wire
	for _, pool := range p.byName {
		if _, v := pool.WireVersions(); v > 0 && (lowest == 0 || v < lowest) {
			lowest = v
		}
	}
	if lowest == 0 {
		return unknownWireVersion
	}
	return min(lowest, mostWireVersion)
}

// emptyDocument is {}.
var emptyDocument = bson.Raw{5, 0, 0, 0, 0}

// all gives every known chunk.
func (t *routing) all() []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*entry, 0, len(t.entries))
	for _, e := range t.entries {
		out = append(out, e)
	}
	return out
}

// databaseNames lists the logical databases in order.
func (t *routing) databaseNames() []string {
	names := make([]string, 0, len(*t.current.Load()))
	for name := range *t.current.Load() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
