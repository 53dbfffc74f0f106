package fleet

import (
	"encoding/json"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.yaml.in/yaml/v3"

	"drover/chunk"
	"drover/placement"
)

// File is a fleet as it is wanted: docs/fleet.md has every field.
type File struct {
	Shards    []FileShard
	Databases []FileDatabase
	Users     []FileUser
	rules     []fileRule
	lines     map[string]int // of the lists at the top
}

// FileShard is a shard of the fleet.
type FileShard struct {
	Name string
	placement.Place
	Spare  bool   // of the pool for seasons: nothing else is put there
	URIEnv string // environment variable with an administrator's address; needed to register it
	Line   int
}

// FileDatabase is a logical database.
type FileDatabase struct {
	Name        string
	KeySpace    chunk.KeySpace
	Ranges      []chunk.Range // of the chunks, when it is made
	Shards      []string      // that they are spread over, when it is made; empty: where the rules say
	Collections []FileCollection
	Policy      json.RawMessage // nil: not declared
	PolicyLine  int
	Line        int
}

// Plain gives its collections without what only a file knows of them.
func (d FileDatabase) Plain() []chunk.Collection {
	out := make([]chunk.Collection, 0, len(d.Collections))
	for _, c := range d.Collections {
		out = append(out, c.Collection)
	}
	return out
}

// FileCollection is a collection of a logical database.
type FileCollection struct {
	chunk.Collection
	Line       int
	IndexLines []int
}

// FileUser is who may use the proxies.
type FileUser struct {
	Name        string
	PasswordEnv string // environment variable; needed to make the user
	Grants      map[string][]string
	Line        int
}

// fileRule is a placement rule before the point of its key is known.
type fileRule struct {
	placement.Rule
	key  bson.RawValue
	path string
}

// Shard finds a shard of the file; one that is not there stands nowhere.
func (f *File) Shard(name string) FileShard {
	for _, s := range f.Shards {
		if s.Name == name {
			return s
		}
	}
	return FileShard{}
}

// Declares reports whether the file lists a shard.
func (f *File) Declares(shard string) bool {
	return slices.ContainsFunc(f.Shards, func(s FileShard) bool { return s.Name == shard })
}

// Database finds a database of the file.
func (f *File) Database(name string) (FileDatabase, bool) {
	for _, d := range f.Databases {
		if d.Name == name {
			return d, true
		}
	}
	return FileDatabase{}, false
}

// Rules gives the placement rules. Tenants are placed by the key spaces that
// their databases have, or will have.
func (f *File) Rules(have map[string]chunk.Database) placement.Rules {
	out := make(placement.Rules, 0, len(f.rules))
	for _, r := range f.rules {
		if r.Level == placement.Tenant {
			d, _ := f.Database(r.Database)
			space := d.KeySpace
			if was, ok := have[r.Database]; ok {
				space = was.KeySpace
			}
			k, err := space.Border(r.key)
			if err != nil {
				continue // Parse has refused such a file
			}
			r.Key = k
		}
		out = append(out, r.Rule)
	}
	return out
}

// Parse reads a fleet file and says all that is wrong with it, each with line and
// field.
func Parse(content []byte) (*File, error) {
	w := &walker{}
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, bad([]string{strings.TrimPrefix(err.Error(), "yaml: ")})
	}
	f := &File{lines: map[string]int{}}
	if len(doc.Content) == 0 {
		w.fail(1, "", "the file is empty: want shards, databases, users and placement")
		return nil, bad(w.problems)
	}
	top := doc.Content[0]
	note := func(name string, then func(*yaml.Node, string)) func(*yaml.Node, string) {
		return func(n *yaml.Node, path string) {
			f.lines[name] = n.Line
			then(n, path)
		}
	}
	w.fields(top, "", map[string]func(*yaml.Node, string){
		"shards":    note("shards", func(n *yaml.Node, path string) { w.list(n, path, f.shard(w)) }),
		"databases": note("databases", func(n *yaml.Node, path string) { w.list(n, path, f.database(w)) }),
		"users":     note("users", func(n *yaml.Node, path string) { w.list(n, path, f.user(w)) }),
		"placement": note("placement", f.placement(w)),
	})
	for _, name := range []string{"shards", "databases"} {
		if f.lines[name] == 0 {
			w.fail(top.Line, name, "is missing: a file that lists none would empty the fleet")
		}
	}
	f.check(w)
	if len(w.problems) > 0 {
		return nil, bad(w.problems)
	}
	return f, nil
}

