package remediation

import (
	"errors"
	"fmt"
	"strings"
)

// Step is one operation of a plan, with what it is predicted to lead to.
type Step struct {
	Operation Operation
	After     Vertex
	Cost      int
	Reason    string
}

// Plan is a way from a vertex to the best health that can be reached.
type Plan struct {
	Steps    []Step
	From, To Health
	Full     bool   // To is full health
	Cost     int    // weights of all steps
	Proven   bool   // no plan does better; false only where the search was cut off
	Examined int    // configurations looked at
	Why      string // why not fewer steps, or why not full health
}

// End is the vertex that the plan leads to from v.
func (p *Plan) End(v Vertex) Vertex {
	if len(p.Steps) == 0 {
		return v
	}
	return p.Steps[len(p.Steps)-1].After
}

// String shows the plan as a dry run prints it.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "from %s\n", p.From)
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "%2d. %s: %s\n", i+1, s.Operation, s.Reason)
	}
	fmt.Fprintf(&b, "to   %s\n%s\n", p.To, p.Why)
	return b.String()
}

// defaultLimit is how many configurations a search may hold.
const defaultLimit = 50_000

// Planner plans for shards of one layout. Many may use one at a time.
type Planner struct {
	goals goals
	menu  *menu
	costs Costs
	limit int
}

// NewPlanner prepares for a layout, which must be valid. Limit is how many
// configurations one search may hold, 0 for the default.
func NewPlanner(l Layout, c Costs, limit int) (*Planner, error) {
	if err := errors.Join(l.Validate(), c.validate()); err != nil {
		return nil, err
	}
	if limit <= 0 {
		limit = defaultLimit
	}
	return &Planner{goals: newGoals(l), menu: newMenu(l), costs: c, limit: limit}, nil
}

// Health measures v against the planner's layout.
func (p *Planner) Health(v Vertex) Health { return p.goals.measure(v) }

// Full is the health of the layout itself.
func (p *Planner) Full() Health { return p.goals.full() }

// usualOplog is the size that the layout wants of oplogs in a zone, 0 for any. One
// that is not known is taken for right: it is no reason to do anything.
func (p *Planner) usualOplog(zone string) int {
	usual := 0
	for _, s := range p.goals.layout.Slots {
		if s.OplogMB > 0 && (usual == 0 || s.Zone == zone) {
			usual = s.OplogMB
		}
	}
	return usual
}

// Plan gives the fewest operations that lead from v to full health, and among
// those the cheapest by weight. When full health is out of reach it gives the
// cheapest operations that lead to the best health within reach. The same
// vertex always has the same plan.
func (p *Planner) Plan(v Vertex) (*Plan, error) {
	if err := v.Validate(); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	plan := &Plan{From: p.goals.measure(v), Proven: true}
	plan.To = plan.From
	full := p.goals.full()
	if plan.From == full {
		plan.Full, plan.Why = true, "nothing differs from the layout"
		return plan, nil
	}
	target, patterns := p.goals.attainable(v)
	if target == full {
		s := p.toFull(v)
		found, complete := s.run(v)
		plan.Examined = len(s.nodes)
		if found >= 0 {
			p.fill(plan, v, s.way(found))
			plan.Why = p.whyNotFewer(plan, s.nodes[0].ahead/fewest)
			return plan, nil
		}
		if !complete {
			p.settleFor(plan, v, s, found, complete)
			return plan, nil
		}
		target = p.goals.measure(s.nodes[p.best(s)].vertex)
	}
	s := p.toBest(target, patterns)
	found, complete := s.run(v)
	plan.Examined += len(s.nodes)
	p.settleFor(plan, v, s, found, complete)
	return plan, nil
}

// settleFor fills the plan with the way that a search has found to less than
// full health; or, where it found none, to the best that it has seen.
func (p *Planner) settleFor(plan *Plan, v Vertex, s *search, found int, complete bool) {
	if found < 0 {
		plan.Proven = complete
		found = p.best(s)
	}
	p.fill(plan, v, s.way(found))
	plan.Why = p.whyNotFull(plan, v)
}

// toFull looks for the fewest operations to full health.
func (p *Planner) toFull(v Vertex) *search {
	b := newBounds(&p.goals, prices{costs: p.costs, each: fewest})
	return &search{
		menu: p.menu, prices: b.prices, ahead: b.full, limit: p.limit,
		goal: func(v Vertex, ahead int) bool { return ahead == 0 && v.Writable() },
	}
}

// toBest looks for the cheapest way to a health that may be out of reach. Without
// patterns it knows nothing of what lies ahead.
func (p *Planner) toBest(target Health, patterns []pattern) *search {
	b := newBounds(&p.goals, prices{costs: p.costs})
	s := &search{
		menu: p.menu, prices: b.prices, limit: p.limit,
		ahead: func(Vertex) int { return 0 },
		goal:  func(v Vertex, _ int) bool { return p.goals.measure(v).Compare(target) >= 0 },
	}
	if len(patterns) > 0 {
		s.ahead = func(v Vertex) int { return b.partial(v, patterns) }
	}
	return s
}

// best gives the node of the best health among all that a search has found, the
// cheapest of several.
func (p *Planner) best(s *search) int {
	best, health := 0, p.goals.measure(s.nodes[0].vertex)
	for i := range s.nodes {
		h := p.goals.measure(s.nodes[i].vertex)
		if c := h.Compare(health); c > 0 || c == 0 && s.nodes[i].spent < s.nodes[best].spent {
			best, health = i, h
		}
	}
	return best
}

// fill writes down the steps.
func (p *Planner) fill(plan *Plan, v Vertex, ops []Operation) {
	before := v
	for i, o := range ops {
		after := o.Next(before)
		cost := o.Cost(p.costs)
		plan.Steps = append(plan.Steps, Step{Operation: o, After: after, Cost: cost, Reason: p.reason(ops, i, before, after)})
		plan.Cost += cost
		before = after
	}
	plan.To = p.goals.measure(before)
	plan.Full = plan.To == p.goals.full()
}
