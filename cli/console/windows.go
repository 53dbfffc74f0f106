package console

import (
	"fmt"
	"math"
	"slices"

	"drover/metadata"
)

// Histogram is how long switches kept writes waiting.
type Histogram struct {
	Buckets []Bucket `json:"buckets"`
	Text    string   `json:"text"` // of those that were published
}

// Bucket is how many windows were so long.
type Bucket struct {
	UpTo      string `json:"upTo"`
	Published int    `json:"published"`
	WentBack  int    `json:"wentBack"`
	High      int    `json:"-"` // percent of the highest bucket
	Good      int    `json:"-"` // percent of the bucket that was published
}

// bucketEnds are where buckets end, in seconds; the last one has no end.
var bucketEnds = []float64{0.05, 0.1, 0.2, 0.3, 0.5, 1, 2}

// histogram counts windows.
func histogram(all []metadata.Window) (h Histogram) {
	if len(all) == 0 {
		return h
	}
	h.Buckets = make([]Bucket, len(bucketEnds)+1)
	for i, end := range bucketEnds {
		h.Buckets[i].UpTo = fmt.Sprintf("to %.0f ms", 1000*end)
	}
	h.Buckets[len(bucketEnds)].UpTo = "longer"
	var good []float64
	for _, w := range all {
		i, _ := slices.BinarySearch(bucketEnds, w.Seconds)
		if w.Published {
			h.Buckets[i].Published++
			good = append(good, w.Seconds)
		} else {
			h.Buckets[i].WentBack++
		}
	}
	highest := 0
	for _, b := range h.Buckets {
		highest = max(highest, b.Published+b.WentBack)
	}
	for i := range h.Buckets {
		b := &h.Buckets[i]
		b.High = percent(float64(b.Published+b.WentBack), float64(highest))
		b.Good = percent(float64(b.Published), float64(b.Published+b.WentBack))
	}
	h.Text = fmt.Sprintf("%d published, %d went back", len(good), len(all)-len(good))
	if len(good) > 0 {
		slices.Sort(good)
		at := func(q float64) float64 { return 1000 * good[int(math.Ceil(q*float64(len(good))))-1] }
		h.Text += fmt.Sprintf("; of the published: p50 %.0f ms, p99 %.0f ms, longest %.0f ms", at(0.5), at(0.99), at(1))
	}
	return h
}
