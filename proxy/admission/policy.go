// Package admission decides whether a request may be worked on now: quotas of
// its logical database, rules of that database's policy, and the room that its
// shard has. It knows nothing of the wire.
package admission

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Priority is the class of a database: what comes first when there is not room
// for all.
type Priority string

// The classes, the first served first.
const (
	Critical Priority = "critical"
	Normal   Priority = "normal"
	Batch    Priority = "batch"
)

// priorities orders the classes.
var priorities = []Priority{Critical, Normal, Batch}

// rank is the place of a class, 0 first.
func (p Priority) rank() int {
	if p == "" {
		p = Normal
	}
	return max(0, slices.Index(priorities, p))
}

// Scatter is what a policy says about reads and writes that concern more than
// one chunk.
type Scatter string

// The rules for scatter.
const (
	ScatterAny     Scatter = "any"
	ScatterBounded Scatter = "bounded" // only a find with a limit
	ScatterNone    Scatter = "none"
)

// Policy is what a logical database may ask of a proxy. Quotas hold for each
// proxy. The zero value allows everything.
type Policy struct {
	OpsPerSecond     float64  `json:"ops_per_second,omitempty"`   // 0: no quota
	OpsBurst         int      `json:"ops_burst,omitempty"`        // 0: one second's
	BytesPerSecond   float64  `json:"bytes_per_second,omitempty"` // of requests and replies; 0: no quota
	BytesBurst       int      `json:"bytes_burst,omitempty"`      // 0: one second's
	Priority         Priority `json:"priority,omitempty"`         // empty: normal
	Scatter          Scatter  `json:"scatter,omitempty"`          // empty: any
	NeedIndex        bool     `json:"need_index,omitempty"`       // a filter must name the first field of an index
	DefaultMaxTimeMS int64    `json:"default_max_time_ms,omitempty"`
}

// ParsePolicy reads a policy and says all that is wrong with it.
func ParsePolicy(text []byte) (Policy, error) {
	var p Policy
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, fmt.Errorf("read policy: %w", err)
	}
	return p, p.Validate()
}

// Raised gives the policy with the quotas of by where those allow more. A database
// without a quota has none then either.
func (p Policy) Raised(by Policy) Policy {
	if p.OpsPerSecond > 0 {
		p.OpsPerSecond = max(p.OpsPerSecond, by.OpsPerSecond)
	}
	if p.BytesPerSecond > 0 {
		p.BytesPerSecond = max(p.BytesPerSecond, by.BytesPerSecond)
	}
	return p
}

// Validate returns all problems at once.
func (p *Policy) Validate() error {
	var problems []error
	if p.OpsPerSecond < 0 || p.OpsBurst < 0 || p.BytesPerSecond < 0 || p.BytesBurst < 0 {
		problems = append(problems, errors.New("quotas must not be negative"))
	}
	if p.Priority != "" && !slices.Contains(priorities, p.Priority) {
		problems = append(problems, fmt.Errorf("priority %q is none of %v", p.Priority, priorities))
	}
	if all := []Scatter{ScatterAny, ScatterBounded, ScatterNone}; p.Scatter != "" && !slices.Contains(all, p.Scatter) {
		problems = append(problems, fmt.Errorf("scatter %q is none of %v", p.Scatter, all))
	}
	if p.DefaultMaxTimeMS < 0 {
		problems = append(problems, errors.New("default_max_time_ms must not be negative"))
	}
	return errors.Join(problems...)
}
