package bulkimport

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Served counts what requests of applications to a shard took: requests by bucket, by
// the proxy that sent them, since that began. A proxy that begins anew counts anew.
type Served map[string][]int64

// Heard is what the proxies say of a shard.
type Heard struct {
	Served Served
	Before map[string][][]int64 // within the minute before imports began to work there, by stretches, of those who know
	Silent bool                 // one has not spoken yet, and there may be requests of which nothing is known
}

// How courtesy moves. A level is how much an import may do at once: below 1 a share of the
// time, one piece of work after another; from 1 on so many pieces at once.
const (
	levelLeast = 1.0 / 16
	levelFirst = 1.0 / 8
	levelMost  = 8.0

	growFast  = 2.0  // while nothing was ever too much, or well below what was
	growSlow  = 1.15 // close to it
	nearly    = 0.7  // of what was too much is close
	giveWay   = 0.5
	aim       = 0.75 // of what a request may take longer
	forgive   = 0.9  // of the debt is left at the next verdict
	debtMost  = 3.0  // times one in a hundred
	tailShare = 0.01

	goneAfter    = 5 * time.Second  // without requests nobody is there
	oldAfter     = 30 * time.Second // what was heard before says nothing of now
	silentMost   = 3 * time.Second  // a proxy that says nothing for so long has nothing to say
	verdictAfter = 2 * time.Second
	verdictLate  = 5 * time.Second // whatever is known by then
	verdictOps   = 300
	learnOps     = 3000
	fewestOps    = 20
	leastSlack   = 500 * time.Microsecond // slower by that is nothing that an application feels

	stillEvery   = time.Minute
	stillSoon    = 20 * time.Second // where it is too slow whatever is done
	stillFor     = 4500 * time.Millisecond
	stillMost    = 2 * stillFor            // where nothing is heard
	stillSettles = 1500 * time.Millisecond // until what proxies say is all of a time without work
)

// courtesy lets applications go first on a shard: from what the proxies measure it finds
// how much an import may do there without one request in a hundred taking longer than
// allowed. What it measures by is what requests took in the minute before imports began,
// or, where nobody knows that, what they take beside very little of one. It begins low,
// doubles while all is well, gives way at once when it is not, and comes close again to
// where it was too much only slowly. It never goes below levelLeast. Now and then it does
// nothing at all for a while, the sooner where requests are slow even then: what they take
// meanwhile becomes what it measures by.
type courtesy struct {
	edge   func(bucket int) time.Duration // upper edges of the buckets
	slower float64                        // allowed, times p99 without the import

	began    time.Time // of listening
	before   Served    // as it was heard last; nil: never
	listened time.Time // last
	heard    time.Time // the last request
	crowd    bool      // somebody is there
	unsure   bool      // or may be
	level    float64   // only while somebody is
	tooFar   float64   // the level at which it was too much last, 0: none was

	since  time.Time     // of what follows
	window []int64       // requests by bucket
	skip   bool          // what comes next belongs to another level
	still  time.Time     // since when nothing is done, zero: it is
	stood  time.Time     // when that was last
	calm   time.Duration // p99 without the import, as far as is known
	alone  time.Duration // and in the last time in which nothing was done
	tail   time.Duration // p99 by the last verdict
	rate   float64       // requests per second by it
	debt   float64       // requests that took too long lately, beyond one in a hundred
}

// hear takes in what the proxies say at a time and decides anew when that is enough to
// decide by.
func (c *courtesy) hear(now time.Time, h Heard) {
	if c.edge == nil {
		return
	}
	if now.Sub(c.listened) > oldAfter { // no import ran: what was then says nothing of now
		c.before, c.crowd, c.unsure, c.began = nil, false, false, now
	}
	c.listened = now
	came := h.Served.came(c.before)
	more, n := h.Served.since(c.before)
	c.before = h.Served
	waits := h.Silent && now.Sub(c.began) < silentMost
	switch {
	case came, n > 0:
		c.heard = now
		if !c.crowd || c.unsure {
			c.meet(now, h.Before)
			return
		}
	case waits && !c.crowd:
		c.crowd, c.unsure, c.level, c.calm, c.still = true, true, levelFirst, 0, time.Time{}
	case c.unsure && !waits, !c.unsure && now.Sub(c.heard) >= goneAfter:
		c.crowd, c.unsure = false, false
	}
	if c.crowd && !c.unsure {
		c.weigh(now, more, n)
	}
}

