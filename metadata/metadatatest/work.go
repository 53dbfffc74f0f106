package metadatatest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// workCases is what the working parts need remembered.
var workCases = map[string]func(*testing.T, *fleet){
	"SlicesArePlannedOnce": func(t *testing.T, f *fleet) {
		m := f.register(t)
		at := func(n int) bson.Raw {
			b, err := bson.Marshal(bson.D{{Key: "_id", Value: n}})
			require.NoError(t, err)
			return b
		}
		plan := []metadata.Slice{{Hi: at(10)}, {Lo: at(10), Hi: at(20)}, {Lo: at(20)}}
		got, err := f.PlanSlices(t.Context(), m.ID, "legs", plan)
		require.NoError(t, err)
		require.Len(t, got, 3)
		require.Nil(t, got[0].Lo)
		require.Equal(t, at(10), got[1].Lo)
		again, err := f.PlanSlices(t.Context(), m.ID, "legs", []metadata.Slice{{}})
		require.NoError(t, err)
		require.Equal(t, got, again, "a retry follows the plan that stands")
		_, err = f.PlanSlices(t.Context(), m.ID, "airports", []metadata.Slice{{}})
		require.NoError(t, err)
		all, err := f.Slices(t.Context(), m.ID)
		require.NoError(t, err)
		require.Len(t, all, 4)
	},

	"SliceIsStoredOnceAndLoadedAfter": slicesKeepOrder,

	"VerificationIsKeptByDirection": func(t *testing.T, f *fleet) {
		m := f.register(t)
		_, ok, err := f.Verification(t.Context(), m.ID, 0)
		require.NoError(t, err)
		require.False(t, ok)
		for _, state := range []string{"one", "two"} {
			require.NoError(t, f.SaveVerification(t.Context(), metadata.Verification{Migration: m.ID, State: []byte(state), Report: json.RawMessage(`{"rounds": 3}`)}))
		}
		require.NoError(t, f.SaveVerification(t.Context(), metadata.Verification{Migration: m.ID, Direction: 8, State: []byte("back")}))
		v, ok, err := f.Verification(t.Context(), m.ID, 0)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, []byte("two"), v.State)
		require.JSONEq(t, `{"rounds": 3}`, string(v.Report))
		require.GreaterOrEqual(t, v.Age, time.Duration(0))
		require.Less(t, v.Age, time.Hour)
	},

	"DocumentsAreResolvedOneByOne": func(t *testing.T, f *fleet) {
		m := f.register(t)
		one, two := metadata.Mismatch{Collection: "legs", ID: []byte{1}, Kind: "value"}, metadata.Mismatch{Collection: "legs", ID: []byte{2}, Kind: "value"}
		require.NoError(t, f.RecordMismatches(t.Context(), m.ID, []metadata.Mismatch{one, two}))
		require.NoError(t, f.ResolveDocuments(t.Context(), m.ID, "legs", [][]byte{{1}, {3}}))
		require.NoError(t, f.ResolveDocuments(t.Context(), m.ID, "others", [][]byte{{2}}))
		left, total, err := f.OpenMismatches(t.Context(), m.ID, 10)
		require.NoError(t, err)
		require.Equal(t, int64(1), total)
		require.Equal(t, []byte{2}, left[0].ID)
	},

	"CaptureHasOneOwner": func(t *testing.T, f *fleet) {
		_, ok, err := f.Capture(t.Context(), "a")
		require.NoError(t, err)
		require.False(t, ok)
		p, err := f.TakeCapture(t.Context(), "a", "w1")
		require.NoError(t, err)
		require.Equal(t, metadata.CapturePosition{Shard: "a", Owner: "w1", Epoch: 1}, p)
		p.Seq, p.ResumeToken, p.State = 10, []byte{1, 0, 2}, []byte("state")
		require.NoError(t, f.SaveCapture(t.Context(), p))
		require.NoError(t, f.SaveCapture(t.Context(), p))

		q, err := f.TakeCapture(t.Context(), "a", "w2")
		require.NoError(t, err)
		require.Equal(t, metadata.CapturePosition{Shard: "a", Owner: "w2", Epoch: 2, Seq: 10, ResumeToken: []byte{1, 0, 2}, State: []byte("state")}, q)
		p.Seq = 11
		requireFailure(t, f.SaveCapture(t.Context(), p), failure.Lost, "capture.lost")
		back := q
		back.Seq = 9
		requireFailure(t, f.SaveCapture(t.Context(), back), failure.Lost, "capture.lost")
		got, ok, err := f.Capture(t.Context(), "a")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, q, got)
		_, err = f.TakeCapture(t.Context(), "nowhere", "w")
		require.Error(t, err)
	},

	"ArchiveGoesOnFromWhereItIs": func(t *testing.T, f *fleet) {
		p, err := f.ArchivePosition(t.Context(), "drover.log.a", 3)
		require.NoError(t, err)
		require.Zero(t, p.Offset)
		p.Offset, p.Manifest = 100, "m1"
		require.NoError(t, f.SaveArchive(t.Context(), 0, p))
		requireFailure(t, f.SaveArchive(t.Context(), 0, p), failure.Lost, "archive.lost")
		p.Offset = 150
		requireFailure(t, f.SaveArchive(t.Context(), 90, p), failure.Lost, "archive.lost")
		require.NoError(t, f.SaveArchive(t.Context(), 100, p))
		requireFailure(t, f.SaveArchive(t.Context(), 200, p), failure.Invalid, "archive.backwards")
		other := metadata.ArchivePosition{Topic: "drover.log.a", Partition: 2, Offset: 9}
		requireFailure(t, f.SaveArchive(t.Context(), 5, other), failure.Lost, "archive.lost")
		got, err := f.ArchivePosition(t.Context(), "drover.log.a", 3)
		require.NoError(t, err)
		require.Equal(t, p, got)
	},

	"StragglersAreKeptInFull": func(t *testing.T, f *fleet) {
		g := metadata.Straggler{Shard: "a", Placement: 1, Seq: 5, Kind: "insert", Event: []byte{0, 1, 2}}
		require.NoError(t, f.AddStraggler(t.Context(), g))
		require.NoError(t, f.AddStraggler(t.Context(), g))
		require.NoError(t, f.AddStraggler(t.Context(), metadata.Straggler{Shard: "a", Placement: 2, Seq: 6, Kind: "delete", Event: []byte{3}}))
		all, err := f.Stragglers(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.Equal(t, g.Event, all[0].Event)
		one, err := f.Stragglers(t.Context(), 2, 9)
		require.NoError(t, err)
		require.Len(t, one, 1)

		require.NoError(t, f.WithdrawStragglers(t.Context(), "a", 1, 5, 9, "outside"))
		require.NoError(t, f.WithdrawStragglers(t.Context(), "b", 1, 4, 9, "elsewhere"))
		require.NoError(t, f.WithdrawStragglers(t.Context(), "a", 2, 4, 7, "applied by the lanes"))
		open, err := f.Stragglers(t.Context())
		require.NoError(t, err)
		require.Len(t, open, 1)
		require.EqualValues(t, 5, open[0].Seq)
		require.NoError(t, f.AddStraggler(t.Context(), metadata.Straggler{Shard: "a", Placement: 2, Seq: 6, Kind: "delete", Event: []byte{3}}))
		n, err := f.AcknowledgeStragglers(t.Context(), []int64{open[0].ID, one[0].ID}, "ann", "replayed by hand")
		require.NoError(t, err)
		require.EqualValues(t, 1, n, "capture has taken back the other")
		open, err = f.Stragglers(t.Context())
		require.NoError(t, err)
		require.Empty(t, open)
		kept, err := f.StragglersOf(t.Context(), first)
		require.NoError(t, err)
		require.Len(t, kept, 1)
		require.Equal(t, []byte{0, 1, 2}, kept[0].Event)
		require.Equal(t, "ann: replayed by hand", kept[0].HandledBy+": "+kept[0].Note)
		require.False(t, kept[0].HandledAt.IsZero())
	},

	"CleanupLedgerSurvives": func(t *testing.T, f *fleet) {
		m := f.register(t)
		want := metadata.Cleanup{Placement: m.Target.ID, Migration: m.ID, Direction: 3}
		c, err := f.BeginCleanup(t.Context(), want)
		require.NoError(t, err)
		require.Empty(t, c.Done)
		require.NoError(t, f.CleanupStep(t.Context(), m.Target.ID, "grants"))
		require.NoError(t, f.CleanupStep(t.Context(), m.Target.ID, "database"))
		require.NoError(t, f.CleanupStep(t.Context(), m.Target.ID, "grants"))
		c, err = f.BeginCleanup(t.Context(), want)
		require.NoError(t, err)
		require.Equal(t, []string{"grants", "database"}, c.Done)
		require.True(t, c.Has("grants") && !c.Has("roles"))
		all, err := f.Cleanups(t.Context())
		require.NoError(t, err)
		require.Equal(t, []metadata.Cleanup{c}, all)
		require.NoError(t, f.EndCleanup(t.Context(), m.Target.ID))
		all, err = f.Cleanups(t.Context())
		require.NoError(t, err)
		require.Empty(t, all)
	},

	"CloneIsOpenUntilItEnds": func(t *testing.T, f *fleet) {
		m := f.register(t)
		at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		name := func(id chunk.MigrationID) string { return chunk.CloneName("d/0001", id) }
		want := metadata.Clone{WorkflowID: "clone/1", Chunk: m.Chunk.ID, At: at, Base: m.ID, KeepFrom: at.Add(-time.Hour), Shard: m.Target.Shard}
		c, err := f.RegisterClone(t.Context(), want, name)
		require.NoError(t, err)
		require.Greater(t, c.ID, m.ID, "no migration has its number")
		require.Equal(t, name(c.ID), c.Database)
		again, err := f.RegisterClone(t.Context(), want, name)
		require.NoError(t, err)
		require.Equal(t, c.ID, again.ID)
		open, err := f.Clones(t.Context(), true)
		require.NoError(t, err)
		require.Len(t, open, 1)
		require.True(t, open[0].KeepFrom.Equal(want.KeepFrom))
		require.Error(t, f.SetCloneState(t.Context(), c.ID, metadata.CloneLoading, metadata.CloneDone))
		err = f.SetCloneState(t.Context(), c.ID, metadata.CloneIndexing, metadata.CloneDone)
		require.True(t, failure.HasCode(err, "clone.moved_on"), "%v", err)
		used, err := f.InUse(t.Context(), m.Source.Shard)
		require.NoError(t, err)
		require.Contains(t, strings.Join(used, "; "), "reads its log")
		for _, step := range [][2]metadata.CloneState{
			{metadata.CloneLoading, metadata.CloneReplaying}, {metadata.CloneReplaying, metadata.CloneIndexing}, {metadata.CloneIndexing, metadata.CloneDone},
		} {
			require.NoError(t, f.SetCloneState(t.Context(), c.ID, step[0], step[1]))
			require.NoError(t, f.SetCloneState(t.Context(), c.ID, step[0], step[1]), "again is no error")
		}
		open, err = f.Clones(t.Context(), true)
		require.NoError(t, err)
		require.Empty(t, open, "nothing is kept for one that is done")
		used, err = f.InUse(t.Context(), m.Source.Shard)
		require.NoError(t, err)
		require.NotContains(t, strings.Join(used, "; "), "reads its log")
		used, err = f.InUse(t.Context(), m.Target.Shard)
		require.NoError(t, err)
		require.Contains(t, strings.Join(used, "; "), c.Database)
		require.NoError(t, f.SetCloneState(t.Context(), c.ID, metadata.CloneDone, metadata.CloneDropped))
		used, err = f.InUse(t.Context(), m.Target.Shard)
		require.NoError(t, err)
		require.NotContains(t, strings.Join(used, "; "), c.Database)
		_, err = f.Clone(t.Context(), 1<<40)
		require.True(t, failure.HasCode(err, "clone.unknown"), "%v", err)
	},

	"QuarantineHoldsUntilReleased": func(t *testing.T, f *fleet) {
		m := f.register(t)
		e := metadata.Quarantined{Lane: chunk.Lane{Migration: m.ID, Direction: 4, Partition: 2}, Seq: 8, Event: []byte{1}, Reason: "cannot fold\x00"}
		require.NoError(t, f.Quarantine(t.Context(), e))
		require.NoError(t, f.Quarantine(t.Context(), e))
		got, err := f.Quarantines(t.Context(), m.ID)
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, e.Lane, got[0].Lane)
		require.NoError(t, f.ReleaseQuarantine(t.Context(), e.Lane, e.Seq))
		got, err = f.Quarantines(t.Context(), m.ID)
		require.NoError(t, err)
		require.Empty(t, got)
	},

	"MismatchesAgeAndResolve": mismatchesAge,

	"ProxyThatIsBackLeavesItsLastRun": func(t *testing.T, f *fleet) {
		see := func(run string) {
			require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p1", Run: run, Address: "127.0.0.1:1", Hears: true}))
		}
		vanished := func() []metadata.Proxy {
			all, err := f.VanishedProxies(t.Context())
			require.NoError(t, err)
			return all
		}
		see("first")
		see("first")
		require.Empty(t, vanished())
		see("second") // within a moment, as after a crash
		gone := vanished()
		require.Len(t, gone, 1)
		require.True(t, gone[0].Back)
		live, err := f.LiveProxies(t.Context())
		require.NoError(t, err)
		require.Len(t, live, 1, "it is awaited as well")
		require.Equal(t, "second", live[0].Run)
		see("second")
		require.Len(t, vanished(), 1, "for as long as what it left may run")
		require.NoError(t, f.exec(t, `update proxies set broke_at = broke_at - interval '2 minutes'`))
		require.Empty(t, vanished())

		require.NoError(t, f.RemoveProxy(t.Context(), "p1", "first"))
		live, err = f.LiveProxies(t.Context())
		require.NoError(t, err)
		require.Len(t, live, 1, "a late goodbye is of the run that says it")
		require.NoError(t, f.RemoveProxy(t.Context(), "p1", "second"))
		see("third")
		require.Empty(t, vanished(), "the last one said goodbye")
	},

	"ProxiesLiveWhileTheyAreSeen": func(t *testing.T, f *fleet) {
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p1", Address: "127.0.0.1:1", Hold: 10 * time.Second}))
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p2", Address: "127.0.0.1:2", Hold: 0}))
		require.NoError(t, f.exec(t, `update proxies set seen_at = seen_at - interval '7 seconds' where id = 'p1'`))
		live, err := f.LiveProxies(t.Context())
		require.NoError(t, err)
		require.Len(t, live, 1)
		require.Equal(t, "p2", live[0].ID)
		require.False(t, live[0].Hears)
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p2", Address: "127.0.0.1:2", Hears: true}))
		live, err = f.LiveProxies(t.Context())
		require.NoError(t, err)
		require.True(t, live[0].Hears)
		gone, err := f.VanishedProxies(t.Context())
		require.NoError(t, err)
		require.Len(t, gone, 1)
		require.Equal(t, "p1", gone[0].ID)
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p1", Address: "127.0.0.1:3", Hold: 4 * time.Second}))
		live, err = f.LiveProxies(t.Context())
		require.NoError(t, err)
		require.Len(t, live, 2)
		require.Equal(t, "127.0.0.1:3", live[0].Address)
		gone, err = f.VanishedProxies(t.Context())
		require.NoError(t, err)
		require.Empty(t, gone)
		require.NoError(t, f.exec(t, `update proxies set seen_at = seen_at - interval '2 days' where id = 'p1'`))
		require.NoError(t, f.SeeProxy(t.Context(), metadata.Proxy{ID: "p2", Address: "127.0.0.1:2", Hold: 0}))
		require.NoError(t, f.RemoveProxy(t.Context(), "p2", ""))
		var left int
		require.NoError(t, f.raw.QueryRow(t.Context(), `select count(*) from proxies`).Scan(&left))
		require.Zero(t, left)
	},
}

