package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
)

// trialLedger plays the metadata of a trial with two proxies. The one that tries a
// version behaves as the test says.
type trialLedger struct {
	none    bool // no proxy lives
	kept    metadata.Settings
	try     time.Duration
	began   time.Time
	outcome string
	state   string
	behaves func(p *metadata.Proxy, since time.Duration) (gone bool)
}

// traffic is what a proxy says of its requests.
func traffic(requests, errors int64, p99 float64) json.RawMessage {
	b, err := json.Marshal(contract.Traffic{Requests: requests, Errors: errors, P99MS: p99})
	if err != nil {
		panic(err)
	}
	return b
}

// LiveProxies implements [settingsLedger].
func (l *trialLedger) LiveProxies(context.Context) (out []metadata.Proxy, _ error) {
	if l.none {
		return nil, nil
	}
	for i, id := range []string{"p1", "p2"} {
		p := metadata.Proxy{ID: id, Hears: true, Settings: 4, Health: traffic(int64(1000*(i+1)), 0, 5)}
		if id == l.kept.Canary {
			p.Settings = 5
			if l.behaves != nil && l.behaves(&p, time.Since(l.began)) {
				continue
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// KeepSettings implements [settingsLedger].
func (l *trialLedger) KeepSettings(_ context.Context, n metadata.Settings, over int64, try time.Duration) (int64, error) {
	if over != 4 {
		return 0, fmt.Errorf("over version %d", over)
	}
	l.kept, l.try, l.began = n, try, time.Now()
	return 5, nil
}

// DecideSettings implements [settingsLedger].
func (l *trialLedger) DecideSettings(ctx context.Context, version int64, state, outcome string) error {
	if ctx.Err() != nil || version != 5 {
		return fmt.Errorf("decide on version %d: %w", version, ctx.Err())
	}
	l.state, l.outcome = state, outcome
	return nil
}

// run tries a change for a minute.
func (l *trialLedger) run(ctx context.Context, on, setting string) (took time.Duration, err error) {
	began := time.Now()
	t := trial{store: l, on: on, watch: time.Minute, say: func(string, ...any) {}}
	_, err = t.keep(ctx, metadata.Settings{Content: "new", AppliedBy: "ann"}, change{Over: 4, Changes: []settingChange{{Setting: setting}}})
	return time.Since(began), err
}

// TestTrialOnOneProxyFirst: the busiest, or the one that is named; nothing is live
// before it was watched for as long as was asked.
func TestTrialOnOneProxyFirst(t *testing.T) {
	t.Parallel()

	for on, want := range map[string]string{"": "p2", "p1": "p1"} {
		synctest.Test(t, func(t *testing.T) {
			l := &trialLedger{behaves: func(p *metadata.Proxy, since time.Duration) bool {
				if since < 7*time.Second {
					p.Settings = 4 // it has not looked yet
				}
				return false
			}}
			took, err := l.run(t.Context(), on, "proxy.linger")
			require.NoError(t, err)
			require.Equal(t, want, l.kept.Canary)
			require.Equal(t, metadata.SettingsLive, l.state)
			require.Contains(t, l.outcome, "as healthy as before")
			require.GreaterOrEqual(t, took, 67*time.Second)
			require.Greater(t, l.try, time.Minute+trialTakes, "the metadata ends it only later")
		})
	}
}

// TestTrialThatFails is refused with its reason, and nothing is live.
func TestTrialThatFails(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		behaves func(p *metadata.Proxy, since time.Duration) bool
		want    string
	}{
		"silent": {func(_ *metadata.Proxy, since time.Duration) bool { return since > 20*time.Second }, "p2 has fallen silent"},
		"deaf": {func(p *metadata.Proxy, since time.Duration) bool {
			p.Hears = since < 20*time.Second
			return false
		}, "hears no announcements"},
		"not taken over": {func(p *metadata.Proxy, _ time.Duration) bool {
			p.Settings = 4
			return false
		}, "has not taken the new one over"},
		"taken back": {func(p *metadata.Proxy, since time.Duration) bool {
			if since > 20*time.Second {
				p.Settings = 4
			}
			return false
		}, "has not taken the new one over"},
		"slow": {func(p *metadata.Proxy, since time.Duration) bool {
			if since > 30*time.Second {
				p.Health = traffic(2000, 0, 90)
			}
			return false
		}, "p99 is 90.0 ms, it was 5.0 ms before"},
		"failing": {func(p *metadata.Proxy, _ time.Duration) bool {
			p.Health = traffic(2000, 100, 5)
			return false
		}, "5.00% of the requests fail"},
		"slow at the end": {func(p *metadata.Proxy, since time.Duration) bool {
			if since > 58*time.Second {
				p.Health = traffic(2000, 0, 90)
			}
			return false
		}, "p99 is 90.0 ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := &trialLedger{behaves: c.behaves}
				_, err := l.run(t.Context(), "", "proxy.linger")
				require.ErrorContains(t, err, c.want)
				require.True(t, failure.HasCode(err, "settings.trial_failed"), "%v", err)
				require.Equal(t, metadata.SettingsRefused, l.state)
				require.Contains(t, l.outcome, c.want)
			})
		})
	}
}

// TestOneSlowLookIsNoFailure of a trial.
func TestOneSlowLookIsNoFailure(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		l := &trialLedger{behaves: func(p *metadata.Proxy, since time.Duration) bool {
			if since > 30*time.Second && since < 38*time.Second {
				p.Health = traffic(2000, 0, 90)
			}
			return false
		}}
		_, err := l.run(t.Context(), "", "proxy.linger")
		require.NoError(t, err)
	})
}

// TestInterruptedTrialIsRefused at once.
func TestInterruptedTrialIsRefused(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		l := &trialLedger{}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := l.run(ctx, "", "proxy.linger")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, metadata.SettingsRefused, l.state)
	})
}

// TestNothingToTryOn: what concerns the balancer only, or a fleet without proxies, is
// live at once; a proxy that is named must live.
func TestNothingToTryOn(t *testing.T) {
	t.Parallel()

	l := &trialLedger{}
	_, err := l.run(t.Context(), "", "balancer.every")
	require.NoError(t, err)
	require.Empty(t, l.kept.Canary)

	l = &trialLedger{none: true}
	_, err = l.run(t.Context(), "", "proxy.linger")
	require.NoError(t, err)
	require.Equal(t, "new", l.kept.Content)
	_, err = l.run(t.Context(), "p3", "proxy.linger")
	require.True(t, failure.HasCode(err, "settings.no_proxy"), "%v", err)
}

// TestWaitForAllNamesThoseBehind.
func TestWaitForAllNamesThoseBehind(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		l := &trialLedger{kept: metadata.Settings{Canary: "p2"}, began: time.Now()}
		behind, err := waitForAll(t.Context(), l, 5)
		require.NoError(t, err)
		require.Equal(t, []string{"p1"}, behind)
		l.kept.Canary = ""
		behind, err = waitForAll(t.Context(), l, 4)
		require.NoError(t, err)
		require.Empty(t, behind)
	})
}
