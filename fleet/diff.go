package fleet

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// The kinds of changes, in the order in which they are made.
const (
	AddShard         = "shard.add"
	CreateDatabase   = "database.create"
	CreateCollection = "collection.create"
	CreateIndex      = "index.create"
	SetQuota         = "quota.set"
	AddUser          = "user.add"
	GrantUser        = "user.grant"
	RevokeUser       = "user.revoke"
)

// Change is one thing that a fleet lacks to be as its file says.
type Change struct {
	Kind       string   `json:"kind"`
	Subject    string   `json:"subject"` // shard, database or user
	Collection string   `json:"collection,omitempty"`
	Index      bson.Raw `json:"-"`
	Database   string   `json:"database,omitempty"` // of a grant
	Actions    []string `json:"actions,omitempty"`
	What       string   `json:"what"`
	Line       int      `json:"line"`
}

// Present is a fleet as it is, as far as a file speaks of it.
type Present struct {
	Shards    []chunk.Shard
	Databases []chunk.Database
	Routes    []chunk.Route
	Placed    map[string]int // placements on each shard, in whatever state
	Policies  map[string][]byte
	Users     map[string]map[string][]string // grants by user and database
}

// Diff is what a file changes, what it leaves alone, or why it is refused.
type Diff struct {
	Changes []Change `json:"changes"`
	Left    []string `json:"left,omitempty"` // that is there and not in the file
}

// Diff compares a file with a fleet. A file that would empty, orphan or overlap
// anything, or that asks for what cannot be changed, is refused as a whole.
func (f *File) Diff(p Present) (Diff, error) {
	d := &differ{w: &walker{}, f: f, p: p}
	d.shards()
	d.databases()
	d.pins()
	d.users()
	if len(d.w.problems) > 0 {
		return Diff{}, bad(d.w.problems)
	}
	order := []string{AddShard, CreateDatabase, CreateCollection, CreateIndex, SetQuota, AddUser, GrantUser, RevokeUser}
	slices.SortStableFunc(d.out.Changes, func(a, b Change) int { return slices.Index(order, a.Kind) - slices.Index(order, b.Kind) })
	return d.out, nil
}

// differ compares.
type differ struct {
	w   *walker
	f   *File
	p   Present
	out Diff
}

// change notes a change.
func (d *differ) change(c Change, what string, args ...any) {
	c.What = fmt.Sprintf(what, args...)
	d.out.Changes = append(d.out.Changes, c)
}

// left notes what is there and not in the file.
func (d *differ) left(what string, args ...any) {
	d.out.Left = append(d.out.Left, fmt.Sprintf(what, args...))
}

// shards compares the shards. One that holds something must be in the file.
func (d *differ) shards() {
	have := map[string]bool{}
	for _, s := range d.p.Shards {
		have[s.Name] = true
		declared := slices.ContainsFunc(d.f.Shards, func(x FileShard) bool { return x.Name == s.Name })
		switch n := d.p.Placed[s.Name]; {
		case declared:
		case n > 0:
			d.w.fail(d.f.lines["shards"], "shards", "shard %s is not in the file and %d placements live there: they would be orphaned (drover shard drain %s first)", s.Name, n, s.Name)
		default:
			d.left("shard %s is not in the file; nothing lives there", s.Name)
		}
	}
	for _, s := range d.f.Shards {
		if have[s.Name] {
			continue
		}
		if s.URIEnv == "" {
			d.w.fail(s.Line, "shards", "%s is not registered: want uriEnv, or drover shard add %s first", s.Name, s.Name)
		}
		d.change(Change{Kind: AddShard, Subject: s.Name, Line: s.Line}, "register it with the address in $%s and start its capture", s.URIEnv)
	}
}

// databases compares the logical databases.
func (d *differ) databases() {
	have := map[string]chunk.Database{}
	for _, x := range d.p.Databases {
		have[x.Name] = x
		if _, ok := d.f.Database(x.Name); !ok {
			chunks := 0
			for _, r := range d.p.Routes {
				if r.Chunk.Database == x.Name {
					chunks++
				}
			}
			d.w.fail(d.f.lines["databases"], "databases", "database %s is not in the file: its %d chunks would be orphaned", x.Name, chunks)
		}
	}
	for _, x := range d.f.Databases {
		was, ok := have[x.Name]
		if !ok {
			d.change(Change{Kind: CreateDatabase, Subject: x.Name, Line: x.Line}, "create it with %d chunks and %d collections", len(x.Ranges), len(x.Collections))
		} else {
			d.database(x, was)
		}
		if x.Policy != nil && !samePolicy(x.Policy, d.p.Policies[x.Name]) {
			d.change(Change{Kind: SetQuota, Subject: x.Name, Line: x.PolicyLine}, "%s (was %s)", x.Policy, orNone(d.p.Policies[x.Name]))
		}
	}
}

