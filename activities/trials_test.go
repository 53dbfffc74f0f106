package activities

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/shard"
)

// triedSet is a shard whose primary can be exchanged.
type triedSet struct {
	recorded, can chunk.Capabilities
	primary       shard.Identity
	broken        error
	trials        int
}

func (s *triedSet) Shard() chunk.Shard { return chunk.Shard{Name: "a", Capabilities: s.recorded} }

func (s *triedSet) Identity(context.Context) (shard.Identity, error) { return s.primary, nil }

func (s *triedSet) Probe(context.Context) (chunk.Capabilities, error) {
	s.trials++
	return s.can, s.broken
}

// SetCapabilities implements [capabilityRows].
func (s *triedSet) SetCapabilities(_ context.Context, _ string, c chunk.Capabilities) error {
	s.recorded = c
	return nil
}

// A shard was tried when it was registered and never again: one whose servers were
// exchanged for such as list no operations was drained by a list that is always empty.
func TestEachPrimaryIsTriedOnce(t *testing.T) {
	t.Parallel()

	s := &triedSet{
		recorded: chunk.Capabilities{ListsOperations: true}, can: chunk.Capabilities{ListsOperations: true},
		primary: shard.Identity{Host: "a1", Term: 3, Process: bson.NewObjectID()},
	}
	var t1 trials
	try := func() string {
		t.Helper()
		said, err := t1.try(t.Context(), s, s)
		require.NoError(t, err)
		return said
	}
	require.Equal(t, "a: tried", try())
	s.primary.Term = 4
	require.Equal(t, "a: tried", try())
	require.Equal(t, 1, s.trials, "another reign of the same process can do the same")

	s.primary.Process, s.can = bson.NewObjectID(), chunk.Capabilities{}
	s.broken = errors.New("it is busy")
	_, err := t1.try(t.Context(), s, s)
	require.ErrorIs(t, err, s.broken)
	require.True(t, s.recorded.ListsOperations, "what could not be tried says nothing")
	s.broken = nil
	_, err = t1.try(t.Context(), s, s)
	require.ErrorContains(t, err, "it is busy", "a gate looks each second, and each trial is work for a busy server")
	last := t1.on["a"]
	last.when = last.when.Add(-trialAgain)
	t1.on["a"] = last
	require.Equal(t, "a: tried, other than on record", try())
	require.False(t, s.recorded.ListsOperations)
	require.Equal(t, "a: tried", try())
	require.Equal(t, 3, s.trials)
}

// A switch goes by what was found last, whichever worker found it; who is in a window
// keeps its connections, and who enters one meanwhile waits for nobody's dialling.
func TestSideIsOpenedAnewWhenItIsStale(t *testing.T) {
	t.Parallel()

	c := &sideCache{slots: map[string]*sideSlot{}}
	open := func(context.Context, string) (*Side, error) { return &Side{fencer: &shard.Fencer{}}, nil }
	always := func(*Side) bool { return true }
	require.NoError(t, c.renew(t.Context(), "a", always, open), "nothing is kept of it")
	get := func() *Side {
		t.Helper()
		s, err := c.get(t.Context(), "a", open)
		require.NoError(t, err)
		return s
	}
	before := get()
	require.NoError(t, c.renew(t.Context(), "a", func(*Side) bool { return false }, open))
	require.Same(t, before, get())
	away := errors.New("its members cannot be dialled")
	require.ErrorIs(t, c.renew(t.Context(), "a", always, func(context.Context, string) (*Side, error) { return nil, away }), away)
	require.Same(t, before, get())
	require.NoError(t, c.renew(t.Context(), "a", func(s *Side) bool { return s == before }, func(ctx context.Context, name string) (*Side, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		same, err := c.get(ctx, name, open)
		require.NoError(t, err, "one who asks meanwhile waits")
		require.Same(t, before, same)
		return open(ctx, name)
	}))
	require.NotSame(t, before, get())
}
