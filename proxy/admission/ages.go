package admission

import "time"

const (
	// tick is how often a gate at which somebody waits is looked at.
	tick = 100 * time.Millisecond
	// youth is for how many ticks a request counts against its limit. One that runs
	// longer, a scan perhaps, is not what others queue behind on the shard, and must
	// not keep them out.
	youth = 10
)

// ages counts those that run and came lately, by the tick in which they came.
type ages struct {
	at    int64
	came  [youth]int
	total int
}

// turn forgets who grew old.
func (a *ages) turn(since time.Duration) {
	at := int64(since / tick)
	for range min(at-a.at, youth) {
		a.at++
		a.total -= a.came[a.at%youth]
		a.came[a.at%youth] = 0
	}
	a.at = at
}

// enter counts one in and gives the tick.
func (a *ages) enter(since time.Duration) int64 {
	a.turn(since)
	a.came[a.at%youth]++
	a.total++
	return a.at
}

// leave counts out one that came at a tick.
func (a *ages) leave(since time.Duration, came int64) {
	a.turn(since)
	if a.at-came < youth {
		a.came[came%youth]--
		a.total--
	}
}

// young is how many of those that run came lately.
func (a *ages) young(since time.Duration) int {
	a.turn(since)
	return a.total
}
