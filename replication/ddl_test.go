package replication

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/stoppoint"
)

// described is DDL as change streams tell of it with showExpandedEvents.
func described(t testing.TB, op event.Op, operation string) *event.Event {
	t.Helper()
	d := bson.D{{Key: "operationType", Value: string(op)}}
	if operation != "" {
		d = append(d, bson.E{Key: "operationDescription", Value: js(t, operation)})
	}
	return &event.Event{Op: op, Database: "app_0001_p2", Collection: "c", Description: raw(t, d)}
}

// B055, B057, B058, B059, B063: what is done about each kind of DDL. Whatever is
// not known to be repeatable and harmless when it comes late stops the move.
func TestDDLPolicy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		op        event.Op
		operation string
		want      ddlAction
	}{
		"index":                     {"createIndexes", `{"indexes":[{"v":2,"key":{"a":1},"name":"a_1"}]}`, ddlFollow},
		"indexes":                   {"createIndexes", `{"indexes":[{"v":2,"key":{"a":1},"name":"a_1"},{"v":2,"key":{"b":1},"name":"b_1","unique":true}]}`, ddlFollow},
		"one of them expires":       {"createIndexes", `{"indexes":[{"v":2,"key":{"a":1},"name":"a_1"},{"v":2,"key":{"at":1},"name":"at_1","expireAfterSeconds":60}]}`, ddlStop},
		"index without a name":      {"createIndexes", `{"indexes":[{"v":2,"key":{"a":1}}]}`, ddlStop},
		"indexes of another shape":  {"createIndexes", `{"indexes":{"a":1}}`, ddlStop},
		"no indexes":                {"createIndexes", `{"indexes":[]}`, ddlStop},
		"no description":            {"createIndexes", "", ddlStop},
		"index dropped":             {"dropIndexes", `{"indexes":[{"v":2,"key":{"a":1},"name":"a_1"}]}`, ddlFollow},
		"expiring index dropped":    {"dropIndexes", `{"indexes":[{"v":2,"key":{"at":1},"name":"at_1","expireAfterSeconds":60}]}`, ddlFollow},
		"something dropped":         {"dropIndexes", `{}`, ddlStop},
		"hidden":                    {"modify", `{"index":{"name":"a_1","hidden":true}}`, ddlFollow},
		"prepared":                  {"modify", `{"index":{"name":"a_1","prepareUnique":true}}`, ddlFollow},
		"validator":                 {"modify", `{"validator":{"a":{"$exists":true}},"validationLevel":"strict"}`, ddlFollow},
		"expiry":                    {"modify", `{"index":{"name":"at_1","expireAfterSeconds":60}}`, ddlStop},
		"expiry of a clustered one": {"modify", `{"expireAfterSeconds":60}`, ddlStop},
		"expiry and hidden":         {"modify", `{"index":{"name":"at_1","expireAfterSeconds":60,"hidden":true}}`, ddlStop},
		"view":                      {"modify", `{"viewOn":"d","pipeline":[]}`, ddlStop},
		"option of a later version": {"modify", `{"novelty":1}`, ddlStop},
		"modify of nothing":         {"modify", `{}`, ddlStop},
		"create":                    {"create", `{"idIndex":{"v":2,"key":{"_id":1},"name":"_id_"}}`, ddlStop},
		"drop":                      {"drop", "", ddlStop},
		"drop of the database":      {"dropDatabase", "", ddlStop},
		"rename":                    {"rename", `{"to":{"db":"app_0001_p2","coll":"d"}}`, ddlStop},
		"build begun":               {"startIndexBuild", `{"indexes":[{"v":2,"key":{"a":1},"name":"a_1"}]}`, ddlStop},
		"shardCollection":           {"shardCollection", `{"shardKey":{"a":1}}`, ddlStop},
		"reshardCollection":         {"reshardCollection", `{}`, ddlStop},
		"migrateChunkToNewShard":    {"migrateChunkToNewShard", `{}`, ddlStop},
		"invalidate":                {"invalidate", "", ddlStop},
		"of a later version":        {"of a later version", `{}`, ddlStop},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			action, why := ddlOf(described(t, tt.op, tt.operation))
			require.Equal(t, tt.want, action)
			require.Equal(t, tt.want == ddlStop, why != "", "who stops says why")
			f, ok := errors.AsType[*failure.Error](ddlError(described(t, tt.op, tt.operation), why))
			require.True(t, ok)
			require.Contains(t, f.Hint, "abort the migration")
			require.Equal(t, tt.want == ddlFollow, strings.Contains(f.Hint, "--on-ddl follow"), "nobody is sent to a policy that would stop as well")
		})
	}
}

