// Package console serves a page that shows the fleet to people. It only reads, and
// works with a part of the stack down.
package console

import (
	"context"
	_ "embed"
	"encoding/json"
	"html/template"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
)

const (
	// readTimeout bounds the reading of the metadata.
	readTimeout = 3 * time.Second
	// askTimeout bounds each question to a part of the stack, or to a move's workflow.
	askTimeout = 1500 * time.Millisecond
	// freshFor is how long what was read is shown to others who ask.
	freshFor = time.Second
	// maxAsked bounds the workflows that are asked why they wait.
	maxAsked = 20
)

// Snapshot is what the metadata holds, as it was read at one time.
type Snapshot struct {
	At         time.Time
	Shards     []chunk.Shard
	Routes     []chunk.Route
	Moves      []metadata.Migration // the unfinished ones, and the newest
	Attempts   []Attempt            // of these, newest first
	Figures    metadata.Figures
	Leases     []metadata.LeaseRow
	Stragglers []metadata.Straggler
	Proxies    []metadata.Proxy
	Runs       []metadata.Remediation // that go on, or began within a day
	Stop       *metadata.Stop
	Loads      map[chunk.PlacementID]float64 // requests a second
	Windows    []metadata.Window             // of the switches within [WindowsOf]
}

// WindowsOf is how long ago switches may have been that the histogram shows.
const WindowsOf = 30 * 24 * time.Hour

// Attempt is one switch with its steps.
type Attempt struct {
	metadata.Attempt
	Steps []contract.TimelineMark
}

// Part is a part of the stack that is asked whether it answers.
type Part struct {
	Name    string
	Address string
	Without string // what does not work while it is down
	Check   func(context.Context) error
}

// Console answers requests for the page.
type Console struct {
	Fleet    string                                                   // its name
	Temporal func(workflowID string) string                           // address of a workflow in Temporal's UI; nil: there is none
	Read     func(context.Context) (Snapshot, error)                  // the metadata
	Ask      func(context.Context, chunk.ID) (contract.Status, error) // a move's workflow; nil: nobody is asked
	Parts    []Part
	Alarms   func(context.Context) ([]Alarm, error) // those that Alertmanager holds; nil: there is none
	Log      *slog.Logger
	Now      func() time.Time

	mu   sync.Mutex
	last *Page // what was shown last
	kept *Snapshot
}

// pageText is the page.
//
//go:embed page.html
var pageText string

// page is the parsed page.
var page = template.Must(template.New("page").Parse(pageText)) //nolint:gochecknoglobals // parsed once

// Handler answers GET of the page, of the same as JSON, and of its health.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'")
		if err := page.Execute(w, c.page(r.Context())); err != nil {
			c.Log.WarnContext(r.Context(), "The page was not written", slog.Any("error", err))
		}
	})
	mux.HandleFunc("GET /fleet.json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		if err := enc.Encode(c.page(r.Context())); err != nil {
			c.Log.WarnContext(r.Context(), "The fleet was not written", slog.Any("error", err))
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	return mux
}

// page reads everything, or gives what was read a moment ago. Who asks at the same
// time waits for one reading.
func (c *Console) page(ctx context.Context) Page {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Now()
	if c.last != nil && now.Sub(c.last.At) < freshFor {
		return *c.last
	}
	var snapshot Snapshot
	var readErr error
	parts := make([]PartView, len(c.Parts))
	var g errgroup.Group
	g.Go(func() error {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		snapshot, readErr = c.Read(ctx)
		return nil
	})
	for i, p := range c.Parts {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			parts[i] = partView(p.Name, p.Address, p.Without, p.Check(ctx))
			return nil
		})
	}
	var alarms []Alarm
	var alarmErr error
	if c.Alarms != nil {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			alarms, alarmErr = c.Alarms(ctx)
			return nil
		})
	}
	_ = g.Wait()
	v := Page{At: now, Fleet: c.Fleet}
	if readErr == nil {
		c.kept = &snapshot
	} else {
		v.Problem = readErr.Error()
	}
	meta := partView("metadata (Postgres)", c.Fleet, "no move begins, switches or ends; applications are served on", readErr)
	v.Parts = append([]PartView{meta}, parts...)
	if c.kept != nil {
		v.Known, v.Age = true, now.Sub(c.kept.At).Round(time.Second)
		v.fill(c.kept, c.waits(ctx, c.kept), c.Temporal, now)
	}
	v.alarms(c, alarms, alarmErr)
	if c.Alarms != nil {
		v.Parts = append(v.Parts, partView("Alertmanager", "", "the alarms shown are those that the metadata shows by itself", alarmErr))
	}
	c.last = &v
	return v
}

// partView shows a part, which is down if there is an error.
func partView(name, address, without string, err error) PartView {
	p := PartView{Name: name, Address: address, Without: without, Up: err == nil}
	if err != nil {
		p.Problem = err.Error()
	}
	return p
}

// waits asks the workflows of unfinished moves why they wait. One that does not
// answer is left out.
func (c *Console) waits(ctx context.Context, s *Snapshot) map[chunk.ID]contract.Status {
	out := map[chunk.ID]contract.Status{}
	if c.Ask == nil {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(5)
	asked := 0
	for _, m := range s.Moves {
		if m.Phase.Final() || asked == maxAsked {
			continue
		}
		asked++
		g.Go(func() error {
			if st, err := c.Ask(ctx, m.Chunk.ID); err == nil {
				mu.Lock()
				defer mu.Unlock()
				out[m.Chunk.ID] = st
			}
			return nil
		})
	}
	_ = g.Wait()
	return out
}
