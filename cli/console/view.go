package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"drover/chunk"
	"drover/contract"
)

// Page is everything that the page shows, also as JSON.
type Page struct {
	At      time.Time     `json:"at"`
	Fleet   string        `json:"fleet"`
	Problem string        `json:"problem,omitempty"` // why the metadata was not read
	Known   bool          `json:"known"`             // whether the metadata was ever read
	Age     time.Duration `json:"age"`               // of what is shown
	Parts   []PartView    `json:"parts"`

	Shards     []ShardView     `json:"shards"`
	Moves      []MoveView      `json:"moves"`
	Past       []MoveView      `json:"past"` // the newest that are over
	Switches   []SwitchView    `json:"switches"`
	Windows    Histogram       `json:"windows"`
	Waited     []WaitedView    `json:"waitedThisMonth"`
	Alarms     []AlarmView     `json:"alarms"`
	AlarmsFrom string          `json:"alarmsFrom"`
	Leases     []LeaseView     `json:"leases"`
	Stragglers []StragglerView `json:"stragglers"`
	Repairs    []RepairView    `json:"repairs"`
	Proxies    []string        `json:"proxies"`
	Stopped    string          `json:"remediationStopped,omitempty"`
}

// PartView is one part of the stack.
type PartView struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Up      bool   `json:"up"`
	Problem string `json:"problem,omitempty"`
	Without string `json:"without"`
}

// ShardView is one shard and who lives on it.
type ShardView struct {
	Name     string      `json:"name"`
	About    string      `json:"about"`
	Silence  string      `json:"captureSilence"` // of its capture
	Silent   bool        `json:"captureSilent"`
	Leased   string      `json:"leased,omitempty"`
	Heat     float64     `json:"requestsPerSecond"` // of all its chunks
	CPU      *float64    `json:"cpu"`               // share of its primary's cores, with decay; null: not known
	Write    *float64    `json:"writeMS"`           // mean of a write; null: not known
	Strain   string      `json:"-"`                 // both in words
	Warm     int         `json:"-"`                 // percent of the hottest shard
	Depends  []string    `json:"depends"`           // who needs this shard, besides the chunks that live there
	Chunks   []ChunkView `json:"chunks"`
	Arriving []ChunkView `json:"arriving"` // copies of moves that end here
	Kept     []ChunkView `json:"kept"`     // old copies, for a way back
}

// ChunkView is one chunk on a shard.
type ChunkView struct {
	ID     chunk.ID `json:"id"`
	Hue    int      `json:"-"` // one for each database
	Moving string   `json:"moving,omitempty"`
	Heat   float64  `json:"requestsPerSecond"`
	Warm   int      `json:"-"` // percent of the hottest chunk
}

// MoveView is one move.
type MoveView struct {
	ID        chunk.MigrationID `json:"id"`
	Chunk     chunk.ID          `json:"chunk"`
	From      string            `json:"from"`
	To        string            `json:"to"`
	Phase     chunk.Phase       `json:"phase"`
	Phases    []PhaseView       `json:"-"`
	Step      string            `json:"step"`
	Percent   int               `json:"percent"` // -1: it cannot be said
	Text      string            `json:"text"`
	ETA       string            `json:"eta"`
	Waits     string            `json:"waitsFor,omitempty"`
	Attention string            `json:"attention,omitempty"`
	Paused    bool              `json:"paused"`
	By        string            `json:"requestedBy"`
	For       string            `json:"for"` // since it began
	Link      string            `json:"temporal,omitempty"`
}

// PhaseView is one phase on a move's way.
type PhaseView struct{ Name, State string }

// SwitchView is one attempt to switch.
type SwitchView struct {
	Attempt chunk.AttemptID    `json:"attempt"`
	Chunk   chunk.ID           `json:"chunk"`
	From    string             `json:"from"`
	To      string             `json:"to"`
	State   chunk.AttemptState `json:"state"`
	Good    bool               `json:"published"`
	Reason  string             `json:"reason,omitempty"`
	When    string             `json:"when"`
	Window  string             `json:"window"`
	Bars    []Bar              `json:"steps"`
}

