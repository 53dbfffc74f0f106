package remediation

import (
	"context"
	"slices"
)

// Edit is one change of a set's configuration. Hosts name the members; what an
// edit does not name stays as it is.
type Edit struct {
	Set    []Member // votes, priority, hidden and delay of these members
	Add    []Member // new members, with new ids
	Remove []string
}

// Build says which node is to be made anew and from what.
type Build struct {
	Host    string
	Source  string // the copy is best made from this member
	OplogMB int    // 0: as the machine has it
	Arbiter bool   // holds no data
}

// Hands are what operations change a replica set with. Each call makes its change
// and does not wait for what follows from it: that is seen by reading. A call may
// have happened although it gave an error. Calling again is allowed: who does it
// has read the set before.
type Hands interface {
	// Reconfigure makes one change of the configuration, based on the newest one
	// by (term, version); it is refused when another change came between.
	Reconfigure(ctx context.Context, e Edit) error
	// StepDown hands the primary's office over and keeps others from standing.
	StepDown(ctx context.Context, from, to string) error
	// ResizeOplog changes a running member's oplog.
	ResizeOplog(ctx context.Context, host string, mb int) error
	// Rebuild empties a member's node and starts it again: everything on it is lost.
	Rebuild(ctx context.Context, b Build) error
	// Provision starts an empty node on a spare machine.
	Provision(ctx context.Context, b Build) error
	// Release stops the node of a machine that has left the set, and empties it.
	Release(ctx context.Context, host string) error
}

// change gives the edit that leads from v to next.
func change(v, next Vertex) Edit {
	var e Edit
	for i := range next.Members {
		m := next.Members[i]
		at := v.index(m.Host)
		if at < 0 {
			e.Add = append(e.Add, m)
			continue
		}
		if o := &v.Members[at]; o.Votes != m.Votes || o.Priority != m.Priority || o.Hidden != m.Hidden || o.Delay != m.Delay {
			e.Set = append(e.Set, m)
		}
	}
	for i := range v.Members {
		if host := v.Members[i].Host; next.index(host) < 0 {
			e.Remove = append(e.Remove, host)
		}
	}
	return e
}

// reconfigure changes the configuration into what o predicts.
func reconfigure(ctx context.Context, h Hands, o Operation, v Vertex) error {
	return h.Reconfigure(ctx, change(v, o.Next(v)))
}

// Perform implements [Operation].
func (o GiveVote) Perform(ctx context.Context, h Hands, v Vertex) error {
	return reconfigure(ctx, h, o, v)
}

// Perform implements [Operation].
func (o TakeVote) Perform(ctx context.Context, h Hands, v Vertex) error {
	return reconfigure(ctx, h, o, v)
}

// Perform implements [Operation].
func (o SetPriority) Perform(ctx context.Context, h Hands, v Vertex) error {
	return reconfigure(ctx, h, o, v)
}

// Perform implements [Operation].
func (o SetVisibility) Perform(ctx context.Context, h Hands, v Vertex) error {
	return reconfigure(ctx, h, o, v)
}

// Perform implements [Operation].
func (o StepDown) Perform(ctx context.Context, h Hands, _ Vertex) error {
	return h.StepDown(ctx, o.Host, o.To)
}

// Perform implements [Operation]: the election comes by itself.
func (AwaitElection) Perform(context.Context, Hands, Vertex) error { return nil }

// Perform implements [Operation]: the member comes by itself.
func (Await) Perform(context.Context, Hands, Vertex) error { return nil }

// Perform implements [Operation].
func (o Rebuild) Perform(ctx context.Context, h Hands, v Vertex) error {
	m, err := v.find(o.Host)
	if err != nil {
		return err
	}
	return h.Rebuild(ctx, Build{Host: o.Host, Source: v.Source(o.Host, m.Zone), OplogMB: o.OplogMB})
}

// Perform implements [Operation]. The machine that leaves is emptied last: until
// then nothing is lost that was not lost before.
func (o Replace) Perform(ctx context.Context, h Hands, v Vertex) error {
	at := v.index(o.Host)
	if at < 0 {
		return NotAMember
	}
	b := Build{Host: o.By, Source: v.Source(o.Host, v.Spares[v.spare(o.By)].Zone), OplogMB: o.OplogMB}
	if err := h.Provision(ctx, b); err != nil {
		return err
	}
	if err := reconfigure(ctx, h, o, v); err != nil {
		return err
	}
	return release(ctx, h, v.Members[at])
}

// Perform implements [Operation].
func (o ResizeOplog) Perform(ctx context.Context, h Hands, _ Vertex) error {
	return h.ResizeOplog(ctx, o.Host, o.MB)
}

// Perform implements [Operation].
func (o Add) Perform(ctx context.Context, h Hands, v Vertex) error {
	at := v.spare(o.Host)
	if at < 0 {
		return NotASpare
	}
	b := Build{Host: o.Host, Source: v.Source(o.Host, v.Spares[at].Zone), OplogMB: o.OplogMB, Arbiter: o.Arbiter}
	if err := h.Provision(ctx, b); err != nil {
		return err
	}
	return reconfigure(ctx, h, o, v)
}

// Perform implements [Operation].
func (o Remove) Perform(ctx context.Context, h Hands, v Vertex) error {
	at := v.index(o.Host)
	if at < 0 {
		return NotAMember
	}
	if err := reconfigure(ctx, h, o, v); err != nil {
		return err
	}
	return release(ctx, h, v.Members[at])
}

// release gives a former member's machine back, where there is one that answers.
func release(ctx context.Context, h Hands, m Member) error {
	if slices.Contains([]State{Lost, Down}, m.State) {
		return nil
	}
	return h.Release(ctx, m.Host)
}

// Destroys reports whether an operation gives up a node's data.
func Destroys(o Operation) bool {
	switch o.(type) {
	case Rebuild, Replace, Remove:
		return true
	default:
		return false
	}
}

// majorityElsewhere holds when healthy members other than a host have a majority
// of all votes there are.
func (v Vertex) majorityElsewhere(host string) bool {
	all, healthy := v.votes()
	if i := v.index(host); i >= 0 && v.Members[i].State == Healthy {
		healthy -= v.Members[i].Votes
	}
	return healthy >= majority(all)
}