// shard reads one of shards.
func (f *File) shard(w *walker) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		s := FileShard{Line: n.Line}
		w.fields(n, path, map[string]func(*yaml.Node, string){
			"name": w.text(&s.Name), "zone": w.text(&s.Zone), "region": w.text(&s.Region), "spare": w.truth(&s.Spare), "uriEnv": w.text(&s.URIEnv),
		})
		w.need(n, path, "name", s.Name)
		f.Shards = append(f.Shards, s)
	}
}

// database reads one of databases.
func (f *File) database(w *walker) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		d := FileDatabase{Line: n.Line, KeySpace: chunk.Hashed}
		var space string
		chunks, chunksLine := 0, n.Line
		var splits *yaml.Node
		w.fields(n, path, map[string]func(*yaml.Node, string){
			"name": w.text(&d.Name), "keySpace": w.text(&space),
			"chunks": func(n *yaml.Node, path string) { chunksLine = n.Line; w.integer(&chunks)(n, path) },
			"splits": func(n *yaml.Node, _ string) { splits = n },
			"shards": func(n *yaml.Node, path string) {
				w.list(n, path, func(n *yaml.Node, path string) {
					d.Shards = append(d.Shards, "")
					w.text(&d.Shards[len(d.Shards)-1])(n, path)
				})
			},
			"collections": func(n *yaml.Node, path string) { w.list(n, path, d.collection(w)) },
			"quota": func(n *yaml.Node, path string) {
				d.PolicyLine = n.Line
				d.Policy = w.policy(n, path)
			},
		})
		w.need(n, path, "name", d.Name)
		if space != "" {
			d.KeySpace = chunk.KeySpace(space)
		}
		d.cut(w, path, chunks, chunksLine, splits)
		if len(d.Collections) == 0 {
			w.fail(n.Line, path+".collections", "is empty: a database needs a collection")
		}
		f.Databases = append(f.Databases, d)
	}
}

// cut makes the ranges of the chunks.
func (d *FileDatabase) cut(w *walker, path string, chunks, line int, splits *yaml.Node) {
	switch d.KeySpace {
	case chunk.Hashed:
		if splits != nil {
			w.fail(splits.Line, path+".splits", "a hashed key space has chunks, not splits")
		}
		if chunks == 0 {
			chunks = 8
		}
		if chunks < 1 {
			w.fail(line, path+".chunks", "is %d; want 1 or more", chunks)
			return
		}
		d.Ranges = d.KeySpace.Split(chunks)
	case chunk.Ranged:
		if chunks != 0 {
			w.fail(line, path+".chunks", "a key space by range has splits, not chunks")
		}
		var points []chunk.Key
		if splits != nil {
			w.list(splits, path+".splits", func(n *yaml.Node, path string) {
				k, err := d.KeySpace.Border(w.value(n, path))
				if err != nil {
					w.fail(n.Line, path, "%v", err)
				}
				if len(points) > 0 && k <= points[len(points)-1] {
					w.fail(n.Line, path, "does not lie above the split before it: chunks would overlap")
				}
				points = append(points, k)
			})
		}
		d.Ranges, _ = chunk.RangesAt(points) // what is wrong with them was said
	default:
		w.fail(d.Line, path+".keySpace", "is %q; want hashed or range", string(d.KeySpace))
	}
}

