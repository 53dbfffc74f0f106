package balancer

import (
	"math"
	"time"
)

// Heat is a rate that forgets: an average in which an observation counts half
// after each half-life.
type Heat struct {
	Rate float64 // per second
	At   time.Time
}

// HalfLife is how fast heat is forgotten, unless a policy says otherwise.
const HalfLife = 15 * time.Minute

// Observe takes in the rate that was measured since the last observation. Time
// that goes backwards changes nothing.
func (h Heat) Observe(rate float64, at time.Time, halfLife time.Duration) Heat {
	if h.At.IsZero() {
		return Heat{Rate: rate, At: at}
	}
	d := at.Sub(h.At)
	if d <= 0 {
		return h
	}
	keep := math.Exp2(-float64(d) / float64(halfLife))
	return Heat{Rate: keep*h.Rate + (1-keep)*rate, At: at}
}

// Day is a history of one day in hours, and what it tells of the next hours.
type Day struct {
	Hours [24]float64 // mean rate of each hour of the day (UTC), the newest that is known
	Known [24]bool
}

// Observe keeps the mean rate of at's hour.
func (d Day) Observe(rate float64, at time.Time) Day {
	h := at.UTC().Hour()
	d.Hours[h], d.Known[h] = rate, true
	return d
}

// maxGrowth bounds what a forecast makes of a day that is unlike yesterday.
const maxGrowth = 3

// Forecast is the highest rate to expect from now until ahead later: yesterday's
// at the same hours, scaled by how today compares with yesterday now. It is never
// below the rate now, and the rate now where nothing is known.
func (d Day) Forecast(now float64, at time.Time, ahead time.Duration) float64 {
	high := now
	growth := 1.0
	if h := at.UTC().Hour(); d.Known[h] && d.Hours[h] > 0 {
		growth = min(max(now/d.Hours[h], 1.0/maxGrowth), maxGrowth)
	}
	for t := at.Add(time.Hour); !t.After(at.Add(ahead)); t = t.Add(time.Hour) {
		if h := t.UTC().Hour(); d.Known[h] {
			high = max(high, growth*d.Hours[h])
		}
	}
	return high
}
