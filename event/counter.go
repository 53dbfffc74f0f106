package event

import "drover/internal/failure"

// wakeSeconds is how much of the shard's time may follow a hole before the
// counter gives up hope that capture sends again what is missing.
const wakeSeconds = 60

// Counter follows one partition of a captured log and says of each record
// whether it is the next one. The zero value accepts any record as its first.
//
// Capture sends again whatever it is not sure of, with the same numbers, so a
// record may come twice, and after a failed produce request a few records may
// stand in front of those they follow. Each record names its predecessor, each
// marker the number of records since the last one: what is not the next record
// is left out, what can't be made up for is an error.
type Counter struct {
	Seq   int64 // of the newest accepted record
	Since int64 // records accepted since the newest marker

	counts bool   // Since begins at a marker
	hole   uint32 // cluster time of the first record beyond a hole, seconds; 0: no hole
}

// Resume gives the counter of a lane whose checkpoint says seq and since: the
// newest record it accepted, and how many since the newest marker.
func Resume(seq, since int64) Counter { return Counter{Seq: seq, Since: since, counts: seq > 0} }

// Accept reports whether e is the next record. One that is not (a repetition,
// or ahead of what it follows) must be left out. An error is final: the log is
// not the one that the counter has followed, or lacks records.
func (c *Counter) Accept(e *Event) (bool, error) {
	if c.Seq > 0 {
		if e.Seq <= c.Seq {
			return false, nil
		}
		if next, err := c.follows(e); !next {
			return false, err
		}
	}
	c.hole = 0
	if e.Op != Mark {
		c.Seq = e.Seq
		c.Since++
		return true, nil
	}
	if c.counts && c.Since != e.Count {
		return false, failure.New(failure.Mismatch, "lane.count_mismatch",
			"marker at seq %d counts %d records since the last one, %d came", e.Seq, e.Count, c.Since).
			WithHint("the captured log lacks records or holds strangers: copy the chunk again")
	}
	c.Seq, c.Since, c.counts = e.Seq, 0, true
	return true, nil
}

// follows reports whether e, which is newer than the newest accepted record, is
// the one right after it.
func (c *Counter) follows(e *Event) (bool, error) {
	switch {
	case e.Prev == c.Seq:
		return true, nil
	case e.Prev == 0:
		return false, failure.New(failure.Mismatch, "lane.log_restarted",
			"the log begins anew at seq %d after seq %d", e.Seq, c.Seq).
			WithHint("capture lost its position and started over: copy the chunk again")
	case e.Prev < c.Seq:
		return false, failure.New(failure.Mismatch, "lane.count_mismatch",
			"seq %d follows seq %d, but seq %d was there too", e.Seq, e.Prev, c.Seq).
			WithHint("the captured log holds strangers: copy the chunk again")
	case c.hole == 0:
		c.hole = max(e.ClusterTime.T, 1)
	case e.ClusterTime.T > c.hole+wakeSeconds:
		return false, failure.New(failure.Mismatch, "lane.count_mismatch",
			"seq %d to %d never came", c.Seq+1, e.Prev).
			WithHint("the captured log lacks records: copy the chunk again")
	}
	return false, nil
}
