package proxy

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAnswersAreCountedByShard: from the beginning on, each in the bucket that holds it.
func TestAnswersAreCountedByShard(t *testing.T) {
	t.Parallel()
	var a answers
	now := time.Unix(1_700_000_000, 0)
	require.Equal(t, []Answers{}, a.list(now), "an empty list is no null")
	for range 3 {
		a.count("a", 0)
	}
	a.count("a", 20*time.Millisecond)
	a.count("b", time.Hour)
	require.Len(t, a.list(now), 2)
	for _, one := range a.list(now) {
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

// TestAnswersOfLateAreThoseOfAMinute: what was counted earlier is not among them, nor lost
// from the whole.
func TestAnswersOfLateAreThoseOfAMinute(t *testing.T) {
	t.Parallel()
	var a answers
	now := time.Unix(1_700_000_000, 0)
	read := func() Answers { return a.list(now)[0] }
	a.count("a", time.Millisecond)
	require.Equal(t, read().Took, read().Lately, "the proxy has begun")
	for range 90 {
		now = now.Add(time.Second)
		a.count("a", 10*time.Millisecond)
		a.list(now)
	}
	one := read()
	last := len(one.Took) - 1
	require.EqualValues(t, 90, one.Took[last])
	require.Len(t, one.Lately, len(one.Took))
	require.LessOrEqual(t, one.Lately[last], int64(60))
	require.GreaterOrEqual(t, one.Lately[last], int64(60-markEvery/time.Second))
	for _, n := range one.Lately[:last] {
		require.Zero(t, n, "that was more than a minute ago")
	}
	now = now.Add(time.Hour)
	a.count("a", time.Millisecond)
	one = read()
	require.EqualValues(t, 2, one.Took[slices.IndexFunc(one.Took, positive)])
	require.EqualValues(t, 1, one.Lately[slices.IndexFunc(one.Lately, positive)])
	require.LessOrEqual(t, one.Lately[len(one.Lately)-1], int64(markEvery/time.Second), "nobody read it meanwhile")
}

// positive tells buckets that hold something.
func positive(n int64) bool { return n > 0 }
