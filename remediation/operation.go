package remediation

import (
	"context"
	"fmt"
	"time"
)

// Operation is one edge: the smallest change of a shard that can be made and
// looked at. An operation is a plain value; the value that predicts a change is
// the one that makes it.
type Operation interface {
	// Name is the operation's name in plans, histories and metrics; it never changes.
	Name() string
	// Subject is the host that the operation is about, empty when it is about the set.
	Subject() string
	// Preconditions is nil when the operation may be done in v, else the
	// first thing against it.
	Preconditions(v Vertex) error
	// Next is v after the operation and the elections it brings about; v
	// itself stays as it is. It means nothing unless Preconditions is nil.
	Next(v Vertex) Vertex
	// Perform makes the change on the shard that v was read from, and does not
	// wait for its effect: v after it is for the next reading to show.
	Perform(ctx context.Context, h Hands, v Vertex) error
	// Cost is the operation's weight.
	Cost(c Costs) int
	// String says what is done, for people.
	String() string
}

// Refusal is a precondition that does not hold.
type Refusal string

// Error implements error.
func (r Refusal) Error() string { return string(r) }

// The preconditions.
const (
	NotAMember       Refusal = "the host is no member"
	NotASpare        Refusal = "the host is no spare machine"
	NoPrimary        Refusal = "no healthy primary to take the change"
	NoMajority       Refusal = "healthy members would have no majority of the votes"
	TooManyVoters    Refusal = "a set has at most seven votes"
	TooManyMembers   Refusal = "a set has at most fifty members"
	IsPrimary        Refusal = "the member is the primary"
	IsArbiter        Refusal = "the member is an arbiter"
	HasVote          Refusal = "the member has a vote"
	HasNoVote        Refusal = "the member has no vote"
	HasPriority      Refusal = "the member's priority is not 0"
	NotCaughtUp      Refusal = "the member is not caught up"
	NotOnItsWay      Refusal = "the member does not come back by itself"
	NothingToDo      Refusal = "it is so already"
	MachineIsLost    Refusal = "the member's machine is gone"
	NoSource         Refusal = "no healthy copy to build from"
	NotElectable     Refusal = "the successor cannot be elected"
	WouldComeBack    Refusal = "another member has a higher priority and would take over at once"
	HiddenOrDelayed  Refusal = "a hidden or delayed member has priority 0"
	DoesNotAnswer    Refusal = "the member does not answer"
	NoElectionIsDue  Refusal = "no election is due"
	ElectionIsDue    Refusal = "an election is due and comes first"
	PriorityTooLarge Refusal = "the priority is not within 0 and 1000"
)

// Costs weighs operations against each other. Each must be at least 1.
type Costs struct {
	Reconfigure int // any change of the configuration alone
	StepDown    int // open transactions are aborted, writes wait for an election
	ResizeOplog int
	Await       int // waiting for what comes back by itself
	Rebuild     int // a whole copy is made
	Release     int // a machine is taken out of the set
	Provision   int // what a new machine costs beside its copy
}

// DefaultCosts weighs a rebuild like 33 changes of the configuration.
var DefaultCosts = Costs{Reconfigure: 1, StepDown: 3, ResizeOplog: 1, Await: 5, Rebuild: 33, Release: 1, Provision: 1}

// validate refuses weights that would let a plan go in circles.
func (c Costs) validate() error {
	if min(c.Reconfigure, c.StepDown, c.ResizeOplog, c.Await, c.Rebuild, c.Release, c.Provision) < 1 {
		return fmt.Errorf("costs %+v: each must be at least 1", c)
	}
	return nil
}

// find gives the member of a host.
func (v Vertex) find(host string) (*Member, error) {
	i := v.index(host)
	if i < 0 {
		return nil, NotAMember
	}
	return &v.Members[i], nil
}

// canReconfigure holds when the set takes a change of its configuration that
// leaves the given numbers of votes: each change is confirmed by a majority of
// the old configuration and by one of the new.
func (v Vertex) canReconfigure(votes, healthyVotes int) error {
	p := v.primary()
	if p < 0 || v.Members[p].State != Healthy {
		return NoPrimary
	}
	all, healthy := v.votes()
	switch {
	case healthy < majority(all), healthyVotes < majority(votes):
		return NoMajority
	case votes > maxVoters && votes > all:
		return TooManyVoters
	case v.election() >= 0:
		return ElectionIsDue
	default:
		return nil
	}
}

// reconfigurable is canReconfigure of a change that leaves the votes alone.
func (v Vertex) reconfigurable() error { return v.canReconfigure(v.votes()) }

// GiveVote lets a member that is caught up vote.
type GiveVote struct{ Host string }

// Name implements [Operation].
func (GiveVote) Name() string { return "give-vote" }

// Subject implements [Operation].
func (o GiveVote) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o GiveVote) Preconditions(v Vertex) error {
	m, err := v.find(o.Host)
	switch {
	case err != nil:
		return err
	case m.Votes == 1:
		return HasVote
	case m.State != Healthy:
		return NotCaughtUp
	}
	all, healthy := v.votes()
	return v.canReconfigure(all+1, healthy+1)
}

// Next implements [Operation].
func (o GiveVote) Next(v Vertex) Vertex {
	v = v.clone()
	v.Members[v.index(o.Host)].Votes = 1
	return v
}

// Cost implements [Operation].
func (GiveVote) Cost(c Costs) int { return c.Reconfigure }

// String implements [Operation].
func (o GiveVote) String() string { return "give " + o.Host + " a vote" }

// TakeVote takes a member's vote; the priority is taken before.
type TakeVote struct{ Host string }

// Name implements [Operation].
func (TakeVote) Name() string { return "take-vote" }