// slicesKeepOrder takes slices through their states, by the methods and by hand.
func slicesKeepOrder(t *testing.T, f *fleet) {
	m := f.register(t)
	plan, err := f.PlanSlices(t.Context(), m.ID, "legs", []metadata.Slice{{}, {}})
	require.NoError(t, err)
	s := plan[1]
	requireFailure(t, f.SetSliceState(t.Context(), s, metadata.SliceStored, metadata.SliceLoaded), failure.Lost, "slice.is_planned")
	require.Error(t, f.exec(t, `update slices set state = 'loaded'`))
	requireFailure(t, f.StoreSlice(t.Context(), s, nil), failure.Invalid, "slice.incomplete")
	s.ObjectKey, s.TLo, s.THi = "k", bson.Timestamp{T: 10, I: 1}, bson.Timestamp{T: 9, I: 9}
	requireFailure(t, f.StoreSlice(t.Context(), s, nil), failure.Invalid, "slice.window")
	s.THi = bson.Timestamp{T: 1<<32 - 1, I: 1<<32 - 1}
	s.Docs, s.Bytes, s.Hash, s.Manifest = 3, 300, []byte{1, 2}, json.RawMessage(`{"runs": 2}`)
	errs := race(4, func(i int) error {
		mine := s
		mine.ObjectKey = string(rune('a' + i))
		return f.StoreSlice(t.Context(), mine, nil)
	})
	require.Equal(t, 1, countNil(errs), "one object is the slice's")
	won := slices.IndexFunc(errs, func(err error) bool { return err == nil })
	all, err := f.Slices(t.Context(), m.ID)
	require.NoError(t, err)
	s.ObjectKey, s.State = string(rune('a'+won)), metadata.SliceStored
	require.Equal(t, s, all[1])
	require.NoError(t, f.SetSliceState(t.Context(), s, metadata.SliceStored, metadata.SliceLoaded))
	requireFailure(t, f.SetSliceState(t.Context(), s, metadata.SliceStored, metadata.SliceLoaded), failure.Lost, "slice.is_loaded")
	require.NoError(t, f.SetSliceState(t.Context(), s, metadata.SliceLoaded, metadata.SlicePlanned))
	s.No = 9
	requireFailure(t, f.SetSliceState(t.Context(), s, metadata.SliceLoaded, metadata.SlicePlanned), failure.Invalid, "slice.unknown")
}

