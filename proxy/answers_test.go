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
	ten := answerScale.bucket(10 * time.Millisecond)
	a.count("a", time.Millisecond)
	require.Equal(t, [][]int64{read().Took}, read().Lately, "the proxy has begun")
	for range 90 {
		now = now.Add(time.Second)
		a.count("a", 10*time.Millisecond)
		a.list(now)
	}
	one := read()
	require.EqualValues(t, 90, one.Took[ten])
	require.Len(t, one.Lately, mostStretches)
	for _, stretch := range one.Lately {
		require.EqualValues(t, 10, stretch[ten])
		for _, n := range stretch[:ten] {
			require.Zero(t, n, "that was more than a minute ago")
		}
	}
	now = now.Add(time.Hour)
	one = read()
	require.Len(t, one.Lately, mostStretches)
	require.Equal(t, []int64{}, one.Lately[mostStretches-1], "nobody came")
}
