package fences

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

// MostTries is how often a client tries that backs off.
const MostTries = 6

// Profile is a way in which an application deals with errors.
type Profile struct {
	Name   string
	Driver bool          // the driver's own retries are on, as they are by default
	Limit  time.Duration // timeoutMS; 0: none
	Tries  int           // of the application, around the driver's
	Pause  time.Duration // before the second one; doubles
}

// Names of the profiles.
const (
	NoRetry    = "no retry"
	QuickRetry = "one quick retry"
	ByDefault  = "driver default"
	ByTimeout  = "timeoutMS"
	BackOff    = "doubling back-off"
)

// Profiles are those that are compared. limit is for the one with timeoutMS, pause
// the first one of the one that backs off.
func Profiles(limit, pause time.Duration) []Profile {
	return []Profile{
		{Name: NoRetry, Tries: 1},
		{Name: QuickRetry, Tries: 2},
		{Name: ByDefault, Driver: true, Tries: 1},
		{Name: ByTimeout, Driver: true, Limit: limit, Tries: 1},
		{Name: BackOff, Tries: MostTries, Pause: pause},
	}
}

// Kinds of requests.
const (
	Read  = "read"
	Write = "write"
)

// Kinds are both.
var Kinds = []string{Read, Write} //nolint:gochecknoglobals // a constant

// Row is a profile's requests of one kind at one fence. Names of fields do not
// change.
type Row struct {
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
	Of          Profile  `json:"-"`
}

// Caller is an application of one profile.
type Caller struct {
	Profile
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
func newCaller(uri string, p Profile) (*Caller, error) {
	o := options.Client().ApplyURI(uri).SetRetryReads(p.Driver).SetRetryWrites(p.Driver).SetMonitor(monitor())
	if p.Limit > 0 {
		o.SetTimeout(p.Limit)
	}
	c, err := mongo.Connect(o)
	if err != nil {
		return nil, err
	}
	return &Caller{Profile: p, client: c, coll: c.Database(database).Collection(Collection)}, nil
}

// request is what became of one.
type request struct {
	tally
	id     string
	err    error
	lasted time.Duration
}

// do makes one request as the profile does.
func (c *Caller) do(ctx context.Context, kind string, r *request) {
	ctx = context.WithValue(ctx, tallyKey{}, &r.tally)
	began, backOff := time.Now(), c.Pause
	for try := range c.Tries {
		if try > 0 && backOff > 0 {
			if r.err = pause.For(ctx, backOff); r.err != nil {
				break
			}
			backOff *= 2
		}
		if r.err = c.Once(ctx, kind, r.id); r.err == nil {
			break
		}
	}
	r.lasted = time.Since(began)
}

// Once makes one request, which only the driver may repeat.
func (c *Caller) Once(ctx context.Context, kind, id string) error {
	filter := bson.D{{Key: "_id", Value: id}}
	if kind == Read {
		return c.coll.FindOne(ctx, filter).Err()
	}
	_, err := c.coll.UpdateOne(ctx, filter, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(1)}}}})
	return err
}

// sum takes the row's requests together. applied is how often each one's write ran.
func (x *Row) sum(all []request, applied func(id string) int64) {
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
		if x.Kind == Write && applied(r.id) > acknowledged {
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
