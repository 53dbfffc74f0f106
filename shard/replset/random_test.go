package replset_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/failure"
	"drover/remediation"
)

// randomLayouts are what the random sets are wanted to be.
func randomLayouts() []remediation.Layout {
	silent := remediation.Slot{Zone: "c", Instance: "m", OplogMB: 2000}
	arbiter := remediation.Slot{Zone: "c", Votes: 1, Arbiter: true}
	return []remediation.Layout{
		three(),
		{Name: "five", Slots: []remediation.Slot{slot("a", 2), slot("a", 2), slot("b", 1), slot("b", 1), slot("c", 1)}},
		{Name: "hidden", Slots: []remediation.Slot{slot("a", 2), slot("b", 1), slot("c", 1), {Zone: "a", Instance: "m", Hidden: true, OplogMB: 2000}}},
		{Name: "reader", Slots: []remediation.Slot{slot("a", 1), slot("b", 1), slot("c", 1), silent}},
		{Name: "psa+1", Slots: []remediation.Slot{slot("a", 2), slot("a", 1), slot("b", 1), slot("b", 1), arbiter}},
	}
}

// harm does one thing to a random member that is no arbiter.
func (b *bench) harm(r *rand.Rand) string {
	i := r.IntN(len(b.Layout.Slots))
	host := b.Hosts[i]
	if b.Layout.Slots[i].Arbiter {
		return "nothing"
	}
	harms := []struct {
		name string
		do   func()
	}{
		{"kill", func() { b.Sim.Kill(host) }},
		{"stall", func() { b.Sim.Stall(host) }},
		{"mute", func() { b.Sim.Mute(host) }},
		{"lag", func() { b.Sim.Lag(host, time.Minute) }},
		{"recover", func() {
			if host != b.Sim.Primary() {
				b.Sim.Recover(host, 2*time.Minute)
			}
		}},
		{"lose", func() { b.Sim.Lose(host) }},
		{"oplog", func() { b.Sim.SetOplog(host, 1000) }},
		{"step up", func() { b.Sim.StepUp(host) }},
	}
	h := harms[r.IntN(len(harms))]
	h.do()
	return fmt.Sprintf("%s h%d", h.name, i)
}

// Whatever happens to a set that keeps its majority, it is brought to the health
// that the first plan promised or better; the majority is never lost by it, nor is
// anything that a majority had acknowledged.
func TestRandomDamageIsRepairedAsPredicted(t *testing.T) {
	t.Parallel()

	layouts := randomLayouts()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()

			r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // a test's dice
			var spares []string
			for range r.IntN(3) {
				spares = append(spares, []string{"a", "b", "c"}[r.IntN(3)])
			}
			b := setup(t, layouts[r.IntN(len(layouts))], spares...)
			require.True(t, b.Sim.Put("app.c", bson.D{{Key: "_id", Value: 1}}))
			var did []string
			for range 1 + r.IntN(3) {
				did = append(did, b.harm(r))
			}
			b.Sim.Advance(2 * time.Minute)
			if !b.Sim.HasMajority() || b.Sim.Primary() == "" {
				b.needsAPerson(t, did)
				return
			}
			e := b.executor(t)
			v, err := e.Look(t.Context())
			require.NoError(t, err, "%s after %v", b.Layout.Name, did)
			plan, err := e.Planner.Plan(v)
			require.NoError(t, err)
			out, err := e.Run(t.Context())
			require.NoError(t, err, "%s after %v", b.Layout.Name, did)
			require.GreaterOrEqual(t, out.To.Compare(plan.To), 0, "%s after %v: promised %s, is %s", b.Layout.Name, did, plan.To, out.To)
			require.False(t, b.Lost, "%s after %v: the majority was lost", b.Layout.Name, did)
			require.Len(t, b.Sim.Documents(b.Sim.Primary(), "app.c"), 1, "%s after %v", b.Layout.Name, did)
		})
	}
}

// needsAPerson wants that a set without a majority is left alone, or was no worse
// than it looked: what comes back by itself is waited for.
func (b *bench) needsAPerson(t *testing.T, did []string) {
	t.Helper()

	out, err := b.executor(t).Run(t.Context())
	if err != nil {
		require.False(t, failure.Is(err, failure.Invalid), "%s after %v: %v", b.Layout.Name, did, err)
	}
	for _, d := range out.Done {
		if d.Order.Name == "rebuild" || d.Order.Name == "replace" {
			require.True(t, b.Sim.HasMajority(), "%s after %v: %v", b.Layout.Name, did, out.Done)
		}
	}
}
