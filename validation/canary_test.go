package validation_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
	"drover/validation"
)

// sung reads canaries from a world; hidden says what a proxy does not find.
type sung struct {
	w      *world
	hidden func(doc bson.Raw) bool
	before func() // the reads
}

var _ validation.Canaries = (*sung)(nil)

// Sample implements [validation.Canaries].
func (s *sung) Sample(_ context.Context, collection string, n int) (source, target []bson.Raw, err error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	some := func(st store) (out []bson.Raw) {
		for _, doc := range st[collection] {
			if out = append(out, doc); len(out) == n {
				break
			}
		}
		return out
	}
	return some(s.w.source), some(s.w.target), nil
}

// Through implements [validation.Canaries].
func (s *sung) Through(_ context.Context, collection string, doc bson.Raw) (proxied, target bson.Raw, err error) {
	if s.before != nil {
		s.before()
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if !s.hidden(doc) {
		proxied = s.w.source[collection][keyOf(doc)]
	}
	return proxied, s.w.target[collection][keyOf(doc)], nil
}

// TestCanaries: what applications would read before and after the switch is the same,
// what changes meanwhile aside. A proxy that places a document elsewhere shows, too.
func TestCanaries(t *testing.T) {
	t.Parallel()
	none := func(bson.Raw) bool { return false }
	for name, tc := range map[string]struct {
		hidden func(bson.Raw) bool
		change func(w *world)
		before func(w *world)
		want   string
	}{
		"the same":                 {hidden: none},
		"placed elsewhere":         {hidden: func(d bson.Raw) bool { return d.Lookup("_id").AsInt64() == 7 }, want: "a canary of c is not found through the proxy"},
		"missing on the target":    {hidden: none, change: func(w *world) { delete(w.target["c"], keyOf(doc(7, 7))) }, want: "a canary of c is found through the proxy and not on the target"},
		"only on the target":       {hidden: none, change: func(w *world) { w.target.put("c", doc(70, 7)) }, want: "a canary of c is not found through the proxy"},
		"different":                {hidden: none, change: func(w *world) { w.target.put("c", doc(7, 8)) }, want: "a canary of c is not the same through the proxy and on the target"},
		"changes all the time":     {hidden: func(d bson.Raw) bool { return d.Lookup("_id").AsInt64() == 7 }, before: func(w *world) { w.write(event.Replace, doc(7, 9)) }},
		"another one changes only": {hidden: func(d bson.Raw) bool { return d.Lookup("_id").AsInt64() == 7 }, before: func(w *world) { w.write(event.Replace, doc(8, 9)) }, want: "a canary of c is not found through the proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			for i := range 20 {
				w.both("c", doc(i, i))
			}
			if tc.change != nil {
				tc.change(w)
			}
			w.follow(t)
			a := w.auditor("c")
			a.HashUpTo = 0
			s := &sung{w: w, hidden: tc.hidden}
			if tc.before != nil {
				s.before = func() { tc.before(w) }
			}
			a.Canaries = s
			r, err := a.Run(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, r.Canaries, 39)
			said := slices.DeleteFunc(r.Differences, func(d string) bool { return !strings.HasPrefix(d, "a canary") })
			require.Equal(t, tc.want, strings.Join(said, "; "))
		})
	}
}
