// Package placement says where data should live: rules by pin, tenant and logical
// database, and a default for everything that no rule names. Pure.
package placement

import (
	"cmp"
	"fmt"
	"slices"

	"drover/chunk"
)

// Level is how specific a rule is.
type Level int

// The levels; a higher one wins.
const (
	Default  Level = iota // everything
	Database              // one logical database
	Tenant                // one value of a database's shard key
	Pin                   // one chunk, until the pin is taken away
)

// String implements [fmt.Stringer].
func (l Level) String() string { return [...]string{"default", "database", "tenant", "pin"}[l] }

// Target is where something should live: on one shard, anywhere in a zone, or
// anywhere in a region. The zero value is every shard that is in no zone and no region.
type Target struct {
	Shard  string `json:"shard,omitempty"`
	Zone   string `json:"zone,omitempty"`
	Region string `json:"region,omitempty"`
}

// Place is where a shard stands. A zone lies in one region, or in none.
type Place struct {
	Zone   string `json:"zone,omitempty"`
	Region string `json:"region,omitempty"`
}

// String implements [fmt.Stringer].
func (p Place) String() string {
	switch {
	case p == Place{}:
		return "outside of all zones"
	case p.Zone == "":
		return "in region " + p.Region
	case p.Region == "":
		return "in zone " + p.Zone
	default:
		return "in zone " + p.Zone + " of region " + p.Region
	}
}

// String implements [fmt.Stringer].
func (t Target) String() string {
	switch {
	case t.Shard != "":
		return "shard " + t.Shard
	case t.Zone != "":
		return "zone " + t.Zone
	case t.Region != "":
		return "region " + t.Region
	default:
		return "any shard outside of all zones"
	}
}

// Rule is one rule of a fleet.
type Rule struct {
	Level    Level
	Database string    // but for Default
	Chunk    chunk.ID  // of a Pin
	Key      chunk.Key // of a Tenant: the point of the value
	Text     string    // of a Tenant: the value as it was written
	Target   Target
	Line     int // of the file; 0: built in
}

// String names the rule.
func (r Rule) String() string {
	what := map[Level]string{
		Default: "default", Database: "database " + r.Database, Tenant: "tenant " + r.Text + " of " + r.Database, Pin: "pin of " + string(r.Chunk),
	}[r.Level]
	if r.Line == 0 {
		return what + " (built in)"
	}
	return fmt.Sprintf("%s (line %d)", what, r.Line)
}

// Rules are all rules of a fleet. Without any, everything goes to the default.
type Rules []Rule

// Decision is which rule says where something lives, and which ones it overrode.
type Decision struct {
	Rule Rule
	Lost []Rule // the most specific one first
}

// Check refuses rules of which two say the same about something.
func (r Rules) Check() error {
	type what struct {
		level    Level
		database string
		chunk    chunk.ID
		key      chunk.Key
	}
	seen := map[what]Rule{}
	for _, x := range r {
		w := what{level: x.Level}
		switch x.Level {
		case Pin:
			w.chunk = x.Chunk
		case Tenant:
			w.database, w.key = x.Database, x.Key
		case Database:
			w.database = x.Database
		case Default:
		}
		if first, ok := seen[w]; ok {
			return fmt.Errorf("line %d: %s is there already, on line %d", x.Line, x, first.Line)
		}
		seen[w] = x
	}
	return nil
}

// decide chooses among the rules that apply. Pin goes over tenant, over database,
// over default.
func (r Rules) decide(applies func(Rule) bool) Decision {
	all := slices.DeleteFunc(slices.Clone(r), func(x Rule) bool { return !applies(x) })
	if !slices.ContainsFunc(all, func(x Rule) bool { return x.Level == Default }) {
		all = append(all, Rule{Level: Default})
	}
	slices.SortStableFunc(all, func(a, b Rule) int { return cmp.Compare(b.Level, a.Level) })
	return Decision{Rule: all[0], Lost: all[1:]}
}

// Explain says which rule won for one key of a chunk.
func (r Rules) Explain(c chunk.Chunk, k chunk.Key) Decision {
	return r.decide(func(x Rule) bool {
		switch x.Level {
		case Pin:
			return x.Chunk == c.ID
		case Tenant:
			return x.Database == c.Database && x.Key == k
		case Database:
			return x.Database == c.Database
		case Default:
			return true
		default:
			return false
		}
	})
}

// ConflictError is a chunk that the rules want in two places.
type ConflictError struct {
	Chunk chunk.ID
	A, B  Rule
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("chunk %s holds keys of %s, which wants %s, and of %s, which wants %s", e.Chunk, e.A, e.A.Target, e.B, e.B.Target)
}

// Chunk says where a whole chunk should live. A tenant's rule concerns a chunk of
// its own: alone is the range of its one key. In a chunk that holds more, a
// tenant's rule that wants another place than the rest is a [ConflictError]: the
// tenant has to be isolated first.
func (r Rules) Chunk(c chunk.Chunk, space chunk.KeySpace) (Decision, error) {
	rest := r.Explain(c, "\xff\xff") // of a key that nobody has: what all others get
	if rest.Rule.Level == Pin {
		return rest, nil
	}
	for _, x := range r {
		if x.Level != Tenant || x.Database != c.Database || !c.Range.Contains(x.Key) {
			continue
		}
		if c.Range.Lo == x.Key && c.Range.Hi == space.After(x.Key) {
			return r.Explain(c, x.Key), nil
		}
		if x.Target != rest.Rule.Target {
			return rest, &ConflictError{Chunk: c.ID, A: x, B: rest.Rule}
		}
	}
	return rest, nil
}

// Allows reports whether a shard at a place is where a target wants something.
func (t Target) Allows(shard string, at Place) bool {
	switch {
	case t.Shard != "":
		return t.Shard == shard
	case t.Zone != "":
		return t.Zone == at.Zone
	case t.Region != "":
		return t.Region == at.Region
	default:
		return at == Place{}
	}
}
