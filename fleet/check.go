package fleet

import (
	"strings"

	"drover/chunk"
	"drover/placement"
)

// check says what contradicts itself within the file.
func (f *File) check(w *walker) {
	twice := func(list string) func(line int, name string) {
		seen := map[string]int{}
		return func(line int, name string) {
			if first, ok := seen[name]; ok && name != "" {
				w.fail(line, list, "%q is there already, on line %d", name, first)
			}
			seen[name] = line
		}
	}
	shards, zones, regions := map[string]bool{}, map[string]FileShard{"": {}}, map[string]bool{"": true}
	once := twice("shards")
	for _, s := range f.Shards {
		once(s.Line, s.Name)
		shards[s.Name], regions[s.Region] = true, true
		if first, ok := zones[s.Zone]; ok && s.Zone != "" && first.Region != s.Region {
			w.fail(s.Line, "shards", "zone %q is in region %q, on line %d in %q: a zone lies in one region", s.Zone, s.Region, first.Line, first.Region)
		} else if !ok {
			zones[s.Zone] = s
		}
	}
	if len(f.Shards) == 0 && f.lines["shards"] > 0 {
		w.fail(f.lines["shards"], "shards", "is empty: that would empty the fleet")
	}
	once = twice("databases")
	for _, d := range f.Databases {
		once(d.Line, d.Name)
		if strings.Contains(d.Name, "/") {
			w.fail(d.Line, "databases", "%q: a name has no slash", d.Name)
		}
		for _, s := range d.Shards {
			if !shards[s] {
				w.fail(d.Line, "databases", "%s: its chunks begin on shard %q, which is not among shards", d.Name, s)
			}
		}
		d.check(w)
	}
	once = twice("users")
	for _, u := range f.Users {
		once(u.Line, u.Name)
		for db := range u.Grants {
			if _, ok := f.Database(db); !ok && db != "*" {
				w.fail(u.Line, "users", "%s: a grant names database %q, which is not among databases", u.Name, db)
			}
		}
	}
	f.checkRules(w, shards, zones, regions)
}

// check says what is wrong with the collections of a database.
func (d *FileDatabase) check(w *walker) {
	names := map[string]int{}
	for _, c := range d.Collections {
		if first, ok := names[c.Name]; ok && c.Name != "" {
			w.fail(c.Line, "databases", "%s: collection %q is there already, on line %d", d.Name, c.Name, first)
		}
		names[c.Name] = c.Line
		indexes := map[string]int{}
		for i, x := range c.Indexes {
			name := x.Lookup("name").StringValue()
			if first, ok := indexes[name]; ok {
				w.fail(c.IndexLines[i], "databases", "%s.%s: index %q is there already, on line %d", d.Name, c.Name, name, first)
			}
			indexes[name] = c.IndexLines[i]
		}
	}
}

// checkRules says what is wrong with the placement rules.
func (f *File) checkRules(w *walker, shards map[string]bool, zones map[string]FileShard, regions map[string]bool) {
	for _, r := range f.rules {
		d, known := f.Database(r.Database)
		if r.Level == placement.Pin {
			name, _, _ := strings.Cut(string(r.Chunk), "/")
			_, known = f.Database(name)
		}
		switch {
		case r.Level != placement.Default && !known:
			w.fail(r.Line, r.path, "names a database that is not among databases")
			continue
		case r.Target.Shard != "" && !shards[r.Target.Shard]:
			w.fail(r.Line, r.path+".shard", "%q is not among shards", r.Target.Shard)
		case !regions[r.Target.Region]:
			w.fail(r.Line, r.path+".region", "no shard is in region %q: what the rule is about would be orphaned", r.Target.Region)
		}
		if _, ok := zones[r.Target.Zone]; !ok {
			w.fail(r.Line, r.path+".zone", "no shard is in zone %q: what the rule is about would be orphaned", r.Target.Zone)
		}
		if r.Level == placement.Tenant && r.Text != "" {
			if _, err := d.KeySpace.Border(r.key); err != nil {
				w.fail(r.Line, r.path+".key", "%v", err)
			}
		}
	}
	if len(w.problems) > 0 {
		return
	}
	if err := f.Rules(map[string]chunk.Database{}).Check(); err != nil {
		w.problems = append(w.problems, err.Error())
	}
}
