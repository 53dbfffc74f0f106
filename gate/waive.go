package gate

import (
	"slices"

	"drover/contract"
)

// waivable are the checks whose limit somebody set, by a setting or by the policy of
// a move: past it a switch may take longer or go back, and nothing is lost. Limits of
// the protocol are nobody's to waive.
var waivable = []string{lagCheck, latencyCheck, electionCheck, secondariesCheck, openCheck} //nolint:gochecknoglobals // a constant table

// Waivable names the checks that a person may waive.
func Waivable() []string { return slices.Clone(waivable) }

// Waive lets pass what people have waived, by name of the check, each with why. What
// could not be measured does not pass all the same.
func Waive(checks []contract.Check, waivers map[string]string) []contract.Check {
	for i, c := range checks {
		if why := waivers[c.Name]; why != "" && !c.OK && c.Error == "" && slices.Contains(waivable, c.Name) {
			checks[i].OK, checks[i].Waived = true, why
		}
	}
	return checks
}
