package remediation

import (
	"fmt"
	"slices"
	"time"
)

// destroyable holds when a member's copy may be given up: no office, no vote,
// no priority, and the rest of the set healthy.
func (v Vertex) destroyable(host string) (*Member, error) {
	m, err := v.find(host)
	switch {
	case err != nil:
		return nil, err
	case m.Primary:
		return nil, IsPrimary
	case m.Arbiter:
		return nil, IsArbiter
	case m.Priority > 0:
		return nil, HasPriority
	case m.Votes > 0:
		return nil, HasVote
	}
	return m, v.reconfigurable()
}

// Source gives the member that a copy for host is best made from: a secondary
// rather than the primary, of the same zone rather than of another, never a
// delayed one; empty when there is none.
func (v Vertex) Source(host, zone string) string {
	best, score := "", -1
	for i := range v.Members {
		m := &v.Members[i]
		if m.Host == host || !m.holdsData() || m.Delay > 0 {
			continue
		}
		if s := 2*number(!m.Primary) + number(m.Zone == zone); s > score {
			best, score = m.Host, s
		}
	}
	return best
}

// Await waits for a member that comes back by itself: lagging, recovering, or
// in an initial sync that is under way.
type Await struct{ Host string }

// Name implements [Operation].
func (Await) Name() string { return "await" }

// Subject implements [Operation].
func (o Await) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o Await) Preconditions(v Vertex) error {
	m, err := v.find(o.Host)
	switch {
	case err != nil:
		return err
	case !m.State.comesBack():
		return NotOnItsWay
	case !m.Arbiter && v.Source(o.Host, m.Zone) == "":
		return NoSource
	}
	return nil
}

// Next implements [Operation].
func (o Await) Next(v Vertex) Vertex {
	v = v.clone()
	v.Members[v.index(o.Host)].State = Healthy
	v.settle()
	return v
}

// Cost implements [Operation].
func (Await) Cost(c Costs) int { return c.Await }

// String implements [Operation].
func (o Await) String() string { return "await " + o.Host }

// Rebuild empties a member and lets it copy everything anew. Its vote is taken
// before: an emptied node has forgotten what it acknowledged.
type Rebuild struct {
	Host    string
	OplogMB int // 0: as it is
}

// Name implements [Operation].
func (Rebuild) Name() string { return "rebuild" }

// Subject implements [Operation].
func (o Rebuild) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o Rebuild) Preconditions(v Vertex) error {
	m, err := v.destroyable(o.Host)
	switch {
	case err != nil:
		return err
	case m.State == Healthy:
		return NothingToDo
	case m.State == Lost:
		return MachineIsLost
	case v.Source(o.Host, m.Zone) == "":
		return NoSource
	}
	return nil
}

// Next implements [Operation].
func (o Rebuild) Next(v Vertex) Vertex {
	v = v.clone()
	m := &v.Members[v.index(o.Host)]
	m.State = Healthy
	if o.OplogMB != 0 {
		m.OplogMB = o.OplogMB
	}
	return v
}

// Cost implements [Operation].
func (Rebuild) Cost(c Costs) int { return c.Rebuild }

// String implements [Operation].
func (o Rebuild) String() string { return "rebuild " + o.Host }

// Replace puts a spare machine in a member's place: the configuration names the
// new host instead of the old one, and the new one copies everything.
type Replace struct {
	Host, By string
	OplogMB  int // of the new member
}

// Name implements [Operation].
func (Replace) Name() string { return "replace" }

// Subject implements [Operation].
func (o Replace) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o Replace) Preconditions(v Vertex) error {
	_, err := v.destroyable(o.Host)
	switch {
	case err != nil:
		return err
	case v.spare(o.By) < 0:
		return NotASpare
	case v.Source(o.Host, "") == "":
		return NoSource
	}
	return nil
}

// Next implements [Operation].
func (o Replace) Next(v Vertex) Vertex {
	v = v.clone()
	i := v.index(o.Host)
	old := v.Members[i]
	s := v.takeSpare(o.By)
	v.Members[i] = Member{Host: s.Host, Zone: s.Zone, Instance: s.Instance, Hidden: old.Hidden, Delay: old.Delay, OplogMB: o.OplogMB}
	v.release(&old)
	return v
}

// Cost implements [Operation].
func (Replace) Cost(c Costs) int { return c.Rebuild + c.Provision }

// String implements [Operation].
func (o Replace) String() string { return "replace " + o.Host + " by " + o.By }

