package contract

import (
	"fmt"
	"strings"
	"time"
)

// Check is one condition of the gate: what was measured, against what, and who
// set that limit. Measured and Bound are numbers in Unit, for programs; Value
// and Limit say the same to people.
type Check struct {
	Number      int     `json:"number"` // as in the design
	Name        string  `json:"name"`
	OK          bool    `json:"ok"`
	Skipped     string  `json:"skipped,omitempty"` // why it does not apply here; it is OK then
	Error       string  `json:"error,omitempty"`   // why it could not be measured; it is not OK then
	Waived      string  `json:"waived,omitempty"`  // by whom, until when and why; it is OK then, whatever was measured
	Value       string  `json:"value"`
	Measured    float64 `json:"measured"`
	Limit       string  `json:"limit"`
	Bound       float64 `json:"bound"`
	Unit        string  `json:"unit"`                  // "ms" or "count"
	LimitSource string  `json:"limitSource,omitempty"` // "default", "flag", a variable, a file, "policy", or "protocol" where nobody may change it
	Source      string  `json:"source"`                // where the value was read
	Hint        string  `json:"hint,omitempty"`        // what would make it pass
}

// Limit is one setting that the gate or the switch after it goes by.
type Limit struct {
	Name   string `json:"name"` // as its flag
	Value  string `json:"value"`
	Source string `json:"source"`
}

// OpenWork is what applications have open on the placement that is to be fenced:
// a fence aborts the transactions, and ends the cursors that it cannot go on with.
type OpenWork struct {
	Way          string     `json:"way"` // "listed" by the server, or "proxies" by their word
	Transactions int        `json:"transactions"`
	Cursors      int        `json:"cursors"`
	Oldest       Duration   `json:"oldest"`
	Items        []OpenItem `json:"items,omitempty"` // the oldest few
}

// OpenItem is one transaction or cursor.
type OpenItem struct {
	Kind  string   `json:"kind"` // "transaction" or "cursor"
	Age   Duration `json:"age"`
	Where string   `json:"where"` // host and connection, or the proxy
}

// GateReport is the go or no-go before a fence.
type GateReport struct {
	Go     bool      `json:"go"`
	At     time.Time `json:"at,omitzero"`
	Checks []Check   `json:"checks"`
	Limits []Limit   `json:"limits,omitempty"`
	Open   *OpenWork `json:"open,omitempty"`
	Before *Traffic  `json:"before,omitempty"` // how the source served within the last minute: what the switch is compared with
}

// Refusals says which checks do not pass and what would make them.
func (r GateReport) Refusals() string {
	var parts []string
	for _, c := range r.Checks {
		if !c.OK {
			parts = append(parts, fmt.Sprintf("(%d) %s is %s, limit %s (%s): %s", c.Number, c.Name, c.Value, c.Limit, c.LimitSource, c.Hint))
		}
	}
	return strings.Join(parts, "; ")
}

// GateInput asks the gate.
type GateInput struct {
	DirectionInput
	Patience    Duration `json:"patience,omitempty"`    // measure again for so long until it says go; 0: once
	WaitForOpen Duration `json:"waitForOpen,omitempty"` // refuse while something open on the source is older; 0 only shows it
	ReadOnly    bool     `json:"readOnly,omitempty"`    // write no marker: the lag is what the lanes last said
}

// SwitchStep is one step that a switch would take.
type SwitchStep struct {
	Step   string   `json:"step"`
	On     string   `json:"on"`
	Does   string   `json:"does"`
	Values []string `json:"values,omitempty"`
}

// SwitchPlan is a switch that is not made: the gate's report and every step with
// its values.
type SwitchPlan struct {
	Gate  GateReport   `json:"gate"`
	Steps []SwitchStep `json:"steps"`
}

// The read-only questions about a switch.
var (
	CheckGate  = Activity[GateInput, GateReport]{"CheckGate"}
	PlanSwitch = Activity[GateInput, SwitchPlan]{"PlanSwitch"}
)

// PlanSwitchWorkflow asks the workers, who know their own limits, what a switch
// would meet and do. It changes nothing.
const PlanSwitchWorkflow = "PlanSwitch"
