package activities

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/metadata"
)

// kept is a metadata that counts statements.
type kept struct {
	statements int
	words      map[chunk.MigrationID]metadata.Word
	err        error
	hangs      bool
}

// SetWords implements [wordKeeper].
func (k *kept) SetWords(ctx context.Context, all ...metadata.Word) error {
	if k.hangs {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	k.statements++
	for _, w := range all {
		k.words[w.Migration] = w
	}
	return k.err
}

// What a crowd says at about the same time is one statement; each of the two words of a
// move is kept, and nobody goes on before his is.
func TestWordsOfACrowdGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, crowd, w := &kept{words: map[chunk.MigrationID]metadata.Word{}}, &Crowd{}, &words{}
		say := func(all ...metadata.Word) error { return w.keep(t.Context(), crowd, store, all...) }
		began := time.Now()
		require.NoError(t, say(metadata.Word{Migration: 1, Lanes: json.RawMessage(`1`)}))
		require.Equal(t, gather, time.Since(began), "who is alone hardly waits")
		require.Equal(t, 1, store.statements)
		began = time.Now()
		require.NoError(t, say(metadata.Word{Migration: 1, Lanes: json.RawMessage(`6`)}, metadata.Word{Migration: 2, Lanes: json.RawMessage(`7`)}))
		require.Equal(t, gather, time.Since(began), "the legs of a move say it at once")
		require.Equal(t, 2, store.statements)
		store.statements = 0
		for range 2000 {
			defer crowd.join()()
		}
		var g errgroup.Group
		for id := range chunk.MigrationID(500) {
			g.Go(func() error { return say(metadata.Word{Migration: id, Progress: json.RawMessage(`2`)}) })
			g.Go(func() error { return say(metadata.Word{Migration: id, Lanes: json.RawMessage(`3`)}) })
		}
		require.NoError(t, g.Wait())
		require.Less(t, store.statements, 4)
		require.Len(t, store.words, 500)
		for id, word := range store.words {
			require.Equal(t, metadata.Word{Migration: id, Progress: json.RawMessage(`2`), Lanes: json.RawMessage(`3`)}, word)
		}
		store.err = errors.New("down")
		require.ErrorIs(t, say(metadata.Word{Migration: 1, Lanes: json.RawMessage(`4`)}), store.err)
		store.hangs = true
		require.ErrorIs(t, say(metadata.Word{Migration: 1, Lanes: json.RawMessage(`5`)}), context.DeadlineExceeded, "no heartbeat waits for it")
		synctest.Wait()
	})
}
