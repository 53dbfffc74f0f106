package gate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"drover/contract"
)

// Caller is what a proxy has learned about one user's application: how it behaves
// when it is refused. Zero times were not seen.
type Caller struct {
	User, App  string
	Shortest   time.Duration // deadline of its own
	Patience   time.Duration // longest time from a refusal to its last try
	GaveUp     int64         // writes that were refused and not seen again
	Writes     int64
	Unrepeated int64 // of those: no driver repeats them
}

// name says whose it is.
func (c Caller) name() string {
	return strings.Trim(c.User+"/"+c.App, "/")
}

// envelope is for how long the caller bears a refusal, as far as was seen.
func (c Caller) envelope() time.Duration {
	e := c.Shortest
	if c.GaveUp > 0 && c.Patience > 0 && (e == 0 || c.Patience < e) {
		e = c.Patience
	}
	return e
}

// merged puts together what several proxies know of one caller.
func merged(all []Caller) (out []Caller) {
	for _, c := range all {
		i := slices.IndexFunc(out, func(o Caller) bool { return o.User == c.User && o.App == c.App })
		if i < 0 {
			out = append(out, c)
			continue
		}
		o := &out[i]
		o.Writes, o.Unrepeated, o.GaveUp = o.Writes+c.Writes, o.Unrepeated+c.Unrepeated, o.GaveUp+c.GaveUp
		if o.Shortest == 0 || c.Shortest != 0 && c.Shortest < o.Shortest {
			o.Shortest = c.Shortest
		}
		o.Patience = max(o.Patience, c.Patience)
	}
	return out
}

// Callers is check (9): for how long the application that bears least bears a switch,
// and whose writes no driver repeats. It is shown, beside the fence's deadline, and
// never refuses: proxies hold requests, and know the applications of all databases.
func Callers(all []Caller, deadline Bound, err error) contract.Check {
	c := contract.Check{
		Number: 9, Name: "callers", Unit: "ms", Bound: milliseconds(deadline.Value), LimitSource: deadline.Source, OK: true,
		Limit: "shown only; a fence lasts at most " + deadline.Value.String(), Source: "what the proxies have learned (drover db clients)",
		Hint: "give these applications more time, or retryable writes",
	}
	if err != nil {
		c = fail(c, err)
		c.OK = true
		return c
	}
	all = merged(all)
	bearing := slices.DeleteFunc(slices.Clone(all), func(x Caller) bool { return x.envelope() == 0 })
	parts := []string{"no deadline was seen"}
	if len(bearing) > 0 {
		least := slices.MinFunc(bearing, func(a, b Caller) int { return cmp.Compare(a.envelope(), b.envelope()) })
		c.Measured = milliseconds(least.envelope())
		parts[0] = fmt.Sprintf("shortest %s (%s)", round(least.envelope()), least.name())
	}
	var plain []string
	for _, x := range all {
		if x.Unrepeated > 0 {
			plain = append(plain, fmt.Sprintf("%s %.0f%%", x.name(), 100*float64(x.Unrepeated)/float64(max(1, x.Writes))))
		}
	}
	if len(plain) > 0 {
		shown := plain[:min(3, len(plain))]
		parts = append(parts, fmt.Sprintf("writes that no driver repeats: %s", strings.Join(shown, ", ")))
		if more := len(plain) - len(shown); more > 0 {
			parts = append(parts, fmt.Sprintf("and of %d more", more))
		}
	}
	c.Value = strings.Join(parts, "; ")
	return c
}