// collection reads one of a database's collections.
func (d *FileDatabase) collection(w *walker) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		c := FileCollection{Line: n.Line}
		w.fields(n, path, map[string]func(*yaml.Node, string){
			"name": w.text(&c.Name), "shardKey": w.text(&c.ShardKey),
			"indexes": func(n *yaml.Node, path string) {
				w.list(n, path, func(n *yaml.Node, path string) {
					raw, ok := w.value(n, path).DocumentOK()
					if !ok || raw.Lookup("key").Type != bson.TypeEmbeddedDocument || raw.Lookup("name").Type != bson.TypeString {
						w.fail(n.Line, path, "an index needs key (fields with 1 or -1) and name")
						return
					}
					c.Indexes, c.IndexLines = append(c.Indexes, raw), append(c.IndexLines, n.Line)
				})
			},
		})
		w.need(n, path, "name", c.Name)
		if c.ShardKey == "" {
			c.ShardKey = "_id"
		}
		if err := chunk.CheckShardKey(c.ShardKey); err != nil {
			w.fail(n.Line, path+".shardKey", "%v", err)
		}
		d.Collections = append(d.Collections, c)
	}
}

// user reads one of users.
func (f *File) user(w *walker) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		u := FileUser{Line: n.Line, Grants: map[string][]string{}}
		w.fields(n, path, map[string]func(*yaml.Node, string){
			"name": w.text(&u.Name), "passwordEnv": w.text(&u.PasswordEnv),
			"grants": func(n *yaml.Node, path string) {
				w.list(n, path, func(n *yaml.Node, path string) {
					var db string
					var actions []string
					w.fields(n, path, map[string]func(*yaml.Node, string){
						"database": w.text(&db),
						"actions": func(n *yaml.Node, path string) {
							w.list(n, path, func(n *yaml.Node, path string) {
								actions = append(actions, "")
								w.text(&actions[len(actions)-1])(n, path)
							})
						},
					})
					w.need(n, path, "database", db)
					if _, twice := u.Grants[db]; twice {
						w.fail(n.Line, path+".database", "%q is there twice", db)
					}
					u.Grants[db] = actions
				})
			},
		})
		w.need(n, path, "name", u.Name)
		f.Users = append(f.Users, u)
	}
}

// placement reads the placement rules.
func (f *File) placement(w *walker) func(*yaml.Node, string) {
	one := func(level placement.Level) func(*yaml.Node, string) {
		return func(n *yaml.Node, path string) {
			r := fileRule{Rule: placement.Rule{Level: level, Line: n.Line}, path: path}
			var id string
			fields := map[string]func(*yaml.Node, string){"shard": w.text(&r.Target.Shard), "zone": w.text(&r.Target.Zone), "region": w.text(&r.Target.Region)}
			switch level {
			case placement.Pin:
				delete(fields, "zone")
				delete(fields, "region")
				fields["chunk"] = w.text(&id)
			case placement.Tenant:
				fields["key"] = func(n *yaml.Node, path string) { r.key, r.Text = w.value(n, path), extended(n) }
				fields["database"] = w.text(&r.Database)
			case placement.Database:
				fields["database"] = w.text(&r.Database)
			case placement.Default:
			}
			w.fields(n, path, fields)
			r.Chunk = chunk.ID(id)
			if level == placement.Tenant && r.Text == "" {
				w.fail(n.Line, path+".key", "is missing")
			}
			given := slices.DeleteFunc([]string{r.Target.Shard, r.Target.Zone, r.Target.Region}, func(s string) bool { return s == "" })
			if len(given) != 1 {
				w.fail(n.Line, path, "want one of shard, zone and region")
			}
			f.rules = append(f.rules, r)
		}
	}
	return func(n *yaml.Node, path string) {
		w.fields(n, path, map[string]func(*yaml.Node, string){
			"default":   one(placement.Default),
			"databases": func(n *yaml.Node, path string) { w.list(n, path, one(placement.Database)) },
			"tenants":   func(n *yaml.Node, path string) { w.list(n, path, one(placement.Tenant)) },
			"pins":      func(n *yaml.Node, path string) { w.list(n, path, one(placement.Pin)) },
		})
	}
}