// Bar is one step of a switch, drawn at its place.
type Bar struct {
	Step string  `json:"step"`
	MS   float64 `json:"ms"`
	Left float64 `json:"-"` // percent of the longest window shown
	Wide float64 `json:"-"`
	Hue  int     `json:"-"`
}

// WaitedView is how long switches have kept writes of a database waiting this month.
type WaitedView struct {
	Database string  `json:"database"`
	Seconds  float64 `json:"seconds"`
}

// LeaseView is one lease.
type LeaseView struct {
	Shard  string `json:"shard"`
	Holder string `json:"holder"`
	Mode   string `json:"mode"`
	State  string `json:"state"`
	Since  string `json:"since"`
	Ends   string `json:"ends"`
	Reason string `json:"reason"`
}

// StragglerView is one straggler.
type StragglerView struct {
	ID    int64             `json:"id"`
	Shard string            `json:"shard"`
	Place chunk.PlacementID `json:"placement"`
	Kind  string            `json:"kind"`
	Seen  string            `json:"seen"`
}

// RepairView is one remediation.
type RepairView struct {
	Shard   string `json:"shard"`
	State   string `json:"state"`
	Steps   int    `json:"steps"`
	Started string `json:"started"`
	Link    string `json:"temporal,omitempty"`
}

// fill makes the view of a snapshot.
func (v *Page) fill(s *Snapshot, waits map[chunk.ID]contract.Status, link func(string) string, now time.Time) {
	ago := func(t time.Time) string { return now.Sub(t).Round(time.Second).String() }
	if link == nil {
		link = func(string) string { return "" }
	}
	v.shards(s)
	for _, m := range s.Moves {
		w := MoveView{
			ID: m.ID, Chunk: m.Chunk.ID, From: m.Source.Shard, To: m.Target.Shard, Phase: m.Phase, Attention: m.Attention, Paused: m.Paused,
			By: m.RequestedBy, For: ago(m.CreatedAt), Percent: -1, ETA: "-", Link: link(m.WorkflowID),
		}
		if m.Phase.Final() {
			v.Past = append(v.Past, w)
			continue
		}
		w.Phases = phases(m.Phase)
		w.progress(m.Progress)
		st, ok := waits[m.Chunk.ID]
		switch {
		case ok:
			w.Step, w.Waits = st.Step, st.WaitingFor
			for _, f := range st.Failing {
				w.Waits = strings.TrimPrefix(w.Waits+"; "+f.String(), "; ")
			}
			w.Attention = cmp.Or(w.Attention, st.Attention)
		default:
			w.Waits = "its workflow does not answer; this is what the metadata holds"
		}
		v.Moves = append(v.Moves, w)
	}
	v.switches(s, ago)
	v.Windows = histogram(s.Windows)
	for _, w := range s.Figures.Waited {
		v.Waited = append(v.Waited, WaitedView{w.Database, w.Seconds})
	}
	for _, l := range s.Leases {
		state := "granted"
		if l.Waiting {
			state = "waits"
		}
		v.Leases = append(v.Leases, LeaseView{l.Shard, l.Holder, string(l.Mode), state, ago(l.Since), l.ExpiresAt.Sub(now).Round(time.Second).String(), l.Reason})
	}
	for _, g := range s.Stragglers {
		v.Stragglers = append(v.Stragglers, StragglerView{g.ID, g.Shard, g.Placement, g.Kind, ago(g.SeenAt)})
	}
	for _, r := range s.Runs {
		state := cmp.Or(r.Attention, r.Verdict, map[bool]string{true: "waits for the lease", false: "runs"}[r.Waiting])
		v.Repairs = append(v.Repairs, RepairView{r.Shard, state, r.Steps, ago(r.StartedAt), link(r.WorkflowID)})
	}
	for _, p := range s.Proxies {
		v.Proxies = append(v.Proxies, p.ID+" at "+p.Address)
	}
	if s.Stop != nil {
		v.Stopped = fmt.Sprintf("by %s, %s ago: %s", s.Stop.By, ago(s.Stop.At), s.Stop.Reason)
	}
}

