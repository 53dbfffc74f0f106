package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
	"drover/proxy"
)

// TestSettingsFileIsRefusedAsAWhole with line and field of each fault.
func TestSettingsFileIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()

	s, err := parseSettings([]byte("proxy:\n  switch-wait: 2s\nbalancer:\n  every: 10m\n  start-at: 0.3\n  execute: true\n"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"switch-wait": "2s"}, s.proxy)
	require.Equal(t, 10*time.Minute, s.rounds.every)
	in, err := s.rounds.input()
	require.NoError(t, err)
	require.True(t, in.Execute)
	require.InDelta(t, 0.3, in.Settings.Start, 0)

	s, err = parseSettings(nil)
	require.NoError(t, err)
	require.Nil(t, s.rounds)

	for text, want := range map[string]string{
		"proxy:\n  listen: 127.0.0.1:1\n":            "line 2: proxy.listen is unknown; want one of linger, log-level, slow-request, switch-wait",
		"proxy:\n  switch-wait: soon\n":              "line 2: proxy.switch-wait: ",
		"proxy:\n  switch-wait: 0s\n":                "proxy: switch-wait is 0s; want a positive duration",
		"proxy:\n  linger: -1s\n":                    "linger is -1s",
		"proxy:\n  log-level: loud\n":                `log-level is "loud"`,
		"proxy:\n  linger: 1s\n  linger: 2s\n":       "line 3: proxy.linger is there twice",
		"proxy:\n  linger: [1s]\n":                   "line 2: proxy.linger wants one value",
		"worker:\n  queues: bulk\n":                  `line 1: section "worker" is unknown; want one of proxy, balancer`,
		"proxy: 1\n":                                 "line 1: proxy wants fields with values",
		"balancer:\n  every: 1s\n":                   "balancer: every is 1s; want 1m or more",
		"balancer:\n  start-at: 0.1\n  stop-at: 1\n": "must lie above policy.stop",
		"balancer:\n  shard-ops: -1\n":               "shard-ops is -1",
		"balancer:\n  cpu-limit: 80\n":               "cpu-limit is 80; want a share of the cores, 0 to 1",
		"balancer:\n  at-once: -2\n":                 "at-once is -2; want a number of moves",
		"balancer:\n  speed: 1\n":                    "line 2: balancer.speed is unknown",
		"proxy: [":                                   "line 1",
	} {
		_, err := parseSettings([]byte(text))
		require.ErrorContains(t, err, want, text)
		require.True(t, failure.HasCode(err, "settings.bad_file"), text)
	}
	_, err = parseSettings([]byte("proxy:\n  linger: -1s\n  speed: 1\nbalancer:\n  every: x\n"))
	for _, want := range []string{"linger is -1s", "line 3: proxy.speed", "line 5: balancer.every"} {
		require.ErrorContains(t, err, want, "all at once")
	}
}

// TestChangesOfSettings name what comes, goes and differs.
func TestChangesOfSettings(t *testing.T) {
	t.Parallel()

	was, err := parseSettings([]byte("proxy:\n  switch-wait: 2s\n  linger: 5s\n"))
	require.NoError(t, err)
	now, err := parseSettings([]byte("proxy:\n  switch-wait: 3s\n  log-level: debug\nbalancer:\n  every: 10m\n"))
	require.NoError(t, err)
	c := change{Changes: now.changes(was)}
	require.Equal(t, []settingChange{
		{"proxy.linger", "5s", notSet}, {"proxy.log-level", notSet, "debug"}, {"proxy.switch-wait", "2s", "3s"}, {"balancer.every", notSet, "10m"},
	}, c.Changes)
	require.True(t, c.proxies())
	require.True(t, c.balancer())
	require.Empty(t, now.changes(now))
	require.True(t, change{now: now}.balancer(), "applied again, the schedule is brought to what is live")
	require.False(t, change{now: was}.balancer(), "the file says nothing of it")
	require.False(t, change{now: now, Changes: []settingChange{{Setting: "proxy.linger"}}}.balancer())
}

// What is kept for the whole fleet gives way to what was said to this proxy, and what
// is wrong in it changes nothing.
func TestFleetSettingsAreTakenOver(t *testing.T) {
	f, own, p := reloading(t, "--linger", "3s")
	take := func(content string) error { return f.ofFleet(t.Context(), content) }
	require.NoError(t, take("proxy:\n  switch-wait: 4s\n  linger: 9s\n  slow-request: 2s\n"))
	require.Equal(t, proxy.Live{SwitchWait: time.Second, SlowAfter: 2 * time.Second, Linger: 3 * time.Second}, p.Settings(), "its file and its flag stay")
	require.Error(t, take("proxy:\n  slow-request: soon\n"))
	require.Equal(t, 2*time.Second, p.Settings().SlowAfter)
	require.NoError(t, f.takeOver(t.Context()), "the file is read again")
	require.Equal(t, 2*time.Second, p.Settings().SlowAfter, "the fleet's word stays")

	require.Contains(t, own("switch-wait: soon\n"), "invalid")
	require.Error(t, take("proxy:\n  slow-request: 7s\n"), "its own file is broken meanwhile")
	require.Empty(t, own("switch-wait: 1s\n"))
	require.Equal(t, 2*time.Second, p.Settings().SlowAfter, "it has not been taken over")
	require.NoError(t, take(""))
	require.Equal(t, 500*time.Millisecond, p.Settings().SlowAfter)
}
