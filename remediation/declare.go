package remediation

import "fmt"

// MetBy refuses machines that cannot meet the layout, telling each slot for which
// none is left. A machine holds one member; one that is gone holds none.
func (l Layout) MetBy(machines []Machine) error {
	owner := make([]int, len(machines)) // slot on the machine, counted from 1
	var found []Problem
	for i := range l.Slots {
		if !l.seat(i, machines, owner, make([]bool, len(machines))) {
			s := l.Slots[i]
			found = append(found, Problem{
				fmt.Sprintf("slots[%d].zone", i), fmt.Sprintf("no machine of kind %q in zone %q is left for it", s.Instance, s.Zone),
			})
		}
	}
	if len(found) > 0 {
		return &LayoutError{Layout: l.Name, Problems: found}
	}
	return nil
}

// seat finds a machine for slot i, moving other slots to other machines.
func (l Layout) seat(i int, machines []Machine, owner []int, tried []bool) bool {
	for n, m := range machines {
		if tried[n] || m.Gone || !l.Slots[i].fits(m.Zone, m.Instance) {
			continue
		}
		tried[n] = true
		if owner[n] == 0 || l.seat(owner[n]-1, machines, owner, tried) {
			owner[n] = i + 1
			return true
		}
	}
	return false
}
