package replication

import (
	"fmt"
	"time"
)

// Pace says whether lanes come nearer to the end of their log.
type Pace string

// The paces.
const (
	Unmeasured    Pace = "unmeasured"
	InSync        Pace = "in sync"
	CatchingUp    Pace = "catching up"
	NotConverging Pace = "not converging" // more is written than is applied, and it stays so
)

// Catchup works out, from what is measured, when the lanes of a direction reach
// the end of the log, or that they never will. It is for one goroutine.
type Catchup struct {
	samples []catchupSample
	behind  time.Time // since when less is applied than is written; zero: it is not so
}

// catchupSample is where log and lanes stood at a moment, in records of all
// partitions together.
type catchupSample struct {
	at           time.Time
	end, applied int64
}

// How a pace is judged: over a window that is longer than a hiccup, and not
// converging only after a while; fewer records than the little are no backlog.
const (
	catchupWindow  = 15 * time.Second
	catchupLeast   = 3 * time.Second
	catchupPatient = 10 * time.Second
	catchupLittle  = 1000
)

// Forecast is what a Catchup knows at a moment.
type Forecast struct {
	Pace    Pace
	Backlog int64         // records that are not dealt with
	Apply   float64       // records dealt with, a second
	Write   float64       // records written, a second
	Left    time.Duration // until in sync: backlog / (apply - write); only while catching up
	Limit   string        // what holds the lanes, in words
}

// Observe takes a sample and gives the forecast. A log or lanes that went back are
// another life: measuring begins anew.
func (c *Catchup) Observe(now time.Time, end, applied int64, lanes []Status) Forecast {
	if n := len(c.samples); n > 0 && (end < c.samples[n-1].end || applied < c.samples[n-1].applied) {
		c.samples, c.behind = nil, time.Time{}
	}
	c.samples = append(c.samples, catchupSample{now, end, applied})
	for len(c.samples) > 2 && now.Sub(c.samples[1].at) >= catchupWindow {
		c.samples = c.samples[1:]
	}
	f := Forecast{Pace: Unmeasured, Backlog: max(0, end-applied), Limit: limitOf(lanes)}
	first := c.samples[0]
	took := now.Sub(first.at)
	if took < catchupLeast {
		return f
	}
	f.Apply = float64(applied-first.applied) / took.Seconds()
	f.Write = float64(end-first.end) / took.Seconds()
	if f.Backlog < catchupLittle {
		f.Pace, c.behind = InSync, time.Time{}
		return f
	}
	f.Pace = CatchingUp
	if f.Apply > f.Write {
		c.behind = time.Time{}
		f.Left = time.Duration(float64(f.Backlog) / (f.Apply - f.Write) * float64(time.Second)).Round(time.Second)
		return f
	}
	if c.behind.IsZero() {
		c.behind = now
	}
	if now.Sub(c.behind) >= catchupPatient {
		f.Pace = NotConverging
	}
	return f
}

// limitOf says what holds lanes.
func limitOf(lanes []Status) string {
	parked, waiting := int64(0), 0
	for _, l := range lanes {
		if l.Trouble != "" {
			return "the target is not there: " + l.Trouble
		}
		parked += l.Parked
		if l.Lag < time.Second {
			waiting++
		}
	}
	switch {
	case parked > 0:
		return fmt.Sprintf("%d documents wait for a unique key on the target", parked)
	case len(lanes) > 0 && waiting == len(lanes):
		return "reading the captured log"
	case waiting > 0:
		return fmt.Sprintf("the target's writes, in %d of %d lanes: a chunk is applied by one", len(lanes)-waiting, len(lanes))
	default:
		return "the target's writes"
	}
}

// String says it to people, with the choices where there are some.
func (f Forecast) String() string {
	rates := fmt.Sprintf("%d records behind, %.0f/s applied, %.0f/s written", f.Backlog, f.Apply, f.Write)
	switch f.Pace {
	case CatchingUp:
		if f.Left > 0 {
			return fmt.Sprintf("%s, in sync in %s", rates, f.Left)
		}
		return rates
	case NotConverging:
		return fmt.Sprintf("not converging: %s, limited by %s; it will not switch: write less, split the chunk, move it to a shard with more room, or abort", rates, f.Limit)
	case InSync, Unmeasured:
	}
	return ""
}