// meet begins with those who are there.
func (c *courtesy) meet(now time.Time, before map[string][][]int64) {
	c.crowd, c.unsure, c.level = true, false, levelFirst
	c.tooFar, c.alone, c.tail, c.rate, c.debt = 0, 0, 0, 0, 0
	c.still, c.stood = time.Time{}, now
	c.calm = c.usual(before)
	c.restart(now)
}

// usual is p99 in most stretches of the time before: what a shard does once in a minute, as
// checkpoints, no verdict is to be measured by. Where so few requests came that it is not
// known of a stretch, it is that of all; 0: nor of that.
func (c *courtesy) usual(before map[string][][]int64) time.Duration {
	var all []int64
	var stretches [][]int64 // the newest first
	for _, word := range before {
		for n := range word {
			one := word[len(word)-1-n]
			if all = add(all, one); n == len(stretches) {
				stretches = append(stretches, nil)
			}
			stretches[n] = add(stretches[n], one)
		}
	}
	if count(all) < fewestOps {
		return 0
	}
	var tails []time.Duration
	for _, one := range stretches {
		if count(one) >= verdictOps {
			tails = append(tails, c.quantile(one, 1-tailShare))
		}
	}
	if len(tails) < len(stretches)/2 || len(tails) == 0 {
		return c.quantile(all, 1-tailShare)
	}
	slices.Sort(tails)
	return tails[(len(tails)-1)/2]
}

// weigh takes in n requests more.
func (c *courtesy) weigh(now time.Time, more []int64, n float64) {
	switch {
	case c.stands():
		if now.Sub(c.still) > stillSettles {
			c.window = add(c.window, more)
		}
		if now.Sub(c.still) >= stillFor {
			c.goOn(now)
		}
	case n == 0:
	case c.skip:
		c.skip, c.since = false, now
	default:
		c.window = add(c.window, more)
		c.judge(now)
	}
}

// stands reports whether nothing is to be done now.
func (c *courtesy) stands() bool { return !c.still.IsZero() }

// goOn ends a time in which nothing was done: that is how it is without the import, as far
// as two such times in a row agree. One alone may have met what a shard does now and then.
func (c *courtesy) goOn(now time.Time) {
	if count(c.window) >= fewestOps {
		lately := c.quantile(c.window, 1-tailShare)
		three := []time.Duration{c.calm, cmp.Or(c.alone, c.calm), lately}
		slices.Sort(three)
		c.calm, c.alone = three[1], lately
	}
	c.still, c.stood, c.debt = time.Time{}, now, 0
	c.restart(now)
}

// giveUp ends a time in which nothing was done of which nothing was learned.
func (c *courtesy) giveUp(now time.Time) {
	if c.stands() {
		c.still, c.stood = time.Time{}, now
		c.restart(now)
	}
}

// restart forgets what was heard: the level is another one from now on, and what
// comes next is still of the old one.
func (c *courtesy) restart(now time.Time) { c.since, c.window, c.skip = now, nil, true }

// judge decides by the window.
func (c *courtesy) judge(now time.Time) {
	n, took := count(c.window), now.Sub(c.since)
	limit := c.limit()
	slow := c.above(limit)
	most := tailShare * n
	enough := verdictOps
	if c.calm == 0 {
		enough = learnOps
	}
	if took < verdictLate && (took < verdictAfter || n < float64(enough)) {
		return
	}
	c.rate = n / max(took, time.Millisecond).Seconds()
	known := n >= fewestOps
	if known {
		c.tail = c.quantile(c.window, 1-tailShare)
		if c.calm == 0 {
			c.calm = c.tail
		}
	}
	if limit > 0 {
		c.debt = max(-most, min(forgive*c.debt+slow-most, debtMost*most))
	}
	again := stillEvery
	switch {
	case !known, limit == 0:
		c.grow()
	case slow > most && c.debt > math.Sqrt(most):
		if c.level == levelLeast {
			again = stillSoon
		}
		c.tooFar, c.level = c.level, max(levelLeast, giveWay*c.level)
	case slow < most && c.debt <= 0:
		c.grow()
	}
	if known && now.Sub(c.stood) >= again {
		c.still = now
	}
	c.restart(now)
}

