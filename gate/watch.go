package gate

import (
	"fmt"
	"math"
	"time"

	"drover/contract"
)

// Worse is what a chunk may be worse off after a switch before that counts.
type Worse struct {
	Errors  Rate // how much the error rate may grow, as a share of the requests
	Latency Rate // how many times p99 may be what it was
}

// Rate is a limit without a unit, with where it comes from.
type Rate struct {
	Name   string
	Value  float64
	Source string
}

// Floors below which nothing is judged.
const (
	fewRequests = 50                    // before and after: fewer say nothing
	slowFloor   = 50 * time.Millisecond // p99 may grow by so much whatever it was
)

// List gives the limits for a report.
func (w Worse) List() (out []contract.Limit) {
	for _, r := range []Rate{w.Errors, w.Latency} {
		out = append(out, contract.Limit{Name: r.Name, Value: fmt.Sprint(r.Value), Source: r.Source})
	}
	return out
}

// Judge compares how a chunk does after a switch with before. It names the figure
// that is past its limit, or nothing.
func (w Worse) Judge(before, after contract.Traffic) string {
	if after.Requests < fewRequests {
		return ""
	}
	if limit := before.ErrorRate() + w.Errors.Value; after.ErrorRate() > limit {
		return fmt.Sprintf("%.2f%% of the requests fail, %.2f%% did before; limit %.2f%% (%s, %s)",
			100*after.ErrorRate(), 100*before.ErrorRate(), 100*limit, w.Errors.Name, w.Errors.Source)
	}
	if before.Requests < fewRequests {
		return ""
	}
	limit := max(w.Latency.Value*before.P99MS, before.P99MS+milliseconds(slowFloor))
	if after.P99MS > limit {
		return fmt.Sprintf("p99 is %.1f ms, it was %.1f ms before; limit %.1f ms (%s, %s)", after.P99MS, before.P99MS, limit, w.Latency.Name, w.Latency.Source)
	}
	return ""
}

// Sum adds the counts of more buckets to those of sum, which grows where it has fewer.
func Sum(sum, more []int64) []int64 {
	if grow := len(more) - len(sum); grow > 0 {
		sum = append(sum, make([]int64, grow)...)
	}
	for b, n := range more {
		sum[b] += n
	}
	return sum
}

// Quantile gives the upper edge of the bucket that holds a quantile; 0 of nothing.
func Quantile(buckets []int64, q float64, edge func(int) time.Duration) time.Duration {
	var total int64
	for _, n := range buckets {
		total += n
	}
	rank := int64(math.Ceil(q * float64(total)))
	for b, n := range buckets {
		if rank -= n; total > 0 && rank <= 0 {
			return edge(b)
		}
	}
	return 0
}
