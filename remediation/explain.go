package remediation

import (
	"fmt"
	"slices"
	"strings"
)

// reason says what operation i of a plan is good for.
func (p *Planner) reason(ops []Operation, i int, before, after Vertex) string {
	var m Member
	if at := before.index(ops[i].Subject()); at >= 0 {
		m = before.Members[at]
	}
	switch o := ops[i].(type) {
	case AwaitElection:
		return "no plan is made against an election that is due"
	case Await:
		return fmt.Sprintf("it is %s and comes back by itself", m.State)
	case GiveVote:
		if p.wants(func(s *Slot) bool { return s.fits(m.Zone, m.Instance) && s.Votes == 1 }) {
			return "the layout wants its vote, and it is caught up"
		}
		return "one more healthy vote raises what the shard can lose"
	case TakeVote:
		return reasonToTake(next(ops, i), &m)
	case SetPriority:
		return reasonForPriority(ops, i, o, before, after)
	case SetVisibility:
		return "the layout wants it so"
	case StepDown:
		if n := next(ops, i); n != nil {
			return fmt.Sprintf("the primary keeps its office out of the way of what follows: %s", n)
		}
		return "the layout prefers the other as primary"
	case Rebuild:
		return fmt.Sprintf("it is %s and does not come back by itself; the copy is made from %s", m.State, before.Source(o.Host, m.Zone))
	case Replace:
		if m.State == Lost {
			return "its machine is gone"
		}
		return fmt.Sprintf("the layout does not want a member on %s in %s", orAny(m.Instance), m.Zone)
	case ResizeOplog:
		return fmt.Sprintf("it has %d MB", m.OplogMB)
	case Add:
		return fmt.Sprintf("%d members are alive and %d are wanted", alive(before), len(p.goals.layout.Slots))
	case Remove:
		return "the layout has no place for it"
	default:
		return ""
	}
}

// wants reports whether some slot is so.
func (p *Planner) wants(so func(*Slot) bool) bool {
	for i := range p.goals.layout.Slots {
		if so(&p.goals.layout.Slots[i]) {
			return true
		}
	}
	return false
}

// next gives the following operation on the same member, nil when there is none.
func next(ops []Operation, i int) Operation {
	for _, o := range ops[i+1:] {
		if o.Subject() == ops[i].Subject() {
			return o
		}
	}
	return nil
}

// reasonToTake says why a vote is taken before what follows.
func reasonToTake(following Operation, m *Member) string {
	switch following.(type) {
	case Rebuild, Replace:
		return "an emptied node has forgotten what it acknowledged, so it must not vote meanwhile"
	case Remove:
		return "a member leaves without its vote"
	}
	if m.State != Healthy {
		return fmt.Sprintf("it is %s: without its vote fewer make a majority", m.State)
	}
	return "the layout wants no vote here"
}

// reasonForPriority says why a priority changes.
func reasonForPriority(ops []Operation, i int, o SetPriority, before, after Vertex) string {
	if was, is := before.primary(), after.primary(); was >= 0 && is >= 0 && was != is {
		if n := firstOn(ops[i+1:], before.Members[was].Host); n != nil {
			return fmt.Sprintf("%s takes over from %s, out of the way of what follows: %s", after.Members[is].Host, before.Members[was].Host, n)
		}
		return fmt.Sprintf("the layout prefers %s, which takes over as primary", after.Members[is].Host)
	}
	n := next(ops, i)
	switch n.(type) {
	case TakeVote:
		return "the priority goes before the vote"
	case SetVisibility:
		return "a hidden or delayed member has no priority"
	}
	for _, later := range ops[i+1:] {
		if d, ok := later.(StepDown); ok && (d.To == o.Host || d.Host == o.Host) {
			return "priority before step-down: the primary would come back otherwise"
		}
	}
	return "the layout wants this priority"
}

// firstOn gives the first operation on a host.
func firstOn(ops []Operation, host string) Operation {
	for _, o := range ops {
		if o.Subject() == host {
			return o
		}
	}
	return nil
}

