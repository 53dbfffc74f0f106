package proxy

import (
	"sync"
	"sync/atomic"
	"time"
)

// answerBuckets is how many there are; the last begins at about 8 s.
const answerBuckets = 120

// answerScale is fine enough to see a tail grow by a fifth.
var answerScale = scale{first: 100 * time.Microsecond, step: 1.1, buckets: answerBuckets}

// AnswerEdge is the upper edge of a bucket of [Answers.Took].
func AnswerEdge(bucket int) time.Duration { return answerScale.edge(bucket) }

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
	counts.(*[answerBuckets]atomic.Int64)[answerScale.bucket(took)].Add(1) //nolint:forcetypeassert // as it was stored
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
