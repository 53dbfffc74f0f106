package placement_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"drover/chunk"
	. "drover/placement"
)

// someRules draws at most one rule for each thing that a rule can be about.
func someRules(t *rapid.T) Rules {
	var all Rules
	line := 0
	maybe := func(r Rule) {
		if !rapid.Bool().Draw(t, r.String()) {
			return
		}
		line++
		r.Line, r.Target = line, Target{Zone: rapid.SampledFrom([]string{"", "eu", "us"}).Draw(t, "zone")}
		all = append(all, r)
	}
	maybe(Rule{Level: Default})
	for _, db := range []string{"shop", "mail"} {
		maybe(Rule{Level: Database, Database: db})
		maybe(Rule{Level: Pin, Chunk: chunk.NewID(db, 1)})
		for _, k := range []chunk.Key{"\x10a", "\x10b", "\x10c"} {
			maybe(Rule{Level: Tenant, Database: db, Key: k, Text: string(k)})
		}
	}
	return rapid.Permutation(all).Draw(t, "order")
}

// TestPrecedence: whatever the order of the rules, pin goes over tenant, over
// database, over default; and what nothing names goes to the default.
func TestPrecedence(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		rules := someRules(t)
		require.NoError(t, rules.Check())
		db := rapid.SampledFrom([]string{"shop", "mail", "unknown"}).Draw(t, "db")
		c := chunk.Chunk{ID: chunk.NewID(db, rapid.IntRange(1, 2).Draw(t, "n")), Database: db, Range: chunk.Range{Hi: chunk.KeyMax}}
		k := rapid.SampledFrom([]chunk.Key{"\x10a", "\x10b", "\x10z"}).Draw(t, "key")
		d := rules.Explain(c, k)
		for _, r := range rules {
			about := r.Level == Default || r.Level == Pin && r.Chunk == c.ID || r.Level == Database && r.Database == db ||
				r.Level == Tenant && r.Database == db && r.Key == k
			require.False(t, about && r.Level > d.Rule.Level, "%s lost to %s", r, d.Rule)
			if about && r.Level < d.Rule.Level {
				require.Contains(t, d.Lost, r)
			}
		}
		if db == "unknown" {
			require.Equal(t, Default, d.Rule.Level)
		}
	})
}

// TestChunkAgreesWithItsKeys: where a chunk is said to belong, each of its keys does.
func TestChunkAgreesWithItsKeys(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		rules := someRules(t)
		bounds := []chunk.Key{chunk.KeyMin, "\x10a", chunk.Ranged.After("\x10a"), "\x10b", chunk.Ranged.After("\x10b"), "\x10z", chunk.KeyMax}
		lo := rapid.IntRange(0, len(bounds)-2).Draw(t, "lo")
		hi := rapid.IntRange(lo+1, len(bounds)-1).Draw(t, "hi")
		c := chunk.Chunk{ID: "shop/0001", Database: "shop", Range: chunk.Range{Lo: bounds[lo], Hi: bounds[hi]}}
		d, err := rules.Chunk(c, chunk.Ranged)
		if err != nil {
			var conflict *ConflictError
			require.ErrorAs(t, err, &conflict)
			require.NotEqual(t, conflict.A.Target, conflict.B.Target)
			return
		}
		for _, k := range []chunk.Key{"\x10a", "\x10b", "\x10c", "\x10d"} {
			if c.Range.Contains(k) {
				require.Equal(t, d.Rule.Target, rules.Explain(c, k).Rule.Target, "key %x", string(k))
			}
		}
	})
}

func TestTwoRulesAboutOneThingAreRefused(t *testing.T) {
	t.Parallel()

	for _, r := range []Rule{
		{Level: Default},
		{Level: Database, Database: "shop"},
		{Level: Tenant, Database: "shop", Key: "\x10a", Text: `"a"`},
		{Level: Pin, Chunk: "shop/0001"},
	} {
		first, second := r, r
		first.Line, second.Line = 3, 9
		err := Rules{first, second}.Check()
		require.ErrorContains(t, err, "line 9")
		require.ErrorContains(t, err, fmt.Sprintf("line %d", 3))
	}
}
