package balancer

import (
	"math"
	"slices"
	"time"
)

// Heat is a rate that forgets: an average in which an observation counts half
// after each half-life.
type Heat struct {
	Rate float64   `json:"rate"` // per second
	At   time.Time `json:"at"`
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
	Hours [24]float64 `json:"hours"` // mean rate of each hour of the day (UTC), the newest that is known
	Known [24]bool    `json:"known"`
}

// Observe keeps the mean rate of at's hour.
func (d Day) Observe(rate float64, at time.Time) Day {
	h := at.UTC().Hour()
	d.Hours[h], d.Known[h] = rate, true
	return d
}

// Cold reports whether no hour had a rate of at least that much.
func (d Day) Cold(rate float64) bool {
	return !slices.ContainsFunc(d.Hours[:], func(x float64) bool { return x >= rate })
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

// Memory is the heat of a chunk, and what is remembered of its last day.
type Memory struct {
	Heat Heat `json:"heat"`
	Day  Day  `json:"day"`
}

// Observe takes in a rate. An hour is remembered when it is over: until then the same hour
// of yesterday tells how today compares with it.
func (m Memory) Observe(rate float64, at time.Time, halfLife time.Duration) Memory {
	if !m.Heat.At.IsZero() && at.After(m.Heat.At) && !at.UTC().Truncate(time.Hour).Equal(m.Heat.At.UTC().Truncate(time.Hour)) {
		m.Day = m.Day.Observe(m.Heat.Rate, m.Heat.At)
	}
	m.Heat = m.Heat.Observe(rate, at, halfLife)
	return m
}

// Expect is the highest rate to expect from now until ahead later.
func (m Memory) Expect(at time.Time, ahead time.Duration) float64 {
	return m.Day.Forecast(m.Heat.Rate, at, ahead)
}
