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

// enter runs Enter and gives a channel with its end.
func enter(g *Gate, database string, p Priority) chan error {
	done := make(chan error, 1)
	go func() { done <- g.Enter(context.Background(), database, p) }()
	return done
}

func TestTurns(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		g := NewGate(GateConfig{Least: 1, Most: 1, Queue: 6})
		require.NoError(t, g.Enter(t.Context(), "noisy", Normal))
		var noisy []chan error
		for range 4 {
			noisy = append(noisy, enter(g, "noisy", Normal))
			synctest.Wait()
		}
		quiet := enter(g, "quiet", Normal)
		synctest.Wait()
		critical := enter(g, "till", Critical)
		synctest.Wait()
		require.ErrorIs(t, g.Enter(t.Context(), "late", Normal), ErrQueueFull)
		for i, want := range []chan error{critical, noisy[0], quiet, noisy[1], noisy[2], noisy[3]} {
			g.Leave(Answered, time.Millisecond)
			synctest.Wait()
			select {
			case err := <-want:
				require.NoError(t, err)
			default:
				require.Fail(t, "somebody else had the turn", "%d", i)
			}
		}
		g.Leave(Answered, time.Millisecond)
		require.Equal(t, State{1, 0, 0, "closed"}, g.State())
	})
}

func TestGivingUp(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		g := NewGate(GateConfig{Least: 1, Most: 1})
		require.NoError(t, g.Enter(t.Context(), "a", Normal))
		late := errors.New("late")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()
		require.ErrorIs(t, g.Enter(ctx, "a", Normal), late)
		require.Equal(t, State{1, 1, 0, "closed"}, g.State())
		other := enter(g, "a", Normal)
		synctest.Wait()
		g.Leave(Unknown, 0)
		require.NoError(t, <-other, "who gave up must not have the turn")
	})
}

func TestLimitFollowsLatency(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		g := NewGate(GateConfig{Least: 4, Most: 100})
		run := func(took time.Duration) {
			for range 800 {
				n := g.State().Limit
				for range n {
					require.NoError(t, g.Enter(t.Context(), "a", Normal))
				}
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the bubble's clock
				for range n {
					g.Leave(Answered, took)
				}
			}
		}
		run(time.Millisecond)
		require.Equal(t, 100, g.State().Limit)
		for range 40 {
			for range 60 {
				require.NoError(t, g.Enter(t.Context(), "a", Normal))
				time.Sleep(5 * time.Millisecond) //nolint:forbidigo // the bubble's clock
				g.Leave(Answered, 50*time.Millisecond)
			}
		}
		require.Less(t, g.State().Limit, 60, "the shard got fifty times slower")
		run(time.Millisecond)
		require.Equal(t, 100, g.State().Limit, "the shard is well again")
	})
}

func TestBreaker(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		g := NewGate(GateConfig{Least: 1, Most: 4, Trip: 3})
		for range 3 {
			require.Equal(t, "closed", g.State().Breaker)
			require.NoError(t, g.Enter(t.Context(), "a", Normal))
			g.Leave(Unreachable, 0)
		}
		require.Equal(t, "open", g.State().Breaker)
		require.NoError(t, g.Enter(t.Context(), "a", Normal), "a probe")
		require.ErrorIs(t, g.Enter(t.Context(), "a", Critical), ErrBreaker)
		g.Leave(Unreachable, 0)
		require.ErrorIs(t, g.Enter(t.Context(), "a", Critical), ErrBreaker, "the next probe has its time")
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		require.NoError(t, g.Enter(t.Context(), "a", Batch), "another probe")
		g.Leave(Answered, time.Millisecond)
		require.Equal(t, "returning", g.State().Breaker)

		batch, normal := enter(g, "b", Batch), enter(g, "n", Normal)
		synctest.Wait()
		critical := enter(g, "c", Critical)
		synctest.Wait()
		require.NoError(t, <-critical, "critical databases come first")
		g.Leave(Answered, time.Millisecond)
		began := time.Now()
		require.NoError(t, <-normal)
		require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond)
		g.Leave(Answered, time.Millisecond)
		require.NoError(t, <-batch)
		require.GreaterOrEqual(t, time.Since(began), 1900*time.Millisecond)
		g.Leave(Answered, time.Millisecond)
		time.Sleep(5 * time.Second) //nolint:forbidigo // the bubble's clock
		require.Equal(t, State{4, 0, 0, "closed"}, g.State())
	})
}

func BenchmarkGate(b *testing.B) {
	g := NewGate(GateConfig{})
	b.ReportAllocs()
	for b.Loop() {
		_ = g.Enter(b.Context(), "a", Normal)
		g.Leave(Answered, time.Millisecond)
	}
}
