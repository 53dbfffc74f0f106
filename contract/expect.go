package contract

import (
	"cmp"
	"fmt"
	"time"

	"drover/chunk"
)

// StepExpected is how long a phase of a move takes that nothing holds up. copies is the time of
// one copy of all its bytes; waits: a person or a part of the day decides about the switch. 0: there
// is nothing to expect.
func StepExpected(p chunk.Phase, copies, burnIn time.Duration, waits bool) time.Duration {
	switch p {
	case chunk.Importing, chunk.Replicating, chunk.Validating:
		return copies + 2*time.Minute
	case chunk.Completing, chunk.Aborting:
		return copies + 5*time.Minute
	case chunk.Registered:
		return time.Minute
	case chunk.Switching:
		if waits {
			return 12 * time.Hour
		}
		return 2 * time.Minute
	case chunk.BurnIn:
		return burnIn
	case chunk.Done, chunk.Aborted:
	}
	return 0
}

// OverdueAfter is how many times its expected time a step may take.
const OverdueAfter = 2

// Overdue tells whether a step has taken too long.
func Overdue(took, expected time.Duration) bool { return expected > 0 && took > OverdueAfter*expected }

// Why says why a move does not go on, or at least what it is at.
func (s Status) Why(p *Progress) string {
	if s.Paused && s.WaitingFor == "" {
		return "it is paused"
	}
	if why := cmp.Or(s.Attention, s.WaitingFor, s.UnderRepair); why != "" {
		return why
	}
	if len(s.Failing) > 0 {
		return s.Failing[0].String()
	}
	if p == nil {
		return "nothing says so: it is still at work, or no worker is"
	}
	if why := cmp.Or(p.Limit, p.Pace); why != "" {
		return why
	}
	if f := p.Fraction(); f >= 0 {
		return fmt.Sprintf("it is at work, %.0f %% done", 100*f)
	}
	return cmp.Or(p.Detail, "it is at work")
}

// StepRemedy says what a person can do about a phase that takes too long.
func StepRemedy(p chunk.Phase) string {
	switch p {
	case chunk.Registered:
		return "see that a worker runs and that both shards answer: drover shard check"
	case chunk.Importing:
		return "let fewer moves copy to or from these shards at once, move at another time, or abort; --no-queue or an override of room lets it begin, " +
			"and the end of a pause (drover override list)"
	case chunk.Replicating:
		return "write less, split the chunk, choose a target with more room, or abort"
	case chunk.Validating:
		return "drover migrate mismatches shows what differs; resume compares again, abort gives up"
	case chunk.Switching:
		return "drover migrate gate shows what refuses and what would make it pass; approve, waive a check (drover override set waiver), or abort"
	case chunk.BurnIn:
		return "complete drops the old placement, rollback lets it serve again"
	case chunk.Completing, chunk.Aborting:
		return "see that the shard of the placement that goes answers: drover shard check; resume tries again"
	case chunk.Done, chunk.Aborted:
	}
	return ""
}

// Remedy says what a person can do about the move when its phase takes too long.
func (s Status) Remedy() string {
	if s.Paused {
		return "drover migrate resume lets it go on, drover override end pause all that were paused together; or abort"
	}
	return StepRemedy(s.Phase)
}

// The kinds of health of a move, the one that matters most first.
const (
	AttentionHealth = "attention" // a person is wanted
	OverdueHealth   = "overdue"   // its step takes more than twice its time
	PausedHealth    = "paused"
	GoodHealth      = "ok"
)

// MoveHealth judges a move.
func MoveHealth(attention string, paused bool, took, expected time.Duration) string {
	switch {
	case attention != "":
		return AttentionHealth
	case paused:
		return PausedHealth
	case Overdue(took, expected):
		return OverdueHealth
	}
	return GoodHealth
}
