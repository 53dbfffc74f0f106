package metadatatest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// overrideCases is what people's overrides must keep.
var overrideCases = map[string]func(*testing.T, *fleet){
	"OverrideHasAnOwnerAReasonAndAnEnd": func(t *testing.T, f *fleet) {
		ctx := t.Context()
		pause := metadata.Override{Kind: metadata.PauseOverride, Owner: "anna", Reason: "new disks"}
		for _, bad := range []metadata.Override{{Kind: metadata.PauseOverride, Owner: "anna"}, {Kind: metadata.PauseOverride, Reason: "x"}} {
			requireFailure(t, f.SetOverride(ctx, bad, time.Hour), failure.Invalid, "override.incomplete")
		}
		requireFailure(t, f.SetOverride(ctx, pause, 0), failure.Invalid, "override.incomplete")
		require.NoError(t, f.SetOverride(ctx, pause, time.Hour))
		why, err := f.Paused(ctx)
		require.NoError(t, err)
		require.Contains(t, why, "by anna until")
		require.Contains(t, why, "new disks")
		require.NoError(t, f.EndOverride(ctx, pause, "bob"))
		requireFailure(t, f.EndOverride(ctx, pause, "bob"), failure.Invalid, "override.none")
		why, err = f.Paused(ctx)
		require.NoError(t, err)
		require.Empty(t, why)
	},

	"ExpiredOverrideHasNoEffectAndIsShown": func(t *testing.T, f *fleet) {
		ctx := t.Context()
		pin := metadata.Override{Kind: metadata.PinOverride, Subject: string(first), Owner: "anna", Reason: "audit"}
		require.NoError(t, f.SetOverride(ctx, pin, time.Hour))
		pins, err := f.Pins(ctx)
		require.NoError(t, err)
		require.Contains(t, pins[first], "is pinned by anna")
		requireFailure(t, f.SetOverride(ctx, metadata.Override{Kind: metadata.PinOverride, Subject: "flights/9999", Owner: "a", Reason: "b"}, time.Hour),
			failure.Invalid, "chunk.unknown")

		require.NoError(t, f.exec(t, `update overrides set expires_at = clock_timestamp() - interval '10 minutes'`))
		pins, err = f.Pins(ctx)
		require.NoError(t, err)
		require.Equal(t, map[chunk.ID]string{}, pins)
		figures, err := f.Figures(ctx)
		require.NoError(t, err)
		require.Len(t, figures.Overrides, 1, "the alarm sees it")
		require.Less(t, figures.Overrides[0].Left, -9*time.Minute)
		require.NoError(t, f.SetOverride(ctx, pin, time.Hour), "set anew")
		all, err := f.Overrides(ctx)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Positive(t, all[0].Left)
	},

	"WaiverIsOfOneCheckOfOneChunk": func(t *testing.T, f *fleet) {
		ctx := t.Context()
		lag := metadata.Override{Kind: metadata.WaiverOverride, Subject: string(first), Detail: "lag", Owner: "anna", Reason: "slow disk"}
		latency := lag
		latency.Detail = "latency"
		require.NoError(t, f.SetOverride(ctx, lag, time.Hour))
		require.NoError(t, f.SetOverride(ctx, latency, time.Hour))
		lag.Subject = "flights/9999"
		requireFailure(t, f.SetOverride(ctx, lag, time.Hour), failure.Invalid, "chunk.unknown")
		lag.Subject = string(first)
		waived, err := f.Waivers(ctx, first)
		require.NoError(t, err)
		require.Len(t, waived, 2)
		require.Contains(t, waived["lag"], "lag is waived by anna until")
		waived, err = f.Waivers(ctx, "flights/9999")
		require.NoError(t, err)
		require.Empty(t, waived)
		require.NoError(t, f.EndOverride(ctx, lag, "bob"))
		require.NoError(t, f.exec(t, `update overrides set expires_at = clock_timestamp() - interval '1 second'`))
		waived, err = f.Waivers(ctx, first)
		require.NoError(t, err)
		require.Empty(t, waived, "the other one has expired")
	},

	"RaisedQuotaEndsByItself": func(t *testing.T, f *fleet) {
		ctx := t.Context()
		quota := metadata.Override{Kind: metadata.QuotaOverride, Subject: "flights", Value: []byte(`{"ops_per_second": 9}`), Owner: "anna", Reason: "sale"}
		require.NoError(t, f.SetOverride(ctx, quota, time.Hour))
		raised, err := f.RaisedQuotas(ctx)
		require.NoError(t, err)
		require.JSONEq(t, `{"ops_per_second": 9}`, string(raised["flights"]))
		quota.Subject = "nowhere"
		requireFailure(t, f.SetOverride(ctx, quota, time.Hour), failure.Invalid, "database.unknown")
		require.NoError(t, f.exec(t, `update overrides set expires_at = clock_timestamp() - interval '1 second'`))
		raised, err = f.RaisedQuotas(ctx)
		require.NoError(t, err)
		require.Empty(t, raised)
	},

	"LeaseByHandIsAmongTheOverrides": func(t *testing.T, f *fleet) {
		ctx := t.Context()
		pin := metadata.Override{Kind: metadata.PinOverride, Subject: string(first), Owner: "anna", Reason: "audit"}
		require.NoError(t, f.SetOverride(ctx, pin, time.Hour))
		for holder, shard := range map[string]string{metadata.OperatorHolder("bob"): "a", "remediate/b": "b"} {
			_, err := f.TakeLease(ctx, metadata.LeaseRequest{Shard: shard, Holder: holder, Mode: metadata.ExclusiveLease, TTL: time.Minute, Reason: "new disks"})
			require.NoError(t, err)
		}
		all, err := f.OverridesAndLeases(ctx)
		require.NoError(t, err)
		require.Len(t, all, 2, "a repair's lease is no person's")
		require.Equal(t, metadata.LeaseOverride, all[0].Kind)
		require.Equal(t, []string{"a", "bob", "new disks"}, []string{all[0].Subject, all[0].Owner, all[0].Reason})
		require.False(t, all[0].Expired)
		require.Equal(t, metadata.PinOverride, all[1].Kind)
		requireFailure(t, f.SetOverride(ctx, all[0], time.Hour), failure.Invalid, "override.incomplete")
	},
}
