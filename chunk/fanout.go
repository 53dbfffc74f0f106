package chunk

import (
	"maps"
	"slices"
)

// FanOut counts the requests that concerned a chunk by how many chunks each of them
// concerned.
type FanOut struct {
	// Pinned requests name one value of the shard key: they concern one chunk, however
	// the key space is cut.
	Pinned int64 `json:"pinned,omitempty"`
	// Wide are all others: cut the chunk, and they may concern every part of it.
	Wide map[int]int64 `json:"wide,omitempty"`
}

// Add counts what o has too.
func (f *FanOut) Add(o FanOut) {
	f.Pinned += o.Pinned
	for n, requests := range o.Wide {
		if f.Wide == nil {
			f.Wide = map[int]int64{}
		}
		f.Wide[n] += requests
	}
}

// Requests is how many there were.
func (f FanOut) Requests() int64 {
	sum := f.Pinned
	for _, n := range f.Wide {
		sum += n
	}
	return sum
}

// Cut gives what is to be expected, at most, when the chunk is replaced by parts.
func (f FanOut) Cut(parts int) FanOut {
	out := FanOut{Pinned: f.Pinned, Wide: map[int]int64{}}
	for n, requests := range f.Wide {
		out.Wide[n+parts-1] += requests
	}
	return out
}

// Quantile gives the number of chunks that the share q of the requests do not exceed;
// 0 when there were none.
func (f FanOut) Quantile(q float64) int {
	total := f.Requests()
	if total == 0 {
		return 0
	}
	need, seen, reached := q*float64(total), float64(f.Pinned), 1
	for _, n := range slices.Sorted(maps.Keys(f.Wide)) {
		if seen > 0 && seen >= need {
			break
		}
		seen, reached = seen+float64(f.Wide[n]), n
	}
	return reached
}

// Mean is the mean number of chunks.
func (f FanOut) Mean() float64 {
	sum := f.Pinned
	for n, requests := range f.Wide {
		sum += int64(n) * requests
	}
	return float64(sum) / float64(max(1, f.Requests()))
}
