package metadatatest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
	"drover/metadata"
)

// settingsCases are about the settings that are kept for the whole fleet.
var settingsCases = map[string]func(*testing.T, *fleet){
	"OneProxyTriesSettings": func(t *testing.T, f *fleet) {
		ctx := t.Context()
		runs := func(proxy string) (version int64) {
			t.Helper()
			s, err := f.SettingsOf(ctx, proxy)
			require.NoError(t, err)
			return s.Version
		}
		require.Zero(t, runs("p1"), "there never were any")
		first, err := f.KeepSettings(ctx, metadata.Settings{Content: "one", AppliedBy: "ann"}, 0, 0)
		require.NoError(t, err)
		require.Equal(t, first, runs("p1"))

		second, err := f.KeepSettings(ctx, metadata.Settings{Content: "two", Canary: "p1", AppliedBy: "ann", Reason: "faster"}, first, time.Hour)
		require.NoError(t, err)
		require.Equal(t, second, runs("p1"))
		require.Equal(t, first, runs("p2"), "the others wait")
		require.Equal(t, first, runs(""))
		_, err = f.KeepSettings(ctx, metadata.Settings{Content: "three", AppliedBy: "bob"}, first, 0)
		requireFailure(t, err, failure.Invalid, "settings.trying")
		require.ErrorContains(t, err, "p1 is trying version")

		require.NoError(t, f.DecideSettings(ctx, second, metadata.SettingsLive, "as healthy as before"))
		require.Equal(t, second, runs("p2"))
		requireFailure(t, f.DecideSettings(ctx, second, metadata.SettingsRefused, "late"), failure.Lost, "settings.not_trying")
		_, err = f.KeepSettings(ctx, metadata.Settings{Content: "three", AppliedBy: "bob"}, first, 0)
		requireFailure(t, err, failure.Invalid, "settings.changed")

		third, err := f.KeepSettings(ctx, metadata.Settings{Content: "three", Canary: "p2", AppliedBy: "bob"}, second, time.Hour)
		require.NoError(t, err)
		require.NoError(t, f.DecideSettings(ctx, third, metadata.SettingsRefused, "p99"))
		require.Equal(t, second, runs("p2"), "it goes back")
		all, err := f.AllSettings(ctx, 10)
		require.NoError(t, err)
		require.Len(t, all, 3)
		require.Equal(t, metadata.SettingsRefused, all[0].State)
		require.Equal(t, "p99", all[0].Outcome)
		require.Equal(t, "faster", all[1].Reason)
		require.NotNil(t, all[1].DecidedAt)
	},

	"TrialOfSettingsEndsByItself": func(t *testing.T, f *fleet) {
		ctx := t.Context()
		version, err := f.KeepSettings(ctx, metadata.Settings{Content: "one", Canary: "p1", AppliedBy: "ann"}, 0, time.Hour)
		require.NoError(t, err)
		require.NoError(t, f.exec(t, `update settings set try_until = clock_timestamp() - interval '1 second'`))
		s, err := f.SettingsOf(ctx, "p1")
		require.NoError(t, err)
		require.Zero(t, s.Version)
		requireFailure(t, f.DecideSettings(ctx, version, metadata.SettingsLive, "late"), failure.Lost, "settings.not_trying")
		all, err := f.AllSettings(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, metadata.SettingsRefused, all[0].State)
		require.Contains(t, all[0].Outcome, "nobody")
		_, err = f.KeepSettings(ctx, metadata.Settings{Content: "two", Canary: "p1", AppliedBy: "bob"}, 0, time.Hour)
		require.NoError(t, err)
	},

	"ProxiesSayWhatTheyRun": func(t *testing.T, f *fleet) {
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p1", Address: "127.0.0.1:1"}))
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p1", Address: "127.0.0.1:1", Settings: 7, Health: json.RawMessage(`{"requests": 3}`)}))
		live, err := f.LiveProxies(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(7), live[0].Settings)
		require.JSONEq(t, `{"requests": 3}`, string(live[0].Health))
	},
}
