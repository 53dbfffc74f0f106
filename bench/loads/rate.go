package main

import (
	"math"
	"sync"
	"time"

	"drover/bench/figures"
)

// meter keeps how much was done when.
type meter struct {
	mu     sync.Mutex
	points []point
}

// point is a sum at a moment.
type point struct {
	at   time.Time
	done float64
}

// note keeps a sum.
func (m *meter) note(at time.Time, done float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.points = append(m.points, point{at, done})
}

// over gives the rate over everything.
func (m *meter) over() float64 { return m.last(time.Duration(math.MaxInt64)) }

// last gives the rate over the last stretch of time, 0 when there is nothing to
// measure.
func (m *meter) last(stretch time.Duration) float64 {
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

// quantile of durations in milliseconds; 0 of none.
func quantile(values []time.Duration, q float64) float64 {
	return float64(figures.Quantile(values, q).Microseconds()) / 1000
}

// round keeps a figure readable.
func round(v float64) float64 {
	if math.Abs(v) >= 100 {
		return math.Round(v)
	}
	return math.Round(v*100) / 100
}
