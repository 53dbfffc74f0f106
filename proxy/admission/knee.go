package admission

import (
	"math"
	"time"
)

// A knee's numbers.
const (
	// firstLimit is for a shard of which nothing is known, such as one to which a chunk
	// has just been switched: all proxies together send what they hold at once.
	firstLimit = 16
	// fine is an answer's time that is never taken for a queue on the shard.
	fine = 5 * time.Millisecond
	// tolerance is how many times an answer's time without company is no queue.
	tolerance = 2.0
	// outlier is how many times what is tolerated a single answer counts at most.
	outlier = 4
	// smoothing is the share of a lower limit that a window brings.
	smoothing = 0.3

	windowLength  = 100 * time.Millisecond
	windowSamples = 20

	// probeEvery is the time between two moments at which no company is asked for,
	// counted from the same moment on every machine: proxies whose clocks agree
	// to about tick probe a shard together, and none measures the queue of another.
	probeEvery = 30 * time.Second
	// probeSettle is for what other proxies had sent before their probes.
	probeSettle = 100 * time.Millisecond
	// probeLength is how long one lasts that has seen little, probeLongest one that
	// has seen nothing.
	probeLength  = 300 * time.Millisecond
	probeLongest = 500 * time.Millisecond
	// behindHold is for how long behind requests that were held no probe begins.
	behindHold = 2 * time.Second
	// calmSamples are enough to learn from, fewSamples the least.
	calmSamples = 8
	fewSamples  = 2
	// calmPause is the time between two lessons that came by themselves.
	calmPause = time.Second
)

// knee finds how many requests of one kind a shard serves well at once: the most for
// which answers take no longer than tolerance times what they take one by one. Beyond
// it they wait for each other on the shard, where a switch must wait for them, and
// nothing is done sooner. What they take one by one is learned whenever one is alone,
// and where that never happens though some already have to wait for room, by letting
// in one at a time for a moment (a probe).
// A limit that is used, and at which answers are quick, grows.
type knee struct {
	least, most float64
	limit       float64

	alone   time.Duration // of an answer without company; 0: not known
	calm    mean          // answers without company since alone was learned
	learned time.Time     // when alone was learned
	tried   time.Time     // when a probe learned nothing
	doubted int64         // the turn in which it was doubted
	probing time.Time     // when the probe began; zero: none
	hushed  time.Time     // until when none begins

	window mean
	since  time.Time     // when the window began
	peak   int           // running at once in it
	crowd  bool          // somebody had to wait in it
	last   time.Duration // of an answer in the window before
	full   bool          // somebody had to wait in that
	quick  time.Duration // the quickest answer in the window
}

// mean adds up times.
type mean struct {
	n   int
	sum time.Duration
}

func (m *mean) add(d time.Duration) { m.n, m.sum = m.n+1, m.sum+d }

func (m *mean) of() time.Duration { return m.sum / time.Duration(max(m.n, 1)) }

// newKnee makes one that knows nothing.
func newKnee(least, most int) knee {
	return knee{least: float64(least), most: float64(most), limit: float64(min(most, max(least, firstLimit)))}
}

// room is how many may run now.
func (k *knee) room() float64 {
	if k.probing.IsZero() {
		return k.limit
	}
	return 1
}

// sample is one answer.
type sample struct {
	took    time.Duration
	beside  int  // of its kind that ran when it came, itself too; slow ones do not count
	calm    bool // it found nobody there, and left nobody behind
	crowded bool // others wait for room
}

// add takes an answer into account.
func (k *knee) add(now time.Time, s sample) {
	if !k.probing.IsZero() {
		if s.calm && now.Sub(k.probing) >= probeSettle+s.took {
			k.calm.add(s.took)
		}
		k.look(now)
		return // who was let in before the probe tells nothing new
	}
	if s.calm {
		k.calm.add(s.took)
	}
	if k.calm.n >= calmSamples && now.Sub(k.learned) >= calmPause {
		k.learn(now)
	}
	k.doubt(now)
	if k.last > fine && k.full && !now.Before(k.hushed) && turn(now) > max(turn(k.learned), turn(k.tried)) {
		k.probing, k.calm, k.window = now, mean{}, mean{}
		return
	}
	if k.window.n == 0 {
		k.since, k.peak, k.crowd, k.quick = now, 0, false, s.took
	}
	k.quick = min(k.quick, s.took)
	k.window.add(min(s.took, outlier*k.tolerated()))
	k.peak, k.crowd = max(k.peak, s.beside), k.crowd || s.crowded
	if k.window.n < windowSamples || now.Sub(k.since) < windowLength {
		return
	}
	k.last, k.full = k.window.of(), k.crowd
	k.window = mean{}
	k.follow(k.last)
}

// turn numbers the times between probes.
func turn(t time.Time) int64 { return t.UnixNano() / int64(probeEvery) }

// look ends a probe that has seen enough, or lasts too long. One that could not even
// empty the shard in all its time halves the limit. It is repeated in the next turn only:
// what kept it may have been single requests that take long, and all others waited.
func (k *knee) look(now time.Time) {
	if k.probing.IsZero() {
		return
	}
	switch lasted := now.Sub(k.probing); {
	case k.calm.n >= calmSamples, k.calm.n >= fewSamples && lasted >= probeLength:
		k.learn(now)
	case lasted < probeLongest:
		return
	default:
		k.tried = now
		if k.calm.n == 0 {
			k.limit = max(k.least, k.limit/2)
		}
	}
	k.probing, k.calm = time.Time{}, mean{}
}

// hush keeps probes away for a while. One that is under way ends as if it had not been.
func (k *knee) hush(now time.Time) {
	k.hushed = now.Add(behindHold)
	if !k.probing.IsZero() {
		k.probing, k.calm = time.Time{}, mean{}
	}
}

// learn takes over what answers without company took. A shard that got much quicker is
// believed at once: what was learned may have been others' queue.
func (k *knee) learn(now time.Time) {
	took := k.calm.of()
	k.learned, k.calm = now, mean{}
	weight := 0.5
	if k.alone == 0 || took < k.alone/2 {
		weight = 1
	}
	k.alone += time.Duration(weight * float64(took-k.alone))
}

// doubt believes a little less, in each turn, of what was not learned again in the one
// before. What is too low lowers the limit until somebody waits, and is put right by a
// probe; what is too high would stay for ever where nobody waits and nobody is alone.
func (k *knee) doubt(now time.Time) {
	t := turn(now)
	if t > k.doubted && t > turn(k.learned)+1 {
		k.alone -= k.alone / 10
	}
	k.doubted = t
}

// tolerated is how long answers may take.
func (k *knee) tolerated() time.Duration {
	if k.alone == 0 {
		return math.MaxInt64 / outlier
	}
	return max(fine, time.Duration(tolerance*float64(k.alone)))
}

// follow sets the limit by what the answers of a full window took. A knee that has not
// seen an answer without company takes the quickest of its first window for it, which is
// rather too quick, until the next probe.
func (k *knee) follow(took time.Duration) {
	if k.alone == 0 {
		k.alone = k.quick
	}
	used := min(k.limit, float64(k.peak))
	room := math.Sqrt(used) // for growth, and for what comes unevenly
	gradient := max(0.5, float64(k.tolerated())/float64(max(took, 1)))
	switch {
	case gradient < 1:
		k.limit = used + smoothing*(used*gradient+room-used)
	case used >= k.limit-1 || k.crowd:
		k.limit += room
	}
	k.limit = min(max(k.limit, k.least), k.most)
}
