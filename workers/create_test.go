package workers

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
)

// lockedSide is a shard whose grant lock is taken through it, and what was done there.
type lockedSide struct {
	locked string // the shard whose lock is held
	done   []string
}

// did notes a step, and the lock under which it was made.
func (s *lockedSide) did(what string) error {
	if s.locked != "" {
		what += " under " + s.locked
	}
	s.done = append(s.done, what)
	return nil
}

// GrantLock implements [grantLocks].
func (s *lockedSide) GrantLock(ctx context.Context, shard string, do func(context.Context) error) error {
	s.locked = shard
	defer func() { s.locked = "" }()
	return do(ctx)
}

// GrantToData implements [granter].
func (s *lockedSide) GrantToData(context.Context, chunk.Placement, chunk.AttemptID) error {
	return s.did("grant")
}

// Provision implements [newSide].
func (s *lockedSide) Provision(context.Context, string, []chunk.Collection, bool) error {
	return s.did("provision")
}

// CreateGrants implements [newSide].
func (s *lockedSide) CreateGrants(context.Context, chunk.Placement, chunk.AttemptID) error {
	return s.did("make grants")
}

// WriteOpenRecord implements [newSide].
func (s *lockedSide) WriteOpenRecord(context.Context, chunk.PlacementID, chunk.AttemptID, chunk.Token) error {
	return s.did("record")
}

// Adopt implements [adopter].
func (s *lockedSide) Adopt(context.Context, chunk.Placement, chunk.Token) error {
	return s.did("adopt")
}

// TestFirstGrantsAreGivenUnderTheGrantLock: a switch of another chunk changes what the
// same user holds, and each would write the list that it has read.
func TestFirstGrantsAreGivenUnderTheGrantLock(t *testing.T) {
	t.Parallel()
	r := chunk.Route{Placement: chunk.Placement{ID: 7, Shard: "a"}}
	for name, tc := range map[string]struct {
		run  func(context.Context, *lockedSide) error
		want []string
	}{
		"create": {
			func(ctx context.Context, s *lockedSide) error { return place(ctx, s, s, r, nil) },
			[]string{"provision", "make grants", "grant under a", "record"},
		},
		"adopt": {
			func(ctx context.Context, s *lockedSide) error { return adopt(ctx, s, s, r) },
			[]string{"adopt", "grant under a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s lockedSide
			require.NoError(t, tc.run(t.Context(), &s))
			require.Equal(t, tc.want, s.done)
		})
	}
}
