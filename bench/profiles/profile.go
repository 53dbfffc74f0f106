package main

import (
	"time"

	"drover/bench/fences"
)

// Times of the profiles.
const (
	timeoutMS  = 3 * time.Second        // of a client with timeoutMS
	firstPause = 100 * time.Millisecond // of a client that backs off; it doubles
)

// row is one cell: a profile's requests of one kind at one fence.
type row struct {
	Known   bool  `json:"known"` // the proxy knew of the switch
	FenceMS int64 `json:"fence_ms"`
	fences.Row
	Expected string `json:"defined"`
}

// Outcomes that are defined.
const (
	noErrors  = "no errors"
	allErrors = "errors"
	either    = "either" // the fence ends at about the time when somebody gives up
)

// expected is the outcome that the design defines: a request is held for as long
// as the proxy holds, each try anew, and fails when the last one is not enough.
func expected(x row, live, sure time.Duration) string {
	hold, fence := sure, time.Duration(x.FenceMS)*time.Millisecond
	if x.Known {
		hold = live
	}
	p := x.Of
	patience, pause := hold, p.Pause
	for range p.Tries - 1 {
		patience += pause + hold
		pause *= 2
	}
	switch {
	case p.Limit > 0: // the driver tries again until it is over
		patience = p.Limit
	case p.Driver:
		patience += hold
	}
	const margin = 300 * time.Millisecond // a busy machine's
	switch {
	case fence+margin < patience:
		return noErrors
	case fence > patience+margin:
		return allErrors
	}
	return either
}

// fits reports whether the row ended as is defined.
func (x row) fits() bool {
	switch x.Expected {
	case noErrors:
		return x.Errors == 0
	case allErrors:
		return x.Errors == x.Requests
	}
	return true
}
