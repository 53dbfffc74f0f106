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

// Answers counts what requests to one shard took: on the shard and in the queue for it,
// without the time that they were held for a switch.
type Answers struct {
	Shard  string    `json:"shard"`
	Took   []int64   `json:"took"`   // requests by bucket since the proxy began, as far as there are any
	Lately [][]int64 `json:"lately"` // of them those of the last minute, in stretches of 10 s, the newest last
}

// answers counts for every shard.
type answers struct {
	by sync.Map // *shardAnswers by name of the shard
}

// shardAnswers counts for one. What it was is noted as the list is read, by one reader.
type shardAnswers struct {
	counts [answerBuckets]atomic.Int64
	marks  [][answerBuckets]int64 // what was counted by the end of each stretch, the oldest first
	marked time.Time              // the newest of them
}

// How answers of late are told.
const (
	stretchFor    = 10 * time.Second
	mostStretches = 6
)

// count notes one.
func (a *answers) count(shard string, took time.Duration) {
	s, ok := a.by.Load(shard)
	if !ok {
		s, _ = a.by.LoadOrStore(shard, new(shardAnswers))
	}
	s.(*shardAnswers).counts[answerScale.bucket(took)].Add(1) //nolint:forcetypeassert // as it was stored
}

// list gives all of them. One caller at a time.
func (a *answers) list(now time.Time) []Answers {
	out := []Answers{}
	for shard, s := range a.by.Range {
		total, lately := s.(*shardAnswers).read(now)                                           //nolint:forcetypeassert // as it was stored
		out = append(out, Answers{Shard: shard.(string), Took: filled(total), Lately: lately}) //nolint:forcetypeassert // as it was stored
	}
	return out
}

// read gives what was counted, and what of it in each stretch of late; in the first one as
// far as it has come.
func (s *shardAnswers) read(now time.Time) (total [answerBuckets]int64, lately [][]int64) {
	for b := range s.counts {
		total[b] = s.counts[b].Load()
	}
	if len(s.marks) == 0 { // all that there is came since the list was read last
		s.marks, s.marked = append(s.marks, [answerBuckets]int64{}), now
	}
	if now.Sub(s.marked) >= stretchFor {
		s.marks, s.marked = append(s.marks, total), now
		s.marks = s.marks[max(0, len(s.marks)-1-mostStretches):]
	}
	ends := s.marks[1:]
	if len(ends) == 0 {
		ends = [][answerBuckets]int64{total}
	}
	for n, end := range ends {
		for b := range end {
			end[b] -= s.marks[n][b]
		}
		lately = append(lately, filled(end))
	}
	return total, lately
}

// filled gives counts up to the last bucket that holds some.
func filled(counts [answerBuckets]int64) []int64 {
	out := []int64{}
	for b, n := range counts {
		if n > 0 {
			out = append(append(out, make([]int64, b-len(out))...), n)
		}
	}
	return out
}
