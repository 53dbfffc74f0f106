package proxy

import (
	"math"
	"time"
)

// scale is a row of latency buckets, each step times as wide as the one before.
type scale struct {
	first   time.Duration // upper edge of the first
	step    float64
	buckets int
}

// edge is the upper edge of a bucket.
func (s scale) edge(bucket int) time.Duration {
	return time.Duration(float64(s.first) * math.Pow(s.step, float64(bucket)))
}

// bucket gives the one that a latency belongs to; the last takes all that is longer.
func (s scale) bucket(took time.Duration) int {
	if took <= s.first {
		return 0
	}
	return min(s.buckets-1, int(math.Ceil(math.Log(float64(took)/float64(s.first))/math.Log(s.step))))
}
