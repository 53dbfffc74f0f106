package loads

import (
	"math"
	"sync"
	"time"
)

// Meter keeps how much was done when.
type Meter struct {
	mu     sync.Mutex
	points []point
}

// point is a sum at a moment.
type point struct {
	at   time.Time
	done float64
}

// Note keeps a sum.
func (m *Meter) Note(at time.Time, done float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.points = append(m.points, point{at, done})
}

// Over gives the rate over everything.
func (m *Meter) Over() float64 { return m.Last(time.Duration(math.MaxInt64)) }

// Last gives the rate over the last stretch of time, 0 when there is nothing to
// measure.
func (m *Meter) Last(stretch time.Duration) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.points) < 2 {
		return 0
	}
	end := m.points[len(m.points)-1]
	from := m.points[0]
	for _, p := range m.points[1:] {
		if end.at.Sub(p.at) < stretch {
			break
		}
		from = p
	}
	took := end.at.Sub(from.at).Seconds()
	if took <= 0 {
		return 0
	}
	return (end.done - from.done) / took
}
