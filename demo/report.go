package demo

import (
	"fmt"
	"io"
	"net/url"
	"text/tabwriter"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/demo/workload"
)

// Report is demo-report.json.
type Report struct {
	Started  time.Time         `json:"started"`
	Seconds  float64           `json:"seconds"`
	Shards   map[string]string `json:"shards"` // engine of each
	Kafka    string            `json:"kafka"`
	Deaf     bool              `json:"deaf_proxy"`
	Sabotage string            `json:"sabotage,omitempty"`
	UI       string            `json:"ui"`

	Chunk    chunk.ID `json:"chunk"`
	From     string   `json:"from"`
	Rows     int64    `json:"rows_loaded"`
	Steps    []Step   `json:"steps"`
	Switches []Switch `json:"switches"`

	Acknowledged int64   `json:"operations_acknowledged"`
	Rate         float64 `json:"operations_per_second"`
	ClientErrors int64   `json:"client_errors"` // seen by the application after the driver's retries
	FirstError   string  `json:"first_error,omitempty"`
	Stragglers   int64   `json:"stragglers"`
	workload.Verdict
}

// Step is one phase of the move.
type Step struct {
	Name      string  `json:"name"`
	Seconds   float64 `json:"seconds"`
	Documents int64   `json:"documents,omitempty"`
	Bytes     int64   `json:"bytes,omitempty"`
}

func (s Step) amount() string {
	if s.Documents == 0 {
		return ""
	}
	return fmt.Sprintf("%d documents, %.1f MB", s.Documents, float64(s.Bytes)/1e6)
}

// Switch is one attempt as clients and the coordinator saw it.
type Switch struct {
	Attempt      chunk.AttemptID         `json:"attempt"`
	Published    bool                    `json:"published"`
	Reason       string                  `json:"reason,omitempty"`
	WindowMS     float64                 `json:"window_ms"`      // from fencing to open
	WritePauseMS float64                 `json:"write_pause_ms"` // longest gap between acknowledged writes on the chunk
	ReadPauseMS  float64                 `json:"read_pause_ms"`
	Acknowledged int                     `json:"acknowledged"` // operations on the chunk in the second around the fence
	Timeline     []contract.TimelineMark `json:"timeline"`
}

// around is how far before the fence and behind the opening pauses are looked for.
const around = 400 * time.Millisecond

func (d *demo) switchReport(s contract.SwitchResult) Switch {
	p := d.work.Pauses(s.FencedAt.Add(-around), s.OpenedAt.Add(around))
	return Switch{
		Attempt: s.Attempt, Published: s.Published, Reason: s.Reason, WindowMS: s.WindowMS,
		WritePauseMS: ms(p.Writes), ReadPauseMS: ms(p.Reads), Acknowledged: p.Acked, Timeline: s.Timeline,
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (r *Report) broken() bool {
	return r.ClientErrors+r.Lost+r.Duplicated+r.StaleReads+r.Stragglers > 0
}

func escape(id string) string { return url.PathEscape(id) }

// print shows the report to people.
func (r *Report) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) }
	line("\nstep\tseconds\tdocuments\tMB\t")
	for _, s := range r.Steps {
		line("%s\t%.1f\t%d\t%.1f\t", s.Name, s.Seconds, s.Documents, float64(s.Bytes)/1e6)
	}
	line("\nattempt\tpublished\twindow ms\twrite pause ms\tread pause ms\tacknowledged around it\t")
	for _, s := range r.Switches {
		line("%d\t%t\t%.1f\t%.1f\t%.1f\t%d\t", s.Attempt, s.Published, s.WindowMS, s.WritePauseMS, s.ReadPauseMS, s.Acknowledged)
	}
	line("\noperations acknowledged\t%d\t(%.0f per second)\t", r.Acknowledged, r.Rate)
	line("documents compared\t%d\t\t", r.Documents)
	for _, x := range []struct {
		name string
		n    int64
	}{{"client errors", r.ClientErrors}, {"lost", r.Lost}, {"duplicated", r.Duplicated}, {"stale reads", r.StaleReads}, {"stragglers", r.Stragglers}} {
		line("%s\t%d\t\t", x.name, x.n)
	}
	_ = t.Flush()
	if r.FirstError != "" {
		_, _ = fmt.Fprintln(w, "first error:", r.FirstError)
	}
	for _, e := range r.Examples {
		_, _ = fmt.Fprintln(w, "found:", e)
	}
	_, _ = fmt.Fprintln(w, "the move in Temporal's UI:", r.UI)
}
