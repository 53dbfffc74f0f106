package activities

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
	"drover/validation"
)

// keptRows are the rows of verifications, of one migration.
type keptRows map[chunk.AttemptID]metadata.Verification

// Verification implements [verificationRows].
func (r keptRows) Verification(_ context.Context, _ chunk.MigrationID, direction chunk.AttemptID) (metadata.Verification, bool, error) {
	v, ok := r[direction]
	return v, ok, nil
}

// SaveVerification implements [verificationRows].
func (r keptRows) SaveVerification(_ context.Context, v metadata.Verification) error {
	r[v.Direction] = v
	return nil
}

// The comparison of a drill put an empty state in the place of that of the verification
// beside it; a worker that died then took everything since the switch for unverified.
func TestValidationLeavesTheVerificationBesideIt(t *testing.T) {
	t.Parallel()

	rows := keptRows{}
	in := contract.DirectionInput{Direction: 7}
	get := func() verification {
		t.Helper()
		v, err := keptVerification(t.Context(), rows, 0, 7)
		require.NoError(t, err)
		return v
	}
	require.False(t, get().known)
	scan := &validation.Checkpoint{Collection: "legs", Foreign: validation.Offsets{4}}
	require.NoError(t, keepScan(t.Context(), rows, in, scan))
	require.True(t, get().known)
	require.False(t, get().begun(), "there is nothing to go on from yet")
	require.Equal(t, scan.Foreign, get().state.Scan.Foreign)

	begun := verification{state: validation.WatchState{Offsets: validation.Offsets{3, 4}, Foreign: validation.Offsets{5, 6}}, report: []byte(`{"rounds": 3}`)}
	require.NoError(t, begun.keep(t.Context(), rows, in))
	require.Nil(t, get().state.Scan)
	for _, scan := range []*validation.Checkpoint{scan, nil} {
		require.NoError(t, keepScan(t.Context(), rows, in, scan))
		require.Equal(t, scan != nil, get().state.Scan != nil)
		require.True(t, get().begun())
		require.Equal(t, begun.state.Offsets, get().state.Offsets)
		require.Equal(t, begun.state.Foreign, get().state.Foreign)
		require.JSONEq(t, string(begun.report), string(get().report))
	}
}