// database compares a database that is there.
func (d *differ) database(x FileDatabase, was chunk.Database) {
	if x.KeySpace != was.KeySpace {
		d.w.fail(x.Line, "databases", "%s: keySpace is %s and cannot become %s", x.Name, was.KeySpace, x.KeySpace)
	}
	for _, c := range was.Collections {
		if !slices.ContainsFunc(x.Collections, func(y FileCollection) bool { return y.Name == c.Name }) {
			d.w.fail(x.Line, "databases", "%s: collection %s is not in the file: it would be emptied (drop it through a proxy first)", x.Name, c.Name)
		}
	}
	for _, c := range x.Collections {
		at := slices.IndexFunc(was.Collections, func(y chunk.Collection) bool { return y.Name == c.Name })
		if at < 0 {
			d.change(Change{Kind: CreateCollection, Subject: x.Name, Collection: c.Name, Line: c.Line}, "create collection %s by %s on all chunks", c.Name, c.ShardKey)
			d.indexes(x.Name, c, nil)
			continue
		}
		y := was.Collections[at]
		if y.ShardKey != c.ShardKey {
			d.w.fail(c.Line, "databases", "%s.%s: shardKey is %s and cannot become %s", x.Name, c.Name, y.ShardKey, c.ShardKey)
		}
		d.indexes(x.Name, c, y.Indexes)
	}
}

// indexes compares the indexes of a collection by name and key.
func (d *differ) indexes(db string, c FileCollection, have []bson.Raw) {
	name := func(r bson.Raw) string { s, _ := r.Lookup("name").StringValueOK(); return s }
	for i, x := range c.Indexes {
		at := slices.IndexFunc(have, func(y bson.Raw) bool { return name(y) == name(x) })
		switch {
		case at < 0:
			d.change(Change{Kind: CreateIndex, Subject: db, Collection: c.Name, Index: x, Line: c.IndexLines[i]}, "create index %s of %s on all chunks", name(x), c.Name)
		case !sameIndex(x, have[at]):
			d.w.fail(c.IndexLines[i], "databases", "%s.%s: index %s is there with another definition (%s): drop it through a proxy first", db, c.Name, name(x), have[at])
		}
	}
	for _, y := range have {
		if !slices.ContainsFunc(c.Indexes, func(x bson.Raw) bool { return name(x) == name(y) }) {
			d.left("index %s of %s.%s is not in the file", name(y), db, c.Name)
		}
	}
}

// sameIndex reports whether every field of what is wanted is there: a server adds
// some. Keys compare in their order, numbers by value.
func sameIndex(want, have bson.Raw) bool {
	elements, err := want.Elements()
	if err != nil {
		return false
	}
	for _, e := range elements {
		v, err := have.LookupErr(e.Key())
		if err != nil {
			return false
		}
		a, errA := chunk.EncodeValue(e.Value())
		b, errB := chunk.EncodeValue(v)
		if errA != nil || errB != nil || a != b {
			return false
		}
	}
	return true
}

// samePolicy compares two policies; none is the same as an empty one.
func samePolicy(a, b []byte) bool {
	if len(b) == 0 {
		b = []byte("{}")
	}
	var x, y map[string]any
	if bson.UnmarshalExtJSON(a, false, &x) != nil || bson.UnmarshalExtJSON(b, false, &y) != nil {
		return bytes.Equal(a, b)
	}
	return maps.EqualFunc(x, y, func(p, q any) bool { return fmt.Sprint(p) == fmt.Sprint(q) })
}

// orNone names what is not there.
func orNone(b []byte) string {
	if len(b) == 0 {
		return "none"
	}
	return string(b)
}

// pins refuses pins of chunks that do not exist.
func (d *differ) pins() {
	for _, r := range d.f.rules {
		if r.Chunk != "" && !slices.ContainsFunc(d.p.Routes, func(x chunk.Route) bool { return x.Chunk.ID == r.Chunk }) {
			d.w.fail(r.Line, r.path+".chunk", "there is no chunk %s: drover chunk list shows them", r.Chunk)
		}
	}
}

// users compares the users that the file names; others are left alone.
func (d *differ) users() {
	for _, name := range slices.Sorted(maps.Keys(d.p.Users)) {
		if !slices.ContainsFunc(d.f.Users, func(u FileUser) bool { return u.Name == name }) {
			d.left("user %s is not in the file", name)
		}
	}
	for _, u := range d.f.Users {
		have, ok := d.p.Users[u.Name]
		if !ok {
			if u.PasswordEnv == "" {
				d.w.fail(u.Line, "users", "%s does not exist: want passwordEnv, or drover user add %s first", u.Name, u.Name)
			}
			d.change(Change{Kind: AddUser, Subject: u.Name, Line: u.Line}, "make it with the password in $%s", u.PasswordEnv)
		}
		for _, db := range slices.Sorted(maps.Keys(u.Grants)) {
			if more := missing(u.Grants[db], have[db]); len(more) > 0 {
				d.change(Change{Kind: GrantUser, Subject: u.Name, Database: db, Actions: more, Line: u.Line}, "allow %v on %s", more, db)
			}
		}
		for _, db := range slices.Sorted(maps.Keys(have)) {
			if less := missing(have[db], u.Grants[db]); len(less) > 0 {
				d.change(Change{Kind: RevokeUser, Subject: u.Name, Database: db, Actions: less, Line: u.Line}, "allow %v on %s no more", less, db)
			}
		}
	}
}

// missing gives what is wanted and not there.
func missing(want, have []string) (out []string) {
	for _, x := range want {
		if !slices.Contains(have, x) {
			out = append(out, x)
		}
	}
	return out
}
