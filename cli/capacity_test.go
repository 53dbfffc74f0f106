package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDatesOfASeason: what can't be is misuse, and a season is named by its first day.
func TestDatesOfASeason(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	plan := func(change func(*seasonFlags)) (seasonFlags, error) {
		p := seasonFlags{at: "2026-12-20", until: "2027-01-07T06:00:00Z"}
		p.season.Factor = 3
		change(&p)
		return p, p.dates(now)
	}
	p, err := plan(func(*seasonFlags) {})
	require.NoError(t, err)
	require.Equal(t, "2026-12-20", p.season.Name)
	require.Equal(t, 6, p.season.Until.Hour())
	for want, change := range map[string]func(*seasonFlags){
		"--at is":                     func(p *seasonFlags) { p.at = "soon" },
		"--until is":                  func(p *seasonFlags) { p.until = "20.12." },
		"--factor is 1":               func(p *seasonFlags) { p.season.Factor = 1 },
		"--lead is -1h":               func(p *seasonFlags) { p.lead = -time.Hour },
		"--until does not lie behind": func(p *seasonFlags) { p.until = p.at },
		"--until has passed":          func(p *seasonFlags) { p.at, p.until = "2026-01-01", "2026-01-02" },
	} {
		_, err := plan(change)
		require.ErrorContains(t, err, want)
	}
}
