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
		require.NoError(t, f.EndOverride(ctx, metadata.PauseOverride, "", "bob"))
		requireFailure(t, f.EndOverride(ctx, metadata.PauseOverride, "", "bob"), failure.Invalid, "override.none")
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
}
