package remediation

// Verdict says how a run goes on after a plan was made.
type Verdict string

// The verdicts.
const (
	Finished     Verdict = "finished"   // full health, nothing to do
	Best         Verdict = "best"       // not full health, and nothing left that helps: a person may
	Execute      Verdict = "execute"    // the plan's next step
	PlansGrow    Verdict = "plans-grow" // plans get dearer instead of cheaper: a person must look
	TooManyPlans Verdict = "too-many"   // the shard is never as predicted
	Halted       Verdict = "stopped"    // by the stop switch or an operator, between two operations
	Failed       Verdict = "failed"     // by an error that no retry mends
	Unexecuted   Verdict = "dry-run"    // there is a plan, and nobody has allowed it
)

// Bounds of one run.
const (
	maxGrown = 5  // plans that were dearer than what was left of the one before
	maxPlans = 40 // plans altogether
)

// Course is what one run remembers between its plans. The zero value is a run
// that has not begun. It is a plain value, so that it survives in a history.
type Course struct {
	Plans int `json:"plans"` // made so far
	Steps int `json:"steps"` // performed so far
	Left  int `json:"left"`  // cost of what is left of the newest plan
	Grown int `json:"grown"` // plans that were dearer than what was left before
}

// Planned takes a new plan's cost and number of steps into account.
func (c *Course) Planned(steps, cost int, full bool) Verdict {
	if c.Plans > 0 && cost > c.Left {
		c.Grown++
	}
	c.Plans++
	c.Left = cost
	switch {
	case steps == 0 && full:
		return Finished
	case steps == 0:
		return Best
	case c.Grown >= maxGrown:
		return PlansGrow
	case c.Plans > maxPlans:
		return TooManyPlans
	default:
		return Execute
	}
}

// Performed takes a step that ended as predicted into account.
func (c *Course) Performed(cost int) {
	c.Steps++
	c.Left = max(0, c.Left-cost)
}

// Copies reports whether an operation makes a copy of all the data.
func Copies(o Operation) bool {
	switch o := o.(type) {
	case Rebuild, Replace:
		return true
	case Add:
		return !o.Arbiter
	default:
		return false
	}
}
