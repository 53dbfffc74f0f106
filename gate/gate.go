// Package gate judges whether a switch may begin: pure functions from what was
// measured to checks that say value, limit, whose limit it is, and what would
// make them pass. Who measures is package activities.
package gate

import (
	"time"

	"drover/contract"
)

// Bound is a limit with where it comes from.
type Bound struct {
	Name   string // of its setting
	Value  time.Duration
	Source string // "default", "flag", a variable or a file
}

// Limits are the bounds of the gate, and the fence's deadline, which is printed
// with them.
type Limits struct {
	Lag           Bound // (1)
	Latency       Bound // (2)
	ElectionQuiet Bound // (4)
	SecondaryLag  Bound // (4)
	FenceDeadline Bound
}

// List gives all of them for a report.
func (l Limits) List() []contract.Limit {
	out := make([]contract.Limit, 0, 5)
	for _, b := range []Bound{l.Lag, l.Latency, l.ElectionQuiet, l.SecondaryLag, l.FenceDeadline} {
		out = append(out, contract.Limit{Name: b.Name, Value: b.Value.String(), Source: b.Source})
	}
	return out
}

// Report judges all checks together.
func Report(at time.Time, l Limits, open *contract.OpenWork, checks ...contract.Check) contract.GateReport {
	r := contract.GateReport{Go: true, At: at, Checks: checks, Limits: l.List(), Open: open}
	for _, c := range checks {
		r.Go = r.Go && c.OK
	}
	return r
}

// Names of checks that may be waived.
const (
	lagCheck         = "lag"
	latencyCheck     = "latency"
	electionCheck    = "election"
	secondariesCheck = "secondaries"
	openCheck        = "open"
)

// Sources of limits that no setting changes.
const (
	protocol = "protocol"
	policy   = "policy"
)

// fail is a check that could not be measured: it does not pass.
func fail(c contract.Check, err error) contract.Check {
	c.OK, c.Error, c.Value = false, err.Error(), "unknown: "+err.Error()
	return c
}

// skip is a check that has nothing to look at here.
func skip(c contract.Check, why string) contract.Check {
	c.OK, c.Skipped, c.Value = true, why, "not applicable: "+why
	return c
}

// within is a check of a duration against a bound.
func within(c contract.Check, d time.Duration, b Bound) contract.Check {
	c.Measured, c.Value, c.OK = milliseconds(d), round(d).String(), d <= b.Value
	return c
}

// bounded begins a check with a bound in it.
func bounded(number int, name string, b Bound) contract.Check {
	return contract.Check{
		Number: number, Name: name, Unit: "ms", Bound: milliseconds(b.Value), Limit: "at most " + b.Value.String(), LimitSource: b.Source,
	}
}

// none begins a check that counts what there must be none of.
func none(number int, name, limit string) contract.Check {
	return contract.Check{Number: number, Name: name, Unit: "count", Limit: limit, LimitSource: protocol}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// round keeps a duration readable.
func round(d time.Duration) time.Duration {
	if d >= 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond / 10)
}
