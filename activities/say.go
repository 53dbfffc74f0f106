package activities

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"drover/chunk"
	"drover/internal/pause"
	"drover/metadata"
)

// How long words wait.
const (
	wordPatience  = beatEvery / 2          // for the metadata: one that hangs must not stop a heartbeat
	gather        = 5 * time.Millisecond   // for others of a few moves
	longestGather = 250 * time.Millisecond // and of a crowd
)

// words gathers what moves say about themselves: those of a crowd go to the metadata
// together.
type words struct {
	mu   sync.Mutex
	said map[chunk.MigrationID]metadata.Word
	send shared[struct{}]
}

// wordKeeper keeps words for others to read.
type wordKeeper interface {
	SetWords(ctx context.Context, all ...metadata.Word) error
}

// keep returns when the words are kept, or newer ones of the same migrations in their place.
func (w *words) keep(ctx context.Context, crowd *Crowd, in wordKeeper, all ...metadata.Word) error {
	ctx, cancel := context.WithTimeout(ctx, wordPatience)
	defer cancel()
	w.add(all)
	_, err := w.send.do(ctx, "", func(ctx context.Context) (struct{}, error) {
		if err := pause.For(ctx, crowd.every(gather, longestGather)); err != nil {
			return struct{}{}, err
		}
		if all := w.take(); len(all) > 0 { // none: the answer before this one took it along
			return struct{}{}, in.SetWords(ctx, all...)
		}
		return struct{}{}, nil
	})
	return err
}

// add puts words with what is not kept yet of the same migrations.
func (w *words) add(all []metadata.Word) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.said == nil {
		w.said = map[chunk.MigrationID]metadata.Word{}
	}
	for _, said := range all {
		before := w.said[said.Migration]
		if said.Progress == nil {
			said.Progress = before.Progress
		}
		if said.Lanes == nil {
			said.Lanes = before.Lanes
		}
		w.said[said.Migration] = said
	}
}

// take gives all words that were said since the last time.
func (w *words) take() []metadata.Word {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.SortedFunc(maps.Values(w.said), func(a, b metadata.Word) int { return cmp.Compare(a.Migration, b.Migration) })
	clear(w.said)
	return all
}
