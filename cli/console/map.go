package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"drover/chunk"
)

// shards shows who lives where, how hot it is, and who depends on each shard.
func (v *Page) shards(s *Snapshot) {
	around := aroundOf(s)
	silence := map[string]float64{}
	for _, c := range s.Figures.Captures {
		silence[c.Shard] = c.Silence
	}
	for _, sh := range s.Shards {
		w := ShardView{
			Name: sh.Name, About: fmt.Sprintf("%s %s, %d members", sh.Capabilities.SetName, sh.Capabilities.Version, sh.Capabilities.Members),
			Chunks: around.live[sh.Name], Kept: around.kept[sh.Name], Depends: around.depends[sh.Name],
			Silence: "unknown", Silent: true, Leased: strings.Join(around.leased[sh.Name], ", "),
		}
		for _, c := range around.arriving[sh.Name] {
			if !slices.ContainsFunc(w.Chunks, func(x ChunkView) bool { return x.ID == c.ID }) {
				w.Arriving = append(w.Arriving, c)
			}
		}
		if secs, ok := silence[sh.Name]; ok {
			w.Silence, w.Silent = time.Duration(secs*float64(time.Second)).Round(time.Second).String(), secs > captureSilent
		}
		for _, c := range w.Chunks {
			w.Heat += c.Heat
		}
		if k := s.Figures.Pressures[sh.Name]; k.Age < chunk.PressureMost {
			w.strain(k.Pressure)
		}
		v.Shards = append(v.Shards, w)
	}
	v.warm()
}

// strain says how a shard bears its load, as far as that is known.
func (w *ShardView) strain(p chunk.Pressure) {
	if w.CPU = p.CPU; p.CPU != nil {
		w.Strain = fmt.Sprintf(", %.0f %% of its CPU", 100**p.CPU)
	}
	if p.Write != nil {
		ms := float64(*p.Write) / float64(time.Millisecond)
		w.Write = &ms
		w.Strain += fmt.Sprintf(", %.1f ms a write", ms)
	}
}

// around is what surrounds shards, by their names.
type around struct {
	live, arriving, kept map[string][]ChunkView
	leased, depends      map[string][]string
}

// aroundOf sorts a snapshot by shard.
func aroundOf(s *Snapshot) around {
	a := around{map[string][]ChunkView{}, map[string][]ChunkView{}, map[string][]ChunkView{}, map[string][]string{}, map[string][]string{}}
	serving, moving := map[chunk.ID]string{}, map[chunk.ID]string{}
	for _, r := range s.Routes {
		serving[r.Chunk.ID] = r.Placement.Shard
	}
	for _, m := range s.Moves {
		if m.Phase.Final() {
			continue
		}
		moving[m.Chunk.ID] = fmt.Sprintf("%s to %s", m.Phase, m.Target.Shard)
		copied := ChunkView{ID: m.TargetChunk.ID, Hue: hue(m.Chunk.Database), Moving: string(m.Phase)}
		a.arriving[m.Target.Shard] = append(a.arriving[m.Target.Shard], copied)
		needs := fmt.Sprintf("%s of %s", m.Phase, m.Chunk.ID)
		a.depends[m.Target.Shard] = append(a.depends[m.Target.Shard], needs)
		if m.Phase == chunk.BurnIn && serving[m.TargetChunk.ID] == m.Target.Shard {
			needs = "way back of " + string(m.Chunk.ID)
			a.kept[m.Source.Shard] = append(a.kept[m.Source.Shard], ChunkView{ID: m.Chunk.ID, Hue: hue(m.Chunk.Database), Moving: "its way back"})
		}
		a.depends[m.Source.Shard] = append(a.depends[m.Source.Shard], needs)
	}
	for _, r := range s.Routes {
		c := ChunkView{ID: r.Chunk.ID, Hue: hue(r.Chunk.Database), Moving: moving[r.Chunk.ID], Heat: s.Loads[r.Placement.ID]}
		a.live[r.Placement.Shard] = append(a.live[r.Placement.Shard], c)
	}
	for _, l := range s.Leases {
		a.leased[l.Shard] = append(a.leased[l.Shard], fmt.Sprintf("%s %s", l.Mode, l.Holder))
	}
	for _, r := range s.Runs {
		if r.Verdict == "" {
			a.depends[r.Shard] = append(a.depends[r.Shard], "remediation")
		}
	}
	return a
}

// warm compares all with the hottest.
func (v *Page) warm() {
	shard, one := 0.0, 0.0
	for _, w := range v.Shards {
		shard = max(shard, w.Heat)
		for _, c := range w.Chunks {
			one = max(one, c.Heat)
		}
	}
	for i := range v.Shards {
		w := &v.Shards[i]
		w.Warm = percent(w.Heat, shard)
		for j := range w.Chunks {
			w.Chunks[j].Warm = percent(w.Chunks[j].Heat, one)
		}
	}
}

// percent is a share of all, 0 of nothing.
func percent(part, all float64) int {
	if all == 0 {
		return 0
	}
	return int(100 * part / all)
}