// grow raises the level.
func (c *courtesy) grow() {
	by := growFast
	if c.tooFar > 0 && growFast*c.level > nearly*c.tooFar {
		by = growSlow
	}
	c.level = min(levelMost, by*c.level)
	if c.level >= c.tooFar {
		c.tooFar = 0
	}
}

// limit is what it keeps requests to, 0 while that is not known: what is known of them
// has an error.
func (c *courtesy) limit() time.Duration {
	if c.calm == 0 {
		return 0
	}
	return max(time.Duration((1+aim*(c.slower-1))*float64(c.calm)), c.calm+leastSlack)
}

// reason says to whom it gives way, "" for nobody.
func (c *courtesy) reason() string {
	if !c.crowd {
		return ""
	}
	if c.unsure {
		return fmt.Sprintf("whether applications use it is being asked: works %.2g%% of the time", 100*c.level)
	}
	what := "applications use it; how long their requests take without the import is being measured"
	if c.calm > 0 && c.tail == 0 {
		what = fmt.Sprintf("applications use it, p99 of their requests is kept to %s (%.3g times %s)", short(c.limit()), float64(c.limit())/float64(c.calm), short(c.calm))
	}
	if c.tail > 0 {
		what = fmt.Sprintf("p99 of %.0f requests/s is %s, kept to %s (%.3g times %s)", c.rate, short(c.tail), short(c.limit()), float64(c.limit())/float64(c.calm), short(c.calm))
	}
	if c.stands() {
		return what + ": does nothing for a while, to see how it is without the import"
	}
	if c.level >= 1 {
		return fmt.Sprintf("%s: does up to %d things at once", what, int(c.level))
	}
	return fmt.Sprintf("%s: works %.2g%% of the time", what, 100*c.level)
}

// short is a time for people.
func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// since gives what was counted after an earlier word, and how much that is. Of a proxy
// that was not there or has begun anew, nothing is known yet.
func (s Served) since(before Served) (more []int64, n float64) {
next:
	for proxy, counts := range s {
		old, ok := before[proxy]
		if !ok || len(old) > len(counts) {
			continue
		}
		lately := append([]int64(nil), counts...)
		for b, x := range old {
			if lately[b] -= x; lately[b] < 0 {
				continue next
			}
		}
		more = add(more, lately)
	}
	return more, count(more)
}

// came reports whether a proxy has counted requests that was not heard before.
func (s Served) came(before Served) bool {
	for proxy, counts := range s {
		if _, ok := before[proxy]; !ok && count(counts) > 0 {
			return true
		}
	}
	return false
}

// add sums two histograms up.
func add(a, b []int64) []int64 {
	if len(a) < len(b) {
		a = append(a, make([]int64, len(b)-len(a))...)
	}
	for i, n := range b {
		a[i] += n
	}
	return a
}

// count is how many a histogram holds.
func count(h []int64) (n float64) {
	for _, x := range h {
		n += float64(x)
	}
	return n
}

// above is how many of the window took longer than a time; within a bucket they are
// taken to lie evenly.
func (c *courtesy) above(limit time.Duration) (n float64) {
	lower := time.Duration(0)
	for b, x := range c.window {
		upper := c.edge(b)
		if upper > limit {
			n += float64(x) * min(1, float64(upper-limit)/float64(upper-lower))
		}
		lower = upper
	}
	return n
}

// quantile of a histogram.
func (c *courtesy) quantile(h []int64, q float64) time.Duration {
	left := q * count(h)
	lower := time.Duration(0)
	for b, x := range h {
		upper := c.edge(b)
		if left <= float64(x) && x > 0 {
			return lower + time.Duration(float64(upper-lower)*left/float64(x))
		}
		left -= float64(x)
		lower = upper
	}
	return lower
}
