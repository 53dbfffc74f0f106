package main

import (
	"math"
	"time"

	"drover/bench/figures"
)

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
