package gate

import (
	"fmt"
	"strings"
	"time"

	"drover/contract"
)

// Lag is check (1): how long a marker takes from the source through all that apply its direction.
func Lag(b Bound, lag time.Duration, source string, err error) contract.Check {
	c := bounded(1, lagCheck, b)
	c.Source = source
	c.Hint = "replication goes on and catches up by itself; a target that cannot keep up needs fewer moves at once or less load, or a higher --" + b.Name
	if err != nil {
		return fail(c, err)
	}
	return within(c, lag, b)
}

// Latency is what the lanes of a direction said last about the time from a
// write on the source to its effect on the target.
type Latency struct {
	Found bool          // they have said something about this direction
	Age   time.Duration // of what they said
	Count int64         // samples, over the last minute at most
	P99   time.Duration

	NotConverging string // what the lanes say while more is written than they apply
}

// staleAfter is how old the lanes' word may be: they give it every second.
const staleAfter = 5 * time.Second

// Pace is check (2): p99 from capture to apply over the last minute.
func Pace(b Bound, l Latency, err error) contract.Check {
	c := bounded(2, latencyCheck, b)
	c.Source = "the lanes' histogram of the last minute, since they first caught up"
	c.Hint = "a burst or a slow target leaves the histogram after a minute; a busy source, Kafka or target that stays slow needs a higher --" + b.Name
	switch {
	case err != nil:
		return fail(c, err)
	case !l.Found || l.Age > staleAfter:
		return fail(c, fmt.Errorf("the lanes have said nothing for %s", round(l.Age)))
	case l.NotConverging != "": // a moment of luck must not let it through
		c.Hint = "it does not switch while this is so: write less, split the chunk, move it to a shard with more room, or abort"
		return fail(c, fmt.Errorf("%s", l.NotConverging))
	case l.Count == 0:
		return fail(c, fmt.Errorf("the lanes have not caught up yet"))
	}
	c = within(c, l.P99, b)
	c.Value = fmt.Sprintf("p99 %s of %d changes", round(l.P99), l.Count)
	return c
}

// Findings is what stands against the copy.
type Findings struct {
	Mismatches  int64
	Quarantined int
	Stragglers  int
	Unverified  string // what of the changes since the validation is not known to be the same, "" for nothing
}

// Validation is check (3).
func Validation(f Findings, err error) contract.Check {
	c := none(3, "validation", "no open mismatch, nothing quarantined, no straggler, every change verified")
	c.Source = "metadata"
	c.Hint = "drover migrate status shows what differs; drover migrate resume validates again, abort gives up"
	if err != nil {
		return fail(c, err)
	}
	c.Measured = float64(f.Mismatches) + float64(f.Quarantined) + float64(f.Stragglers)
	c.OK = c.Measured == 0
	c.Value = fmt.Sprintf("%d mismatches, %d quarantined, %d stragglers", f.Mismatches, f.Quarantined, f.Stragglers)
	if f.Unverified != "" {
		c.OK, c.Measured, c.Value = false, c.Measured+1, c.Value+", "+f.Unverified
	}
	return c
}

// Member is a data-bearing member of the target's set.
type Member struct {
	Host      string
	Secondary bool
	Delayed   bool // on purpose: it is no measure
	Lag       time.Duration
}

// Set is the target's replica set as its primary sees it.
type Set struct {
	Shard   string
	Primary string
	Term    int64
	Stable  time.Duration // since the primary was elected, by its own clock
	Dated   bool          // the server says when that was
	Members []Member
}

// oneMember is why (4) has nothing to look at on a set of one.
const oneMember = "one member"

// Election is check (4), first half: the target's primary has been primary for
// long enough.
func Election(b Bound, s Set, err error) contract.Check {
	c := bounded(4, electionCheck, b)
	c.Limit = "none for " + b.Value.String()
	c.Source = "replSetGetStatus of the primary of " + s.Shard
	c.Hint = "it passes by itself once the primary has held for that long; look after a set that goes on electing"
	switch {
	case err != nil:
		return fail(c, err)
	case len(s.Members) == 1:
		return skip(c, oneMember)
	case !s.Dated:
		return fail(c, fmt.Errorf("%s does not say when it was elected", s.Primary))
	}
	c.Measured, c.OK = milliseconds(s.Stable), s.Stable >= b.Value
	c.Value = fmt.Sprintf("%s is primary for %s, term %d", s.Primary, round(s.Stable), s.Term)
	return c
}

// Secondaries is check (4), second half: the target's secondaries are not behind.
// A member that does not answer is the business of [Answers].
func Secondaries(b Bound, s Set, err error) contract.Check {
	c := bounded(4, secondariesCheck, b)
	c.Source = "replSetGetStatus of the primary of " + s.Shard
	c.Hint = "writes on the target wait for a majority: a secondary that stays behind needs less load, or a higher --" + b.Name
	if err != nil {
		return fail(c, err)
	}
	if len(s.Members) == 1 {
		return skip(c, oneMember)
	}
	var worst Member
	n := 0
	for _, m := range s.Members {
		if !m.Secondary || m.Delayed {
			continue
		}
		if n++; n == 1 || m.Lag > worst.Lag {
			worst = m
		}
	}
	if n == 0 {
		return fail(c, fmt.Errorf("no secondary of %s is there", s.Shard))
	}
	c = within(c, worst.Lag, b)
	c.Value = fmt.Sprintf("%s is %s behind", worst.Host, round(worst.Lag))
	return c
}

// Leases is check (5): nobody holds or waits for a shard alone.
func Leases(exclusive []string, err error) contract.Check {
	c := none(5, "leases", "no exclusive lease on either shard")
	c.Source = "metadata"
	c.Hint = "a repair that holds the lease ends by itself; drover lease list shows who holds it"
	return absent(c, exclusive, err)
}

