package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAnswersAreCountedByShard: from the beginning on, each in the bucket that holds it.
func TestAnswersAreCountedByShard(t *testing.T) {
	t.Parallel()
	var a answers
	require.Equal(t, []Answers{}, a.list(), "an empty list is no null")
	for range 3 {
		a.count("a", 0)
	}
	a.count("a", 20*time.Millisecond)
	a.count("b", time.Hour)
	require.Len(t, a.list(), 2)
	for _, one := range a.list() {
		last := len(one.Took) - 1
		require.EqualValues(t, 1, one.Took[last])
		if one.Shard == "b" {
			require.Equal(t, answerBuckets-1, last)
			continue
		}
		require.EqualValues(t, 3, one.Took[0])
		require.GreaterOrEqual(t, AnswerEdge(last), 20*time.Millisecond)
		require.Less(t, AnswerEdge(last-1), 20*time.Millisecond)
	}
}
