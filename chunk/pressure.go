package chunk

import "time"

// Counters is what a member of a shard has counted since it started, at one moment.
type Counters struct {
	Host   string        `json:"host"`
	At     time.Time     `json:"at"` // by the member's clock
	Up     time.Duration `json:"up"` // since it started
	CPU    time.Duration `json:"cpu,omitempty"`
	Cores  int           `json:"cores,omitempty"` // 0: it does not say
	Writes Latency       `json:"writes,omitzero"`
	Reads  Latency       `json:"reads,omitzero"`
	// Unknown says what it does not tell, and why.
	Unknown string `json:"unknown,omitempty"`
}

// Latency counts operations, and the time that they took together.
type Latency struct {
	Ops  int64         `json:"ops,omitempty"`
	Time time.Duration `json:"time,omitempty"`
}

// Pressure is how a shard bore its load for a while. What is not known is nil.
type Pressure struct {
	Over    time.Duration  `json:"over,omitempty"`
	CPU     *float64       `json:"cpu,omitempty"` // share of its cores, 0 to 1
	Cores   int            `json:"cores,omitempty"`
	Write   *time.Duration `json:"write,omitempty"` // mean of a write, its write concern included
	Read    *time.Duration `json:"read,omitempty"`
	Unknown string         `json:"unknown,omitempty"` // what is not known, and why
}

// KeptPressure is the newest reading of a shard, and its pressure with decay: that of
// earlier readings counts less and less.
type KeptPressure struct {
	Counters Counters
	Pressure Pressure
	Age      time.Duration
}

// Between which times two readings tell something together: the counters of a moment
// are noise, and those of an hour ago say nothing of now.
const (
	PressureLeast = 10 * time.Second
	PressureMost  = 30 * time.Minute
)

// startsApart is how far the starts of one process may lie apart by two readings: clocks
// are set meanwhile.
const startsApart = 5 * time.Second

// fewOps is how many operations have a mean that says something.
const fewOps = 20

// Since gives what lies between an earlier reading and this one. Counters of another
// member, or of one that was started anew, are no reading.
func (c Counters) Since(before Counters) Pressure {
	over := c.Up - before.Up
	p := Pressure{Over: over, Cores: c.Cores, Unknown: c.Unknown}
	switch started := c.At.Add(-c.Up).Sub(before.At.Add(-before.Up)); {
	case before.Host == "":
		p.Unknown = "this is the first reading"
	case c.Host != before.Host:
		p.Unknown = "another member is primary since the last reading"
	case over < 0 || started.Abs() > startsApart || c.CPU < before.CPU || c.Writes.before(before.Writes) || c.Reads.before(before.Reads):
		p.Unknown = "the server was started anew since the last reading"
	case over < PressureLeast:
		p.Unknown = "the last reading was just now"
	case over > PressureMost:
		p.Unknown = "the last reading was " + over.Round(time.Minute).String() + " ago"
	default:
		p.Write, p.Read = c.Writes.mean(before.Writes), c.Reads.mean(before.Reads)
		if c.CPU > 0 && before.CPU > 0 && c.Cores > 0 {
			share := min(1, (c.CPU-before.CPU).Seconds()/over.Seconds()/float64(c.Cores))
			p.CPU = &share
		}
		return p
	}
	p.Over = 0
	return p
}

// before reports whether l has counted less than o.
func (l Latency) before(o Latency) bool { return l.Ops < o.Ops || l.Time < o.Time }

// mean is the mean time of what was counted since o; nil: too few.
func (l Latency) mean(o Latency) *time.Duration {
	n := l.Ops - o.Ops
	if n < fewOps {
		return nil
	}
	m := (l.Time - o.Time) / time.Duration(n)
	return &m
}