// alive counts members whose machines are there.
func alive(v Vertex) int {
	n := 0
	for i := range v.Members {
		n += number(v.Members[i].State != Lost)
	}
	return n
}

// orAny names a kind of machine.
func orAny(instance string) string {
	if instance == "" {
		return "any machine"
	}
	return instance
}

// whyNotFewer says why full health takes so many operations; differences is
// how many would do if none stood in another's way.
func (p *Planner) whyNotFewer(plan *Plan, differences int) string {
	n := len(plan.Steps)
	if n == differences {
		return fmt.Sprintf("not fewer than %d: so many changes stand between the shard and its layout, and no operation makes two of them", n)
	}
	return fmt.Sprintf("not fewer than %d: %d changes stand between the shard and its layout, and %d more make room for them; no way of %d operations exists (%d configurations examined)",
		n, differences, n-differences, n-1, plan.Examined)
}

// whyNotFull says what keeps the shard from full health.
func (p *Planner) whyNotFull(plan *Plan, v Vertex) string {
	var why []string
	end := plan.End(v)
	all, healthy := end.votes()
	switch {
	case !end.HasMajority():
		why = append(why, fmt.Sprintf("healthy members have %d of %d votes: no change can be confirmed, a person must decide", healthy, all))
	case end.primary() < 0:
		why = append(why, "there is no primary, and nobody can be elected: a person must decide")
	case !end.Writable():
		why = append(why, "the primary is stalled, and nobody can take over: a person must decide")
	default:
		why = append(why, p.unmet(end)...)
	}
	if n := len(end.Members) - len(p.goals.layout.Slots); n > 0 {
		why = append(why, fmt.Sprintf("%d members more than wanted", n))
	}
	verdict := "no operations lead to better health"
	if !plan.Proven {
		verdict = "better may be possible, the search was cut off"
	}
	return fmt.Sprintf("not full health: %s; %s (%d configurations examined)", strings.Join(why, "; "), verdict, plan.Examined)
}

// unmet names the wanted members that are not there, with the reason where it
// is the lack of a machine.
func (p *Planner) unmet(end Vertex) []string {
	var why []string
	machines := p.goals.machines(end)
	slots := p.goals.layout.Slots
	owner := make([]int, len(slots))
	for i := range end.Members {
		p.goals.assign(end, i, owner, &[maxMembers]bool{})
	}
	for i := range slots {
		if owner[i] != 0 {
			continue
		}
		s := &slots[i]
		reason := "its members or machines are needed elsewhere"
		if !slices.ContainsFunc(machines, func(m machine) bool { return s.fits(m.zone, m.instance) }) {
			reason = "no machine there"
		} else if n := p.wanted(s); n > p.had(s, machines) {
			reason = fmt.Sprintf("%d machines there, %d wanted", p.had(s, machines), n)
		}
		why = append(why, fmt.Sprintf("%s in %s (%s): %s", s.kind(), s.Zone, orAny(s.Instance), reason))
	}
	return why
}

// wanted counts the slots at the place of s.
func (p *Planner) wanted(s *Slot) int {
	n := 0
	for i := range p.goals.layout.Slots {
		o := &p.goals.layout.Slots[i]
		n += number(o.Zone == s.Zone && o.Instance == s.Instance)
	}
	return n
}

// had counts the machines that fit s.
func (p *Planner) had(s *Slot, machines []machine) int {
	n := 0
	for _, m := range machines {
		n += number(s.fits(m.zone, m.instance))
	}
	return n
}

// kind names what a slot is.
func (s *Slot) kind() string {
	switch {
	case s.Arbiter:
		return "arbiter"
	case s.Delay > 0:
		return "delayed member"
	case s.Hidden:
		return "hidden member"
	case s.Votes == 0:
		return "member without a vote"
	default:
		return fmt.Sprintf("member of priority %g", s.Priority)
	}
}