// ResizeOplog changes the size of a member's oplog while it runs.
type ResizeOplog struct {
	Host string
	MB   int
}

// Name implements [Operation].
func (ResizeOplog) Name() string { return "resize-oplog" }

// Subject implements [Operation].
func (o ResizeOplog) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o ResizeOplog) Preconditions(v Vertex) error {
	m, err := v.find(o.Host)
	switch {
	case err != nil:
		return err
	case m.Arbiter:
		return IsArbiter
	case m.OplogMB == o.MB:
		return NothingToDo
	case m.State != Healthy && m.State != Lagging:
		return DoesNotAnswer
	}
	return nil
}

// Next implements [Operation].
func (o ResizeOplog) Next(v Vertex) Vertex {
	v = v.clone()
	v.Members[v.index(o.Host)].OplogMB = o.MB
	return v
}

// Cost implements [Operation].
func (ResizeOplog) Cost(c Costs) int { return c.ResizeOplog }

// String implements [Operation].
func (o ResizeOplog) String() string {
	return fmt.Sprintf("resize the oplog of %s to %d MB", o.Host, o.MB)
}

// Add takes a spare machine into the set: without vote and priority until it
// has its copy; an arbiter, which has none, with its vote.
type Add struct {
	Host    string
	Hidden  bool
	Delay   time.Duration
	Arbiter bool
	OplogMB int
}

// Name implements [Operation].
func (Add) Name() string { return "add" }

// Subject implements [Operation].
func (o Add) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o Add) Preconditions(v Vertex) error {
	switch {
	case v.spare(o.Host) < 0:
		return NotASpare
	case len(v.Members) >= maxMembers:
		return TooManyMembers
	case o.Arbiter:
		all, healthy := v.votes()
		return v.canReconfigure(all+1, healthy+1)
	case v.Source(o.Host, "") == "":
		return NoSource
	}
	return v.reconfigurable()
}

// Next implements [Operation].
func (o Add) Next(v Vertex) Vertex {
	v = v.clone()
	s := v.takeSpare(o.Host)
	v.Members = append(v.Members, Member{
		Host: s.Host, Zone: s.Zone, Instance: s.Instance, Votes: number(o.Arbiter),
		Hidden: o.Hidden, Delay: o.Delay, Arbiter: o.Arbiter, OplogMB: o.OplogMB,
	})
	return v
}

// Cost implements [Operation].
func (o Add) Cost(c Costs) int {
	if o.Arbiter {
		return c.Provision
	}
	return c.Rebuild + c.Provision
}

// String implements [Operation].
func (o Add) String() string {
	if o.Arbiter {
		return "add " + o.Host + " as arbiter"
	}
	return "add " + o.Host
}

// Remove takes a member out of the set: after its vote, save for an arbiter,
// which is never without one.
type Remove struct{ Host string }

// Name implements [Operation].
func (Remove) Name() string { return "remove" }

// Subject implements [Operation].
func (o Remove) Subject() string { return o.Host }

// Preconditions implements [Operation].
func (o Remove) Preconditions(v Vertex) error {
	m, err := v.find(o.Host)
	if err != nil {
		return err
	}
	if m.Arbiter {
		all, healthy := v.votes()
		return v.canReconfigure(all-m.Votes, healthy-m.Votes*number(m.State == Healthy))
	}
	_, err = v.destroyable(o.Host)
	return err
}

// Next implements [Operation].
func (o Remove) Next(v Vertex) Vertex {
	v = v.clone()
	i := v.index(o.Host)
	old := v.Members[i]
	v.Members = slices.Delete(v.Members, i, i+1)
	v.release(&old)
	return v
}

// Cost implements [Operation].
func (Remove) Cost(c Costs) int { return c.Release }

// String implements [Operation].
func (o Remove) String() string { return "remove " + o.Host }

// takeSpare takes a machine from the spares.
func (v *Vertex) takeSpare(host string) Spare {
	i := v.spare(host)
	s := v.Spares[i]
	v.Spares = slices.Delete(slices.Clone(v.Spares), i, i+1)
	return s
}

// release gives a former member's machine back, if it is still there.
func (v *Vertex) release(m *Member) {
	if m.State == Lost {
		return
	}
	spares := make([]Spare, len(v.Spares), len(v.Spares)+1)
	copy(spares, v.Spares)
	v.Spares = append(spares, Spare{Host: m.Host, Zone: m.Zone, Instance: m.Instance})
}