// Answers is check (5): every data-bearing member of both sets answers, or the
// majority of its set has seen it down and it is owed the barrier.
func Answers(silent, owed []string, err error) contract.Check {
	c := none(5, "members", "every data-bearing member answers or is owed the barrier")
	c.Source = "each member of both shards"
	c.Hint = "the fence needs every member's word: bring the silent one back, or stop it for good so that its set sees it down"
	c = absent(c, silent, err)
	if c.OK && len(owed) > 0 {
		c.Value = "owed: " + strings.Join(owed, ", ")
	}
	return c
}

// Trials is check (5): what the servers can do, by which each step picks its way, was
// tried on those that serve now. said is what came of it, empty where nothing is tried.
func Trials(said string, err error) contract.Check {
	c := none(5, "capabilities", "tried on the primaries of both shards")
	c.Source = "trials on both shards"
	c.Hint = "it is tried again; drover shard check shows what is wrong"
	switch {
	case err != nil:
		return fail(c, err)
	case said == "":
		return skip(c, "nothing is tried where nothing may be written")
	}
	c.OK, c.Value = true, said
	return c
}

// Beside is a further check (5), of a placement that was adopted: nobody may write to
// it without a proxy.
func Beside(others []string, err error) contract.Check {
	c := none(5, "beside", "nobody may write to the adopted database without a proxy")
	c.Source = "users of the source"
	c.Hint = "take their write roles away, as docs/adoption.md says; drover db adopt DATABASE --check shows who is left"
	return absent(c, others, err)
}

// IndexBuilds is check (5): an index build holds up what the fence does.
func IndexBuilds(building []string, err error) contract.Check {
	c := none(5, "index-builds", "none under way on either placement")
	c.Source = "both placements"
	c.Hint = "it passes when they have ended"
	return absent(c, building, err)
}

// Writable is check (6): nothing can be published while the metadata cannot be
// written.
func Writable(took time.Duration, err error) contract.Check {
	c := contract.Check{
		Number: 6, Name: "metadata", Unit: "ms", Limit: "a write works now", LimitSource: protocol, Source: "Postgres",
		Hint: "nothing can be published while the metadata cannot be written: look after Postgres, its disk and its synchronous standby",
	}
	if err != nil {
		return fail(c, err)
	}
	c.OK, c.Measured, c.Value = true, milliseconds(took), "written in "+round(took).String()
	return c
}

// WayBack is what the way back would need.
type WayBack struct {
	Shard      string        // that would be captured from then on
	Captured   bool          // it was ever captured
	Silence    time.Duration // since its capture saved a position
	Partitions bool          // its log has the fleet's number of partitions
	OldState   string        // of the placement that would be kept current
	OldHealthy bool          // its shard has a primary that answers
}

// captureSilence is how long a capture may not have saved: it does so each second.
const captureSilence = 15 * time.Second

// Return is check (7): reverse replication is possible and the old placement is
// healthy, so that a switch can be taken back.
func Return(w WayBack, err error) contract.Check {
	c := none(7, "way-back", "the target's changes are captured, the old placement can be kept current")
	c.Source = "capture of " + w.Shard + ", metadata, the old placement's shard"
	c.Hint = "a switch without a way back is not made: drover capture list shows the capture, drover shard check the shard"
	if err != nil {
		return fail(c, err)
	}
	var wrong []string
	switch {
	case !w.Captured:
		wrong = append(wrong, w.Shard+" was never captured")
	case w.Silence > captureSilence:
		wrong = append(wrong, fmt.Sprintf("the capture of %s has saved nothing for %s", w.Shard, round(w.Silence)))
	}
	if !w.Partitions {
		wrong = append(wrong, "the log of "+w.Shard+" has another number of partitions than the fleet")
	}
	if w.OldState != "live" {
		wrong = append(wrong, "the old placement is "+w.OldState)
	}
	if !w.OldHealthy {
		wrong = append(wrong, "the old placement's shard has no primary")
	}
	c = absent(c, wrong, nil)
	if c.OK {
		c.Value = fmt.Sprintf("capture of %s saved %s ago", w.Shard, round(w.Silence))
	}
	return c
}

// Open is check (8): what applications have open on the placement. It refuses
// only where the policy says to wait for it.
func Open(w contract.OpenWork, wait time.Duration, err error) contract.Check {
	c := contract.Check{
		Number: 8, Name: openCheck, Unit: "ms", LimitSource: policy, Source: "operations of the shard",
		Limit: "shown only", Hint: "a fence aborts open transactions; drivers try them again",
	}
	if w.Way == "proxies" {
		c.Source = "the live proxies' word: the shard does not list other clients' work"
	}
	if wait > 0 {
		c.Bound, c.Limit = milliseconds(wait), "nothing older than "+wait.String()
		c.Hint = "it passes when they end; end them, or start the move with another --wait-for-open"
	}
	if err != nil {
		if c = fail(c, err); wait == 0 {
			c.OK = true
		}
		return c
	}
	oldest := time.Duration(w.Oldest)
	c.Measured, c.OK = milliseconds(oldest), wait == 0 || oldest <= wait
	c.Value = fmt.Sprintf("%d transactions, %d cursors", w.Transactions, w.Cursors)
	if w.Transactions+w.Cursors > 0 {
		c.Value += ", the oldest " + round(oldest).String()
	}
	return c
}

// absent passes when nothing is wrong.
func absent(c contract.Check, wrong []string, err error) contract.Check {
	if err != nil {
		return fail(c, err)
	}
	c.Measured, c.OK, c.Value = float64(len(wrong)), len(wrong) == 0, "clean"
	if len(wrong) > 0 {
		c.Value = strings.Join(wrong, "; ")
	}
	return c
}