// progress reads what the running step says of itself.
func (w *MoveView) progress(text json.RawMessage) {
	var p contract.Progress
	if json.Unmarshal(text, &p) != nil || p.At.IsZero() {
		return
	}
	if f := p.Fraction(); f >= 0 {
		w.Percent = int(100 * f)
	}
	if left, ok := p.Remaining(); ok {
		w.ETA = left.String()
	}
	if p.CatchUp > 0 {
		w.ETA = time.Duration(p.CatchUp).Round(time.Second).String()
	}
	w.Text = fmt.Sprintf("%s: %d documents, %.0f/s", p.Step, p.Documents, p.PerSecond)
	if p.Step == "replicate" {
		w.Text = fmt.Sprintf("%d changes, %.0f/s, %s, p99 %.0f ms", p.Documents, p.PerSecond, p.LagText(), p.LatencyP99MS)
	}
	if p.Detail != "" {
		w.Text += ", " + p.Detail
	}
}

// phases is the way of a move with what is behind it and what before.
func phases(now chunk.Phase) (out []PhaseView) {
	way := []chunk.Phase{chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating, chunk.Switching, chunk.BurnIn, chunk.Completing}
	at := slices.Index(way, now)
	if at < 0 {
		return []PhaseView{{string(now), "now"}}
	}
	for i, p := range way {
		out = append(out, PhaseView{string(p), map[int]string{-1: "done", 0: "now", 1: "later"}[cmp.Compare(i, at)]})
	}
	return out
}

// switches shows attempts with their steps, all at one scale.
func (v *Page) switches(s *Snapshot, ago func(time.Time) string) {
	longest := int64(1)
	for _, a := range s.Attempts {
		if n := len(a.Steps); n > 0 {
			longest = max(longest, a.Steps[n-1].AtUS)
		}
	}
	hues := map[string]int{}
	for _, a := range s.Attempts {
		w := SwitchView{
			Attempt: a.ID, Chunk: a.Chunk, From: a.Source.Shard, To: a.Target.Shard, State: a.State, Reason: a.Reason, When: ago(a.CreatedAt),
			Good: a.Token != 0, Window: "-",
		}
		before := int64(0)
		for _, m := range a.Steps {
			if _, ok := hues[m.Step]; !ok {
				hues[m.Step] = 47 * len(hues) % 360
			}
			w.Bars = append(w.Bars, Bar{
				Step: m.Step, MS: float64(m.AtUS-before) / 1000, Left: 100 * float64(before) / float64(longest), Wide: 100 * float64(m.AtUS-before) / float64(longest),
				Hue: hues[m.Step],
			})
			before = m.AtUS
		}
		if before > 0 {
			w.Window = fmt.Sprintf("%.1f ms", float64(before)/1000)
		}
		v.Switches = append(v.Switches, w)
	}
}

// Databases are the logical databases on the page, with their colours.
func (v Page) Databases() []ChunkView {
	seen := map[chunk.ID]ChunkView{}
	for _, s := range v.Shards {
		for _, c := range s.Chunks {
			name, _, _ := strings.Cut(string(c.ID), "/")
			seen[chunk.ID(name)] = ChunkView{ID: chunk.ID(name), Hue: c.Hue}
		}
	}
	return slices.SortedFunc(maps.Values(seen), func(a, b ChunkView) int { return cmp.Compare(a.ID, b.ID) })
}

// hue gives a database its colour.
func hue(database string) int {
	h := uint32(2166136261)
	for _, b := range []byte(database) {
		h = (h ^ uint32(b)) * 16777619
	}
	return int(h % 360)
}
