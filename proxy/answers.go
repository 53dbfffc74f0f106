package proxy

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Answer buckets of a shard: each is answerStep times as wide as the one before, fine
// enough to see a tail grow by a fifth.
const (
	answerFirst   = 100 * time.Microsecond
	answerStep    = 1.1
	answerBuckets = 120 // the last begins at about 8 s
)

// AnswerEdge is the upper edge of a bucket of [Answers.Took].
func AnswerEdge(bucket int) time.Duration {
	return time.Duration(float64(answerFirst) * math.Pow(answerStep, float64(bucket)))
}

// Answers counts what requests to one shard took since the proxy began: on the shard and
// in the queue for it, without the time that they were held for a switch.
type Answers struct {
	Shard string  `json:"shard"`
	Took  []int64 `json:"took"` // requests by bucket, as far as there are any
}

// answers counts for every shard.
type answers struct {
	by sync.Map // *[answerBuckets]atomic.Int64 by name of the shard
}

// count notes one.
func (a *answers) count(shard string, took time.Duration) {
	counts, ok := a.by.Load(shard)
	if !ok {
		counts, _ = a.by.LoadOrStore(shard, new([answerBuckets]atomic.Int64))
	}
	bucket := 0
	if took > answerFirst {
		bucket = min(answerBuckets-1, int(math.Ceil(math.Log(float64(took)/float64(answerFirst))/math.Log(answerStep))))
	}
	counts.(*[answerBuckets]atomic.Int64)[bucket].Add(1) //nolint:forcetypeassert // as it was stored
}

// list gives all of them.
func (a *answers) list() []Answers {
	out := []Answers{}
	for shard, counts := range a.by.Range {
		one := Answers{Shard: shard.(string)} //nolint:forcetypeassert // as it was stored
		for b := range counts.(*[answerBuckets]atomic.Int64) {
			if n := counts.(*[answerBuckets]atomic.Int64)[b].Load(); n > 0 {
				one.Took = append(one.Took, make([]int64, b-len(one.Took))...)
				one.Took = append(one.Took, n)
			}
		}
		out = append(out, one)
	}
	return out
}
