package metadatatest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
)

// mirrorsAreAskedFor checks who is told of a mirror, and what is kept of its reads.
func mirrorsAreAskedFor(t *testing.T, f *fleet) {
	ctx := t.Context()
	m := f.register(t)
	none, err := f.Mirror(ctx, m.ID)
	require.NoError(t, err)
	require.Equal(t, metadata.Mirror{}, none)
	require.NoError(t, f.SetMirror(ctx, m.ID, 5, 100))
	shares, err := f.Mirrored(ctx)
	require.NoError(t, err)
	require.Equal(t, map[chunk.PlacementID]float64{m.Source.ID: 5}, shares, "the side that serves")

	set, err := f.Mirror(ctx, m.ID)
	require.NoError(t, err)
	require.NoError(t, f.SaveMirror(ctx, m.ID, set.Report, json.RawMessage(`{"compared": 3}`)))
	require.NoError(t, f.SaveMirror(ctx, m.ID, set.Report, json.RawMessage(`{"compared": 9}`)), "one that is late changes nothing")
	kept, err := f.Mirror(ctx, m.ID)
	require.NoError(t, err)
	require.JSONEq(t, `{"compared": 3}`, string(kept.Report))
	require.EqualValues(t, 100, kept.Required)
	require.NoError(t, f.SetMirror(ctx, m.ID, 0, 0))
	shares, err = f.Mirrored(ctx)
	require.NoError(t, err)
	require.Empty(t, shares)
	kept, err = f.Mirror(ctx, m.ID)
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(kept.Report), "each share begins the count anew")

	require.NoError(t, f.AddMirrored(ctx, m.Source.ID, [][]byte{{1}, {2}, {3}}))
	require.NoError(t, f.AddMirrored(ctx, m.Target.ID, [][]byte{{4}}))
	some, err := f.TakeMirrored(ctx, m.Source.ID, 2)
	require.NoError(t, err)
	require.ElementsMatch(t, [][]byte{{1}, {2}}, some)
	some, err = f.TakeMirrored(ctx, m.Source.ID, 2)
	require.NoError(t, err)
	require.Equal(t, [][]byte{{3}}, some)
	require.NoError(t, f.exec(t, `update mirrored_reads set at = at - interval '2 minutes'`))
	some, err = f.TakeMirrored(ctx, m.Target.ID, 2)
	require.NoError(t, err)
	require.Empty(t, some, "nobody wants old ones")
	require.NoError(t, f.AddMirrored(ctx, m.Source.ID, make([][]byte, 0)))
}
