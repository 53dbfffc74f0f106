package contract

import (
	"fmt"
	"time"
)

// FailingStep is what failed and is tried again by itself, for as long as it takes.
type FailingStep struct {
	Step  string    `json:"step"`  // the activity's type
	Tries int       `json:"tries"` // that failed
	Code  string    `json:"code,omitempty"`
	Error string    `json:"error"` // of the last one
	Hint  string    `json:"hint,omitempty"`
	Next  time.Time `json:"next,omitzero"` // the next try; zero while one runs
}

// String says it in a sentence.
func (f FailingStep) String() string {
	out := fmt.Sprintf("%s failed %d times and is tried again: %s", f.Step, f.Tries, f.Error)
	if f.Tries == 1 {
		out = fmt.Sprintf("%s failed once and is tried again: %s", f.Step, f.Error)
	}
	if f.Hint != "" {
		out += "; " + f.Hint
	}
	return out
}
