package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"

	"drover/internal/pause"
)

// Times of the profiles.
const (
	timeoutMS  = 3 * time.Second        // of a client with timeoutMS
	firstPause = 100 * time.Millisecond // of a client that backs off; it doubles
	mostTries  = 6                      // of a client that backs off
)

// profile is a way in which an application deals with errors.
type profile struct {
	name   string
	driver bool          // the driver's own retries are on, as they are by default
	limit  time.Duration // timeoutMS; 0: none
	tries  int           // of the application, around the driver's
	pause  time.Duration // before the second one; doubles
}

// Names of the profiles.
const (
	noRetry    = "no retry"
	quickRetry = "one quick retry"
	byDefault  = "driver default"
	byTimeout  = "timeoutMS"
	backOff    = "doubling back-off"
)

// profiles are those that are compared. limit is for the one with timeoutMS, pause
// the first one of the one that backs off.
func profiles(limit, pause time.Duration) []profile {
	return []profile{
		{name: noRetry, tries: 1},
		{name: quickRetry, tries: 2},
		{name: byDefault, driver: true, tries: 1},
		{name: byTimeout, driver: true, limit: limit, tries: 1},
		{name: backOff, tries: mostTries, pause: pause},
	}
}

// Kinds of requests.
const (
	kindRead  = "read"
	kindWrite = "write"
)

// kinds are both.
var kinds = []string{kindRead, kindWrite} //nolint:gochecknoglobals // a constant

// row is one cell: a profile's requests of one kind at one fence.
type row struct {
	Known       bool     `json:"known"` // the proxy knew of the switch
	FenceMS     int64    `json:"fence_ms"`
	Profile     string   `json:"profile"`
	Kind        string   `json:"kind"`
	Requests    int      `json:"requests"`
	Errors      int      `json:"errors"`   // that reached the application's users
	Attempts    float64  `json:"attempts"` // commands sent for one request, on average
	MostTries   int      `json:"most_attempts"`
	LongestMS   int64    `json:"longest_ms"`
	Codes       []string `json:"codes"`  // of every refusal, also of those that were retried
	Labels      []string `json:"labels"` // of them
	AppliedMore int      `json:"applied_more_than_acknowledged"`
	Expected    string   `json:"defined"`

	profile profile
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
	p := x.profile
	patience, pause := hold, p.pause
	for range p.tries - 1 {
		patience += pause + hold
		pause *= 2
	}
	switch {
	case p.limit > 0: // the driver tries again until it is over
		patience = p.limit
	case p.driver:
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

// caller is an application of one profile.
type caller struct {
	profile
	client *mongo.Client
	coll   *mongo.Collection
}

// tally is what one request's commands came to.
type tally struct {
	mu     sync.Mutex
	sent   int
	codes  map[string]bool
	labels map[string]bool
	failed func() // called at each refusal; nil: nobody is told
}

// tallyKey is where a request's context has its tally.
type tallyKey struct{}

// gaveUp stands for the code of a request that the client itself has ended.
const gaveUp = "client"

// note keeps the error of a command.
func (t *tally) note(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	told, ok := errors.AsType[driver.Error](err)
	if !ok || told.Code == 0 {
		t.codes[gaveUp] = true
		return
	}
	t.codes[fmt.Sprint(told.Code)] = true
	for _, l := range told.Labels {
		t.labels[l] = true
	}
}

// monitor counts the commands that the driver sends for a request.
func monitor() *event.CommandMonitor {
	return &event.CommandMonitor{
		Started: func(ctx context.Context, e *event.CommandStartedEvent) {
			if t, ok := ctx.Value(tallyKey{}).(*tally); ok {
				t.mu.Lock()
				t.sent++
				t.mu.Unlock()
			}
		},
		Failed: func(ctx context.Context, e *event.CommandFailedEvent) {
			if t, ok := ctx.Value(tallyKey{}).(*tally); ok {
				t.note(e.Failure)
				if t.failed != nil {
					t.failed()
				}
			}
		},
	}
}

// newCaller connects an application to the proxy.
func newCaller(uri string, p profile) (*caller, error) {
	o := options.Client().ApplyURI(uri).SetRetryReads(p.driver).SetRetryWrites(p.driver).SetMonitor(monitor())
	if p.limit > 0 {
		o.SetTimeout(p.limit)
	}
	c, err := mongo.Connect(o)
	if err != nil {
		return nil, err
	}
	return &caller{profile: p, client: c, coll: c.Database(database).Collection(collection)}, nil
}

// request is what became of one.
type request struct {
	tally
	id     string
	err    error
	lasted time.Duration
}

// do makes one request as the profile does.
func (c *caller) do(ctx context.Context, kind string, r *request) {
	ctx = context.WithValue(ctx, tallyKey{}, &r.tally)
	began, backOff := time.Now(), c.pause
	for try := range c.tries {
		if try > 0 && backOff > 0 {
			if r.err = pause.For(ctx, backOff); r.err != nil {
				break
			}
			backOff *= 2
		}
		if r.err = c.once(ctx, kind, r.id); r.err == nil {
			break
		}
	}
	r.lasted = time.Since(began)
}

// once calls the driver.
func (c *caller) once(ctx context.Context, kind, id string) error {
	filter := bson.D{{Key: "_id", Value: id}}
	if kind == kindRead {
		return c.coll.FindOne(ctx, filter).Err()
	}
	_, err := c.coll.UpdateOne(ctx, filter, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(1)}}}})
	return err
}

// sum takes the row's requests together. applied is how often each one's write ran.
func (x *row) sum(all []request, applied func(id string) int64) {
	codes, told := map[string]bool{}, map[string]bool{}
	sent := 0
	for i := range all {
		r := &all[i]
		acknowledged := int64(1)
		if r.err != nil {
			x.Errors++
			acknowledged = 0
		}
		if r.codes[gaveUp] { // it gave up itself: the write may have run
			acknowledged = 1
		}
		if x.Kind == kindWrite && applied(r.id) > acknowledged {
			x.AppliedMore++
		}
		sent += r.sent
		x.MostTries = max(x.MostTries, r.sent)
		x.LongestMS = max(x.LongestMS, r.lasted.Milliseconds())
		maps.Copy(codes, r.codes)
		maps.Copy(told, r.labels)
	}
	x.Requests, x.Attempts = len(all), float64(sent)/float64(len(all))
	x.Codes, x.Labels = sorted(codes), sorted(told)
}

// sorted gives the members of a set, never nil.
func sorted(set map[string]bool) []string {
	return append([]string{}, slices.Sorted(maps.Keys(set))...)
}
