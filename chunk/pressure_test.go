package chunk

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPressureIsWhatLiesBetweenTwoReadings: CPU by the core, means of what was counted.
func TestPressureIsWhatLiesBetweenTwoReadings(t *testing.T) {
	t.Parallel()

	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	before := Counters{
		Host: "a:1", At: at, Up: time.Hour, CPU: 100 * time.Second, Cores: 4,
		Writes: Latency{Ops: 100, Time: time.Second}, Reads: Latency{Ops: 50, Time: time.Second},
	}
	now := before
	now.At, now.Up, now.CPU = at.Add(time.Minute), time.Hour+time.Minute, 220*time.Second
	now.Writes, now.Reads.Ops = Latency{Ops: 200, Time: 6 * time.Second}, 60
	p := now.Since(before)
	require.Equal(t, time.Minute, p.Over)
	require.InDelta(t, 0.5, *p.CPU, 1e-9, "two minutes of CPU in a minute on four cores")
	require.Equal(t, 50*time.Millisecond, *p.Write)
	require.Nil(t, p.Read, "ten operations have no mean")
	require.Empty(t, p.Unknown)

	for unknown, change := range map[string]func(now, before *Counters){
		"first reading":         func(_, b *Counters) { *b = Counters{} },
		"another member":        func(n, _ *Counters) { n.Host = "b:1" },
		"started anew":          func(n, _ *Counters) { n.Up = time.Second },
		"was started anew":      func(n, _ *Counters) { n.At = at.Add(3 * time.Hour) }, // up for longer than it was at the first reading
		"server was started":    func(n, _ *Counters) { n.CPU = 0 },
		"the server was":        func(n, _ *Counters) { n.Writes.Ops = 3 },
		"server was started an": func(n, _ *Counters) { n.Reads.Time = 0 },
		"just now":              func(n, _ *Counters) { n.Up, n.At = time.Hour+time.Second, at.Add(time.Second) },
		"1h0m0s ago":            func(n, _ *Counters) { n.Up, n.At = 2*time.Hour, at.Add(time.Hour) },
	} {
		n, b := now, before
		change(&n, &b)
		p := n.Since(b)
		require.Contains(t, p.Unknown, unknown)
		require.Nil(t, p.CPU, unknown)
		require.Nil(t, p.Write, unknown)
	}
}

// TestPressureThatIsNotToldIsUnknown, and not zero.
func TestPressureThatIsNotToldIsUnknown(t *testing.T) {
	t.Parallel()

	before := Counters{Host: "a:1", At: time.Unix(1000, 0), Up: time.Hour, Unknown: "CPU: it does not say"}
	now := before
	now.At, now.Up = before.At.Add(time.Minute), before.Up+time.Minute
	p := now.Since(before)
	require.Nil(t, p.CPU)
	require.Nil(t, p.Write)
	require.Equal(t, "CPU: it does not say", p.Unknown)
	before.CPU, now.CPU = time.Second, 2*time.Second
	require.Nil(t, now.Since(before).CPU, "how many cores there are is not known")
}
