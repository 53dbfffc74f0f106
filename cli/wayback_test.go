package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
)

// errInSwitch is what a move in the middle of its switch answers.
var errInSwitch = failure.New(failure.Invalid, "migration.not_now", "the target serves; rollback first, then abort")

// TestRollbackWaitsForTheEndOfASwitch, and asks then for what is possible; what is refused
// for another reason is not asked again.
func TestRollbackWaitsForTheEndOfASwitch(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		phase := func() asked {
			if time.Since(began) < 3*time.Second {
				return asked{Chunk: "shop/0001", Phase: chunk.Switching, Ask: contract.AbortUpdate}
			}
			return asked{Chunk: "shop/0001", Phase: chunk.BurnIn, Ask: contract.RollbackUpdate}
		}
		calls := map[chunk.ID]int{}
		var told []string
		q := asking{
			wait: time.Minute, tell: func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) },
			again: func(context.Context) ([]asked, error) { return []asked{phase()}, nil },
			ask: func(_ context.Context, x asked) error {
				calls[x.Chunk]++
				switch {
				case x.Phase == chunk.BurnIn && x.Chunk == "shop/0005":
					return errInSwitch
				case x.Chunk == "shop/0002":
					return errors.New("no")
				case x.Phase == chunk.Switching && x.Chunk != "shop/0004":
					return errInSwitch
				}
				return nil
			},
		}
		list, err := q.each(t.Context(), []asked{
			phase(), {Chunk: "shop/0002", Phase: chunk.Switching}, {Chunk: "shop/0003", Phase: chunk.Switching}, {Chunk: "shop/0004", Phase: chunk.Switching}, {Chunk: "shop/0005", Phase: chunk.BurnIn},
		})
		require.NoError(t, err)
		require.Equal(t, asked{Chunk: "shop/0001", Phase: chunk.BurnIn, Ask: contract.RollbackUpdate}, list[0])
		require.Equal(t, "no", list[1].Error)
		require.Equal(t, asked{Chunk: "shop/0003", Phase: chunk.Aborted}, list[2], "it went back by itself")
		require.Empty(t, list[3].Error, "one that waits in front of its switch can be given up")
		require.Equal(t, map[chunk.ID]int{"shop/0001": 4, "shop/0002": 1, "shop/0003": 1, "shop/0004": 1, "shop/0005": 1}, calls)
		require.Equal(t, []string{"2 moves are in the middle of a switch: waiting for its end, at most 1m0s"}, told)
	})
}

// TestRollbackDoesNotWaitForEver: the refusal stands when the wait is over.
func TestRollbackDoesNotWaitForEver(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		x := asked{Chunk: "shop/0001", Phase: chunk.Switching, Ask: contract.AbortUpdate}
		q := asking{
			wait: 10 * time.Second, tell: func(string, ...any) {},
			again: func(context.Context) ([]asked, error) { return []asked{x}, nil },
			ask:   func(context.Context, asked) error { return errInSwitch },
		}
		list, err := q.each(t.Context(), []asked{x})
		require.NoError(t, err)
		require.Contains(t, list[0].Error, "the target serves")
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}