// mismatchesAge checks what decides whether a difference is old, new or over.
func mismatchesAge(t *testing.T, f *fleet) {
	m := f.register(t)
	long := strings.Repeat("x", 20_000) // longer than an index entry may be
	found := []metadata.Mismatch{
		{Collection: "legs", ID: []byte(long), Path: "a.b", Kind: "value"},
		{Collection: "legs", ID: []byte("2"), Path: long, Kind: "missing"},
		{Collection: "airports", Kind: "options"},
	}
	require.NoError(t, f.RecordMismatches(t.Context(), m.ID, found))
	some, total, err := f.OpenMismatches(t.Context(), m.ID, 2)
	require.NoError(t, err)
	require.Len(t, some, 2)
	require.Equal(t, int64(3), total)

	began, err := f.Now(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.RecordMismatches(t.Context(), m.ID, found[:1]))
	require.NoError(t, f.ResolveMismatches(t.Context(), m.ID, "legs", began))
	some, total, err = f.OpenMismatches(t.Context(), m.ID, 10)
	require.NoError(t, err)
	require.Equal(t, int64(2), total)
	i := slices.IndexFunc(some, func(x metadata.Mismatch) bool { return x.Collection == "legs" })
	require.Equal(t, []byte(long), some[i].ID)
	require.True(t, some[i].FirstSeen.Before(began), "one seen again keeps its age")
	require.False(t, some[i].LastSeen.Before(began))

	require.NoError(t, f.RecordMismatches(t.Context(), m.ID, found[1:2]))
	some, _, err = f.OpenMismatches(t.Context(), m.ID, 10)
	require.NoError(t, err)
	i = slices.IndexFunc(some, func(x metadata.Mismatch) bool { return x.Kind == "missing" })
	require.True(t, some[i].FirstSeen.After(began), "one that comes back is new")
	require.True(t, slices.IsSortedFunc(some, func(a, b metadata.Mismatch) int { return a.FirstSeen.Compare(b.FirstSeen) }))
	require.WithinDuration(t, began, some[0].FirstSeen, time.Hour)
}
