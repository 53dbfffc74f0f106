package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
)

const goodLayout = `
name: three
domain: cell-1
slots:
  - {zone: a, priority: 2, oplog_mb: 2000}
  - {zone: b}
  - {zone: c, hidden: true, delay: 1h, votes: 0}
machines:
  - {host: "a:1", zone: a}
  - {host: "b:1", zone: b}
  - {host: "c:1", zone: c}
`

func TestLayoutFile(t *testing.T) {
	t.Parallel()

	f, err := parseLayout([]byte(goodLayout), "s")
	require.NoError(t, err)
	l, machines, err := f.layout()
	require.NoError(t, err)
	require.Equal(t, "cell-1", f.Domain)
	require.Len(t, machines, 3)
	require.InDelta(t, 1, l.Slots[1].Priority, 0, "a voter that may serve has priority 1 unless said")
	require.Equal(t, 1, l.Slots[1].Votes)
	require.Zero(t, l.Slots[2].Votes)
	require.Zero(t, l.Slots[2].Priority)
	require.Equal(t, time.Hour, l.Slots[2].Delay)
}

// TestBadLayoutsAreRefused: each with field and reason.
func TestBadLayoutsAreRefused(t *testing.T) {
	t.Parallel()

	machine := "machines: [{host: \"a:1\", zone: a}]\n"
	for name, test := range map[string]struct{ file, want string }{
		"no machine":    {"name: n\nslots: [{zone: a}, {zone: z}]\n" + machine, "slots[1].zone: no machine"},
		"eight voters":  {"name: n\nslots: [{zone: a}, {zone: a}, {zone: a}, {zone: a}, {zone: a}, {zone: a}, {zone: a}, {zone: a}]\n" + machine, "slots: 8 votes"},
		"arbiter":       {"name: n\nslots: [{zone: a}, {zone: a, arbiter: true, priority: 1}]\n" + machine, "slots[1].priority: must be 0 for an arbiter"},
		"two layouts":   {goodLayout + "---\n" + goodLayout, "two layouts for shard s"},
		"another shard": {"shard: other\n" + goodLayout, "shard: the file is for shard other, not for s"},
		"unknown field": {goodLayout + "speed: 3\n", "field speed not found"},
		"host twice":    {"name: n\nslots: [{zone: a}]\nmachines: [{host: \"x:1\", zone: a}, {host: \"x:1\", zone: b}]\n", "machines[1]"},
		"no port":       {"name: n\nslots: [{zone: a}]\nmachines: [{host: x, zone: a}]\n", `machines[0].host: is "x"; want host:port`},
		"no file":       {"", "file: "},
	} {
		f, err := parseLayout([]byte(test.file), "s")
		if err == nil {
			_, _, err = f.layout()
		}
		require.ErrorContains(t, err, test.want, name)
		require.True(t, failure.HasCode(err, "layout.invalid"), name)
	}
}