// Subject implements [Operation].
func (o TakeVote) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o TakeVote) Preconditions(v Vertex) error {
	m, err := v.find(o.Host)
	switch {
	case err != nil:
		return err
	case m.Votes == 0:
		return HasNoVote
	case m.Arbiter:
		return IsArbiter
	case m.Primary:
		return IsPrimary
	case m.Priority > 0:
		return HasPriority
	}
	all, healthy := v.votes()
	return v.canReconfigure(all-1, healthy-number(m.State == Healthy))
}

// Next implements [Operation].
func (o TakeVote) Next(v Vertex) Vertex {
	v = v.clone()
	v.Members[v.index(o.Host)].Votes = 0
	return v
}

// Cost implements [Operation].
func (TakeVote) Cost(c Costs) int { return c.Reconfigure }

// String implements [Operation].
func (o TakeVote) String() string { return "take the vote of " + o.Host }

// SetPriority changes a member's priority. When that makes another member the
// highest, that one takes over as primary.
type SetPriority struct {
	Host     string
	Priority float64
}

// Name implements [Operation].
func (SetPriority) Name() string { return "set-priority" }

// Subject implements [Operation].
func (o SetPriority) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o SetPriority) Preconditions(v Vertex) error {
	m, err := v.find(o.Host)
	switch {
	case err != nil:
		return err
	case m.Priority == o.Priority:
		return NothingToDo
	case o.Priority < 0 || o.Priority > maxPriority:
		return PriorityTooLarge
	case o.Priority == 0 && m.Primary:
		return IsPrimary
	case o.Priority > m.Priority && m.Arbiter:
		return IsArbiter
	case o.Priority > m.Priority && m.Votes == 0:
		return HasNoVote
	case o.Priority > m.Priority && (m.Hidden || m.Delay > 0):
		return HiddenOrDelayed
	case o.Priority > m.Priority && m.State != Healthy:
		return NotCaughtUp
	}
	return v.reconfigurable()
}

// Next implements [Operation].
func (o SetPriority) Next(v Vertex) Vertex {
	v = v.clone()
	v.Members[v.index(o.Host)].Priority = o.Priority
	v.settle()
	return v
}

// Cost implements [Operation].
func (SetPriority) Cost(c Costs) int { return c.Reconfigure }

// String implements [Operation].
func (o SetPriority) String() string {
	return fmt.Sprintf("set the priority of %s to %g", o.Host, o.Priority)
}

// SetVisibility makes a member hidden or delayed, or neither.
type SetVisibility struct {
	Host   string
	Hidden bool
	Delay  time.Duration
}

// Name implements [Operation].
func (SetVisibility) Name() string { return "set-visibility" }

// Subject implements [Operation].
func (o SetVisibility) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o SetVisibility) Preconditions(v Vertex) error {
	m, err := v.find(o.Host)
	switch {
	case err != nil:
		return err
	case m.Arbiter:
		return IsArbiter
	case m.Hidden == o.Hidden && m.Delay == o.Delay:
		return NothingToDo
	case m.Priority > 0:
		return HasPriority
	}
	return v.reconfigurable()
}

// Next implements [Operation].
func (o SetVisibility) Next(v Vertex) Vertex {
	v = v.clone()
	m := &v.Members[v.index(o.Host)]
	m.Hidden, m.Delay = o.Hidden, o.Delay
	return v
}

// Cost implements [Operation].
func (SetVisibility) Cost(c Costs) int { return c.Reconfigure }

// String implements [Operation].
func (o SetVisibility) String() string {
	return fmt.Sprintf("make %s hidden=%t delay=%s", o.Host, o.Hidden, o.Delay)
}

// StepDown hands the primary's office from one member to another. Other
// candidates are kept from standing, so the successor is certain; it must have
// the highest priority of those that could stand, or the office would not stay
// with it.
type StepDown struct{ Host, To string }

// Name implements [Operation].
func (StepDown) Name() string { return "step-down" }

// Subject implements [Operation].
func (o StepDown) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o StepDown) Preconditions(v Vertex) error {
	p := v.index(o.Host)
	if p < 0 || !v.Members[p].Primary {
		return NoPrimary
	}
	to, err := v.find(o.To)
	switch {
	case err != nil:
		return err
	case to.Primary:
		return IsPrimary
	case !to.electable():
		return NotElectable
	case !v.HasMajority():
		return NoMajority
	}
	for i := range v.Members {
		if m := &v.Members[i]; m.electable() && m.Priority > to.Priority {
			return WouldComeBack
		}
	}
	return nil
}

// Next implements [Operation].
func (o StepDown) Next(v Vertex) Vertex {
	v = v.clone()
	v.makePrimary(v.index(o.To))
	return v
}

// Cost implements [Operation].
func (StepDown) Cost(c Costs) int { return c.StepDown }

// String implements [Operation].
func (o StepDown) String() string { return "step down " + o.Host + " in favour of " + o.To }

// AwaitElection waits for the election that is due by itself.
type AwaitElection struct{}

// Name implements [Operation].
func (AwaitElection) Name() string { return "await-election" }

// Subject implements [Operation].
func (AwaitElection) Subject() string { return "" }

// Preconditions implements [Operation].
func (AwaitElection) Preconditions(v Vertex) error {
	if v.election() < 0 {
		return NoElectionIsDue
	}
	return nil
}

// Next implements [Operation].
func (AwaitElection) Next(v Vertex) Vertex {
	v = v.clone()
	v.settle()
	return v
}

// Cost implements [Operation].
func (AwaitElection) Cost(c Costs) int { return c.Await }

// String implements [Operation].
func (AwaitElection) String() string { return "await the election that is due" }