// Each lane, each policy: one lane of all follows, the others pass it by; without
// the policy, and where documents are spread over lanes, all of them stop.
func TestDDLIsFollowedByOneLane(t *testing.T) {
	t.Parallel()
	e := described(t, "createIndexes", `{"indexes":[{"v":2,"key":{"a":1},"name":"a_1"}]}`)
	actions := func(d Definitions, by event.Spread) (counts [3]int) {
		for p := range int32(8) {
			l := &Lane{lane: chunk.Lane{Partition: p}, cfg: &Config{Definitions: d, Direction: Direction{
				Source: chunk.Placement{Database: e.Database}, Partitions: 8, Spread: by,
			}}}
			r, err := l.classify(e)
			require.NoError(t, err)
			action, why := l.dealsWith(e)
			require.Equal(t, action == ddlIgnore, r.event == nil)
			require.Equal(t, action == ddlStop, why != "")
			counts[action]++
		}
		return counts
	}
	require.Equal(t, [3]int{ddlIgnore: 7, ddlFollow: 1}, actions(&fakeDefinitions{}, event.ByDatabase))
	require.Equal(t, [3]int{ddlStop: 8}, actions(&fakeDefinitions{}, event.ByDocument))
	require.Equal(t, [3]int{ddlStop: 8}, actions(nil, event.ByDatabase))
}

// A direction runs lanes only where events of its source can be.
func TestLanesAreWhereEventsAre(t *testing.T) {
	t.Parallel()
	d := Direction{Source: chunk.Placement{Database: "app_0001_p2"}, Partitions: 8}
	own, err := d.partitions()
	require.NoError(t, err)
	of, err := (&event.Event{Database: d.Source.Database, Collection: "c"}).Partition(8, d.Spread)
	require.NoError(t, err)
	require.Equal(t, []int32{of}, own)
	d.Spread = event.ByDocument
	all, err := d.partitions()
	require.NoError(t, err)
	require.Equal(t, []int32{0, 1, 2, 3, 4, 5, 6, 7}, all)
}

// fakeDefinitions notes what is to be followed.
type fakeDefinitions struct {
	mu   sync.Mutex
	seen []event.Op
	err  error
	on   func()
}

// Follow implements [Definitions].
func (d *fakeDefinitions) Follow(_ context.Context, e *event.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, e.Op)
	if d.on != nil {
		d.on()
	}
	return d.err
}

// ddl puts DDL of the source into the log.
func (w *world) ddl(op event.Op, operation string) {
	w.t.Helper()
	e := described(w.t, op, operation)
	e.Database = w.cfg.Direction.Source.Database
	w.log.add(w.t, *e)
}

// One lane follows DDL between the events that it stood between, again after a
// death before or behind it, and the others go on.
func testDDLFollowed(t *testing.T, w *world) {
	w.log.spread, w.cfg.Direction.Spread = event.ByDatabase, event.ByDatabase
	had := -1
	definitions := &fakeDefinitions{on: func() { had = len(contents(t, w.target().Collection("c"))) }}
	w.cfg.Definitions = definitions
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	w.ddl("createIndexes", `{"indexes":[{"v":2,"key":{"a":1},"name":"a_1"}]}`)
	w.inserted(bson.D{{Key: "_id", Value: 2}})
	for i, point := range []string{"lane.define", "lane.defined"} {
		deadly := w.cfg
		deadly.Points = stoppoint.New(func(_ context.Context, name string) error {
			if name == point {
				return errDied
			}
			return nil
		})
		require.ErrorIs(t, w.run(deadly).wait(), errDied)
		require.Len(t, definitions.seen, i)
		require.Len(t, contents(t, w.target().Collection("c")), 1, "nothing behind it was applied")
	}
	r := w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	require.Equal(t, []event.Op{"createIndexes", "createIndexes"}, definitions.seen)
	require.Equal(t, 1, had)
	require.EqualValues(t, 2, w.applied())
	require.NoError(t, ignoreCancel(r.end()))
	w.run(w.cfg)
	w.ddl("modify", `{"index":{"name":"a_1","hidden":true}}`)
	w.ddl("dropIndexes", `{"indexes":[{"v":2,"key":{"a":1},"name":"a_1"}]}`)
	w.passes(w.mark(chunk.ValidateMarker, 2))
	require.Equal(t, []event.Op{"createIndexes", "createIndexes", "modify", "dropIndexes"}, definitions.seen, "what is saved is not followed again")
}

// What the target refuses, and what no policy follows, stops the move before it.
func testDDLRefused(t *testing.T, w *world) {
	w.log.spread, w.cfg.Direction.Spread = event.ByDatabase, event.ByDatabase
	definitions := &fakeDefinitions{err: errors.New("no such kind of index")}
	w.cfg.Definitions = definitions
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	w.ddl("createIndexes", `{"indexes":[{"v":2,"key":{"a":"odd"},"name":"a_odd"}]}`)
	err := w.run(w.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.ddl_refused"), "%v", err)
	require.True(t, failure.Is(err, failure.Invalid))
	definitions.on = func() { // the catalog is back after a while
		if len(definitions.seen) == 3 {
			definitions.err = nil
		}
	}
	definitions.err = failure.New(failure.Transient, "catalog.not_kept", "the catalog is out of reach")
	w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	w.ddl("create", `{}`)
	err = w.last.wait()
	require.True(t, failure.HasCode(err, "lane.ddl"), "%v", err)
	require.Len(t, definitions.seen, 3)
}

// ignoreCancel drops the error of lanes that were told to stop.
func ignoreCancel(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
