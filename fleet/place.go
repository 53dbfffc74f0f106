package fleet

import (
	"fmt"

	"drover/chunk"
)

// FirstChunks gives the shard of each chunk of a database that is made: those that
// the file lists in turn, or else those that the placement rules allow.
func (f *File) FirstChunks(d FileDatabase) ([]string, error) {
	rules := f.Rules(map[string]chunk.Database{})
	out := make([]string, 0, len(d.Ranges))
	for i, r := range d.Ranges {
		able := d.Shards
		if len(able) == 0 {
			c := chunk.Chunk{ID: chunk.NewID(d.Name, i+1), Database: d.Name, Range: r}
			decision, _ := rules.Chunk(c, d.KeySpace) // a tenant that wants another place is isolated later
			for _, s := range f.Shards {
				if !s.Spare && decision.Rule.Target.Allows(s.Name, s.Place) {
					able = append(able, s.Name)
				}
			}
			if len(able) == 0 {
				return nil, fmt.Errorf("%s wants chunk %d of %s on %s, of which there is no shard", decision.Rule, i+1, d.Name, decision.Rule.Target)
			}
		}
		out = append(out, able[i%len(able)])
	}
	return out, nil
}

// Explanation says where a key belongs, why, and where it is.
type Explanation struct {
	Chunk   chunk.ID `json:"chunk"`
	Shard   string   `json:"shard"`
	Place   string   `json:"place"` // where that shard stands
	Target  string   `json:"target"`
	Rule    string   `json:"rule"`
	Lost    []string `json:"lost,omitempty"`
	InPlace string   `json:"inPlace"`
}

// Explain says which rule won for a key of a chunk.
func (f *File) Explain(r chunk.Route, k chunk.Key, db chunk.Database) Explanation {
	rules := f.Rules(map[string]chunk.Database{db.Name: db})
	d := rules.Explain(r.Chunk, k)
	at := f.Shard(r.Placement.Shard)
	e := Explanation{Chunk: r.Chunk.ID, Shard: r.Placement.Shard, Place: at.String(), Target: d.Rule.Target.String(), Rule: d.Rule.String(), InPlace: "yes"}
	for _, x := range d.Lost {
		e.Lost = append(e.Lost, fmt.Sprintf("%s, which wants %s", x, x.Target))
	}
	if !d.Rule.Target.Allows(r.Placement.Shard, at.Place) {
		e.InPlace = "no: drover apply moves it"
		if _, err := rules.Chunk(r.Chunk, db.KeySpace); err != nil {
			e.InPlace = "no: it needs a chunk of its own first: drover chunk isolate"
		}
	}
	return e
}
