package fleet

import (
	"slices"
	"time"
)

// Report is what happened in a simulated fleet.
type Report struct {
	Faults map[Kind]int // by kind

	Cases       int // times a shard left full health
	OpenCases   int // of them, not ended at the end
	PersonCases int // times a person had to act

	TimesToHealth   map[Kind][]time.Duration // of ended cases, sorted, by what caused them
	UnhealthyHours  map[Kind]float64         // shard-hours, by what caused them
	UnwritableHours float64                  // shard-hours without writes

	Remediations int
	Plans        int
	Replans      int // plans because a shard was not as predicted
	Grown        int // runs that were stopped because their plans grew
	Operations   map[string]int
	Rebuilds     int            // copies of all data
	Crashes      int            // workers that died in the middle of an operation
	Held         map[string]int // candidates that were held at a look, by reason

	LostMajorities         int // by an operation; must be 0
	LostPrimaries          int // writes that an operation ended; must be 0
	MajoritiesLostToFaults int
	Races                  int // operations that met an open attempt; must be 0

	Moves                      int
	Switches                   int
	SwitchesDelayed            int
	SwitchDelayMax             time.Duration
	AttemptsWentBack           int
	MovesGivenUp               int
	MovesTold                  int // told by a remediation, and went on
	TargetsRebuiltDuringImport int
	LeaseWaitMax               time.Duration
}

func newReport() *Report {
	return &Report{
		Faults: map[Kind]int{}, TimesToHealth: map[Kind][]time.Duration{}, UnhealthyHours: map[Kind]float64{},
		Operations: map[string]int{}, Held: map[string]int{},
	}
}

// heal notes a case that has ended.
func (r *Report) heal(cause Kind, took time.Duration) {
	at, _ := slices.BinarySearch(r.TimesToHealth[cause], took)
	r.TimesToHealth[cause] = slices.Insert(r.TimesToHealth[cause], at, took)
	r.hours(cause, took)
}

// hours adds shard-hours of a case.
func (r *Report) hours(cause Kind, took time.Duration) { r.UnhealthyHours[cause] += took.Hours() }

// longest keeps the greater of two times.
func (*Report) longest(kept *time.Duration, d time.Duration) { *kept = max(*kept, d) }

// Quantile gives a quantile of the times to health of some kinds of faults, 0
// when there is none.
func (r *Report) Quantile(q float64, of ...Kind) time.Duration {
	var all []time.Duration
	for _, k := range of {
		all = append(all, r.TimesToHealth[k]...)
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// Total adds all operations.
func (r *Report) Total() int {
	n := 0
	for _, k := range r.Operations {
		n += k
	}
	return n
}

// Hours adds the shard-hours that some kinds of faults caused.
func (r *Report) Hours(of ...Kind) float64 {
	var sum float64
	for _, k := range of {
		sum += r.UnhealthyHours[k]
	}
	return sum
}
