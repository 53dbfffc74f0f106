package contract

import (
	"fmt"
	"time"

	"drover/chunk"
)

// Progress is how far the running work of a move has come. It is what activities
// heartbeat, and what the metadata keeps for drover migrate watch.
type Progress struct {
	Step           string  `json:"step"` // import, replicate, validate
	Detail         string  `json:"detail,omitempty"`
	Sort           string  `json:"sort,omitempty"` // of an import: the order in which it loads, and why
	Documents      int64   `json:"documents"`
	DocumentsTotal int64   `json:"documentsTotal,omitempty"`
	Bytes          int64   `json:"bytes,omitempty"`
	BytesTotal     int64   `json:"bytesTotal,omitempty"`
	PerSecond      float64 `json:"perSecond,omitempty"` // documents, or events, since the last report
	BytesPerSecond float64 `json:"bytesPerSecond,omitempty"`
	LagMS          int64   `json:"lagMS,omitempty"`
	LatencyP99MS   float64 `json:"latencyP99MS,omitempty"` // capture to apply, over the last minute

	// Of replication: how the lanes stand to the end of the log.
	Pace           string   `json:"pace,omitempty"` // "in sync", "catching up", "not converging"
	Backlog        int64    `json:"backlog,omitempty"`
	ApplyPerSecond float64  `json:"applyPerSecond,omitempty"` // records of the log
	WritePerSecond float64  `json:"writePerSecond,omitempty"`
	CatchUp        Duration `json:"catchUp,omitempty"` // until in sync, while it is catching up
	Limit          string   `json:"limit,omitempty"`   // what holds the lanes, or the import

	Since time.Time `json:"since"`
	At    time.Time `json:"at"`
}

// LanesWord is what the lanes of a direction say about themselves each second,
// for the gate.
type LanesWord struct {
	Direction    chunk.AttemptID `json:"direction"`
	LagMS        float64         `json:"lagMS"`
	LatencyP99MS float64         `json:"latencyP99MS"` // over the last minute, since they first caught up
	LatencyCount int64           `json:"latencyCount"`

	NotConverging string `json:"notConverging,omitempty"` // both rates, what limits and the choices, while more is written than applied
}

// longestLag is what no lane is behind: one that has passed nothing yet says more.
const longestLag = 100 * 365 * 24 * time.Hour

// Lag is how far the lanes are behind; ok is false while one of them has passed nothing.
func (w LanesWord) Lag() (lag time.Duration, ok bool) {
	if w.LagMS >= float64(longestLag.Milliseconds()) {
		return 0, false
	}
	return time.Duration(w.LagMS * float64(time.Millisecond)), true
}

// LagText is the lag for people.
func (p Progress) LagText() string {
	if p.LagMS >= longestLag.Milliseconds() {
		return "lag not known yet"
	}
	return fmt.Sprintf("lag %d ms", p.LagMS)
}

// Fraction is how much is done, 0 to 1; negative when it cannot be said.
func (p Progress) Fraction() float64 {
	switch {
	case p.BytesTotal > 0:
		return min(1, float64(p.Bytes)/float64(p.BytesTotal))
	case p.DocumentsTotal > 0:
		return min(1, float64(p.Documents)/float64(p.DocumentsTotal))
	default:
		return -1
	}
}

// Remaining estimates the time that is left; ok is false when it cannot be said.
func (p Progress) Remaining() (left time.Duration, ok bool) {
	f := p.Fraction()
	if f <= 0 {
		return 0, false
	}
	spent := p.At.Sub(p.Since)
	return time.Duration(float64(spent) * (1 - f) / f).Round(time.Second), true
}
