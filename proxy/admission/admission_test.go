package admission

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPolicyIsReadStrictly(t *testing.T) {
	t.Parallel()

	p, err := ParsePolicy([]byte(`{"ops_per_second": 10, "priority": "critical", "scatter": "bounded"}`))
	require.NoError(t, err)
	require.InDelta(t, 10, p.OpsPerSecond, 0)
	_, err = ParsePolicy([]byte(`{"ops_per_secnd": 10}`))
	require.ErrorContains(t, err, "ops_per_secnd")
	_, err = ParsePolicy([]byte(`{"ops_burst": -1, "priority": "high", "scatter": "some", "default_max_time_ms": -1}`))
	for _, want := range []string{"negative", `"high"`, `"some"`, "default_max_time_ms"} {
		require.ErrorContains(t, err, want)
	}
}

func TestQuotas(t *testing.T) {
	t.Parallel()

	b := NewBook()
	require.Nil(t, b.Of([]byte("shop")))
	b.Set(map[string]Policy{"shop": {OpsPerSecond: 10, OpsBurst: 2}, "mail": {BytesPerSecond: 1000}})
	now := time.Now()
	shop := b.Of([]byte("shop"))
	for range 2 {
		rule, _ := shop.Take(now, 1)
		require.Empty(t, rule)
	}
	rule, after := shop.Take(now, 1)
	require.Equal(t, RuleOps, rule)
	require.InDelta(t, 0.1, after.Seconds(), 0.001)
	b.Set(map[string]Policy{"shop": {OpsPerSecond: 10, OpsBurst: 2}})
	rule, _ = b.Of([]byte("shop")).Take(now, 1)
	require.Equal(t, RuleOps, rule, "reading the same policy again must not fill the bucket")
	rule, _ = shop.Take(now.Add(100*time.Millisecond), 1)
	require.Empty(t, rule)

	b.Set(map[string]Policy{"mail": {BytesPerSecond: 1000}})
	mail := b.Of([]byte("mail"))
	rule, _ = mail.Take(now, 10)
	require.Empty(t, rule)
	mail.Spend(now, 2990)
	rule, after = mail.Take(now, 1)
	require.Equal(t, RuleBytes, rule)
	require.InDelta(t, 2.0, after.Seconds(), 0.01)
	rule, _ = mail.Take(now.Add(2100*time.Millisecond), 1)
	require.Empty(t, rule)
}

// entered is the end of an Enter.
type entered struct {
	pass Pass
	err  error
}

// enter runs Enter for a write and gives a channel with its end.
func enter(g *Gate, database string, p Priority) chan entered {
	done := make(chan entered, 1)
	go func() {
		pass, err := g.Enter(context.Background(), database, p, Writes)
		done <- entered{pass, err}
	}()
	return done
}

// in wants a write to be let in.
func in(t *testing.T, g *Gate, database string, p Priority) Pass {
	t.Helper()
	pass, err := g.Enter(t.Context(), database, p, Writes)
	require.NoError(t, err)
	return pass
}

// refused wants a write to be refused.
func refused(t *testing.T, g *Gate, database string, p Priority, want error) {
	t.Helper()
	_, err := g.Enter(t.Context(), database, p, Writes)
	require.ErrorIs(t, err, want)
}

func TestTurns(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		g := NewGate(GateConfig{Least: 1, Most: 1, Queue: 6})
		first := in(t, g, "noisy", Normal)
		_, ok := g.Try(Critical, Reads)
		require.False(t, ok, "reads and writes have one bound")
		var noisy []chan entered
		for range 4 {
			noisy = append(noisy, enter(g, "noisy", Normal))
			synctest.Wait()
		}
		quiet := enter(g, "quiet", Normal)
		synctest.Wait()
		critical := enter(g, "till", Critical)
		synctest.Wait()
		refused(t, g, "late", Normal, ErrQueueFull)
		last := first
		for i, want := range []chan entered{critical, noisy[0], quiet, noisy[1], noisy[2], noisy[3]} {
			g.Leave(last, Answered, time.Millisecond)
			synctest.Wait()
			select {
			case e := <-want:
				require.NoError(t, e.err)
				last = e.pass
			default:
				require.Fail(t, "somebody else had the turn", "%d", i)
			}
		}
		g.Leave(last, Answered, time.Millisecond)
		require.Equal(t, State{Reads: Crowd{Limit: 1}, Writes: Crowd{Limit: 1}, Breaker: "closed"}, g.State())
	})
}

func TestGivingUp(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		g := NewGate(GateConfig{Least: 1, Most: 1})
		pass := in(t, g, "a", Normal)
		late := errors.New("late")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()
		_, err := g.Enter(ctx, "a", Normal, Writes)
		require.ErrorIs(t, err, late)
		require.Equal(t, Crowd{Limit: 1, Running: 1}, g.State().Writes)
		other := enter(g, "a", Normal)
		synctest.Wait()
		g.Leave(pass, Unknown, 0)
		require.NoError(t, (<-other).err, "who gave up must not have the turn")
	})
}

func TestBreaker(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		g := NewGate(GateConfig{Least: 1, Most: 4, Trip: 3})
		for range 3 {
			require.Equal(t, "closed", g.State().Breaker)
			g.Leave(in(t, g, "a", Normal), Unreachable, 0)
		}
		require.Equal(t, "open", g.State().Breaker)
		probe := in(t, g, "a", Normal)
		refused(t, g, "a", Critical, ErrBreaker)
		g.Leave(probe, Unreachable, 0)
		refused(t, g, "a", Critical, ErrBreaker) // the next probe has its time
		time.Sleep(time.Second)                  //nolint:forbidigo // the bubble's clock
		g.Leave(in(t, g, "a", Batch), Answered, time.Millisecond)
		require.Equal(t, "returning", g.State().Breaker)

		batch, normal := enter(g, "b", Batch), enter(g, "n", Normal)
		synctest.Wait()
		critical := enter(g, "c", Critical)
		synctest.Wait()
		leave := func(from chan entered) {
			e := <-from
			require.NoError(t, e.err)
			g.Leave(e.pass, Answered, time.Millisecond)
		}
		leave(critical) // critical databases come first
		began := time.Now()
		leave(normal)
		require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond)
		leave(batch)
		require.GreaterOrEqual(t, time.Since(began), 1900*time.Millisecond)
		time.Sleep(5 * time.Second) //nolint:forbidigo // the bubble's clock
		require.Equal(t, State{Reads: Crowd{Limit: 4}, Writes: Crowd{Limit: 4}, Breaker: "closed"}, g.State())
	})
}

func BenchmarkGate(b *testing.B) {
	g := NewGate(GateConfig{})
	b.ReportAllocs()
	for b.Loop() {
		pass, _ := g.Enter(b.Context(), "a", Normal, Writes)
		g.Leave(pass, Answered, time.Millisecond)
	}
}
