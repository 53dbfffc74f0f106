package validation_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
	"drover/validation"
)

// trail reads the world's log, one partition.
type trail struct{ w *world }

// Until implements [validation.Trail].
func (t trail) Until(_ context.Context, from validation.Offsets, to validation.Mark, fn func(*event.Event) (bool, error)) (validation.Offsets, bool, error) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	end := int64(len(t.w.log))
	if to.At.I > 0 {
		end = int64(to.At.I) - 1 // where the marker stands
	}
	for at := from[0]; at < end; at++ {
		if more, err := fn(t.w.log[at]); err != nil || !more {
			return validation.Offsets{at + 1}, false, err
		}
	}
	return validation.Offsets{end}, true, nil
}

// errEnough ends a watch in a test.
var errEnough = errors.New("enough")

// watcher watches w from the beginning of its log.
func (w *world) watcher(done func(validation.WatchState, validation.WatchReport) ([]validation.Document, error)) *validation.Watcher {
	return &validation.Watcher{
		Validator: w.validator(), Trail: trail{w}, Every: func() time.Duration { return 0 },
		Done: func(_ context.Context, s validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
			return done(s, r)
		},
	}
}

// watch runs a watch until done says that it is enough.
func (w *world) watch(t *testing.T, s validation.WatchState, done func(validation.WatchState, validation.WatchReport) ([]validation.Document, error)) {
	t.Helper()
	require.ErrorIs(t, w.watcher(done).Watch(t.Context(), s), errEnough)
}

// write gives a document of collection c.
func doc(id int, v any) bson.Raw { return raw(bson.D{{Key: "_id", Value: id}, {Key: "v", Value: v}}) }

// TestWatchVerifiesWhatChanges: every change after the validation is compared, a
// few at a time where there are many, and nothing that did not change is read.
func TestWatchVerifiesWhatChanges(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(500)...)
	w.follow(t)
	for i := range 100 {
		w.write(event.Insert, doc(10_000+i, i))
	}
	watcher := w.watcher(func(s validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
		require.Empty(t, r.Mismatches)
		if r.Verified >= 100 && !r.Behind {
			require.Empty(t, s.Suspects)
			return nil, errEnough
		}
		return nil, nil
	})
	watcher.Settings.Suspects = 7 // of a hundred
	require.ErrorIs(t, watcher.Watch(t.Context(), validation.WatchState{Offsets: validation.Offsets{0}}), errEnough)
	reads := watcher.Source.(*side).reads
	require.Equal(t, 100, reads, "each changed document once")
}

// TestWatchSeesWhatChangedBehindASlice: lanes lose the change of a document whose slice
// has been compared already, while the others still are. The validation cannot know;
// the verification began behind its end, and nobody ever looked.
func TestWatchSeesWhatChangedBehindASlice(t *testing.T) {
	t.Parallel()
	w := newWorld()
	all := docs(55)
	slices.SortFunc(all, func(a, b bson.Raw) int { return cmp.Compare(keyOf(a), keyOf(b)) })
	w.both("c", all...)
	w.apply = func(store, *event.Event) {}
	lost := raw(bson.D{{Key: "_id", Value: all[0].Lookup("_id")}, {Key: "lost", Value: true}})
	markers := 0
	w.onWrite = func() {
		if markers++; markers == 4 { // the first slice was over with the second one
			w.write(event.Replace, lost)
		}
	}
	v := w.validator()
	v.Settings.Slice = 10
	result := w.run(t, v, "c")
	require.True(t, result.Clean(), "%v", result.Mismatches)
	require.Greater(t, markers, 4, "slices were compared behind the change")
	rounds := 0
	began := validation.Offsets{int64(result.First.At.I) - 1}
	w.watch(t, validation.WatchState{Offsets: began, Suspects: result.Busy}, func(_ validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
		if rounds++; len(r.Mismatches) == 0 {
			require.Less(t, rounds, 4, "nobody looks")
			return nil, nil
		}
		require.Equal(t, keyOf(lost), keyOf(r.Mismatches[0].ID))
		return nil, errEnough
	})
}

// TestWatchFindsEachKind plants one fault in what lanes do after the validation.
func TestWatchFindsEachKind(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		breaks func(target store, e *event.Event)
		op     event.Op
		want   validation.Kind
	}{
		"lost insert": {func(store, *event.Event) {}, event.Insert, validation.MissingDocument},
		"lost delete": {func(store, *event.Event) {}, event.Delete, validation.ExtraDocument},
		"other value": {func(s store, e *event.Event) { s.put(e.Collection, doc(7, "other")) }, event.Replace, validation.DifferentType},
		"other order": {func(s store, e *event.Event) {
			s.put(e.Collection, raw(bson.D{{Key: "v", Value: 2}, {Key: "_id", Value: 7}}))
		}, event.Replace, validation.DifferentOrder},
		"field missed": {func(s store, e *event.Event) { s.put(e.Collection, raw(bson.D{{Key: "_id", Value: 7}})) }, event.Replace, validation.MissingField},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.both("c", docs(20)...)
			if tc.op != event.Insert {
				w.both("c", doc(7, 1))
			}
			w.apply = tc.breaks
			w.follow(t)
			w.write(tc.op, doc(7, 2))
			rounds := 0
			w.watch(t, validation.WatchState{Offsets: validation.Offsets{0}}, func(s validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
				if rounds++; len(r.Mismatches) == 0 {
					require.Less(t, rounds, 4)
					return nil, nil
				}
				require.Equal(t, 2, rounds, "a difference must outlive a recheck")
				require.Equal(t, tc.want, r.Mismatches[0].Kind)
				require.False(t, r.Mismatches[0].FirstSeen.IsZero())
				require.Len(t, s.Suspects, 1, "a restart must find it again")
				return nil, errEnough
			})
		})
	}
}

// TestWatchGoesOnAfterARestart ends a watch between the first and the second look
// at a difference: the next one finds it.
func TestWatchGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.apply = func(store, *event.Event) {}
	w.follow(t)
	w.write(event.Insert, doc(1, 1))
	var kept validation.WatchState
	w.watch(t, validation.WatchState{Offsets: validation.Offsets{0}}, func(s validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
		require.Equal(t, 1, r.Pending)
		kept = s
		return nil, errEnough
	})
	b, err := bson.Marshal(kept) // as it is kept
	require.NoError(t, err)
	var again validation.WatchState
	require.NoError(t, bson.Unmarshal(b, &again))
	w.watch(t, again, func(_ validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
		if len(r.Mismatches) == 1 {
			return nil, errEnough
		}
		require.Less(t, r.Rounds, int64(5))
		return nil, nil
	})
}

// TestWatchLeavesHotDocumentsForTheFence: what changes in every round is never
// called different, and never called the same.
func TestWatchLeavesHotDocumentsForTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", doc(1, 0), doc(2, 0), doc(3, 0), doc(4, 0))
	n := 0
	w.onWrite = func() { // between the reads and the marker that ends them
		n++
		for id := range 4 {
			w.write(event.Replace, doc(id+1, n))
		}
	}
	w.follow(t)
	w.watch(t, validation.WatchState{Offsets: validation.Offsets{0}}, func(_ validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
		require.Empty(t, r.Mismatches)
		require.Zero(t, r.Verified)
		if r.Rounds < 3 {
			require.Empty(t, r.Hot)
			return nil, nil
		}
		require.Len(t, r.Hot, 3)
		require.Equal(t, 1, r.TooHot)
		return nil, errEnough
	})
}

// TestWatchSeesForeignWrites: what nobody wrote on the source is found on the
// target, though the source's log is silent.
func TestWatchSeesForeignWrites(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(5)...)
	w.follow(t)
	other := newWorld()
	id := raw(bson.D{{Key: "_id", Value: 777}})
	other.log = []*event.Event{
		{Seq: 1, Op: event.Insert, Database: "app_0001_p2", Collection: "c", Key: raw(bson.D{{Key: "_id", Value: 1}}), Label: 9},
		{Seq: 2, Op: event.Insert, Database: "app_0001_p2", Collection: "c", Key: id},
	}
	w.target.put("c", doc(777, 1))
	watcher := w.watcher(func(_ validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
		require.Less(t, r.Rounds, int64(5))
		if len(r.Mismatches) == 0 {
			require.LessOrEqual(t, r.Pending, 1, "the replicator's own is no suspect")
			return nil, nil
		}
		require.Equal(t, validation.ExtraDocument, r.Mismatches[0].Kind)
		return nil, errEnough
	})
	watcher.Foreign, watcher.TargetDatabase = trail{other}, "app_0001_p2"
	err := watcher.Watch(t.Context(), validation.WatchState{Offsets: validation.Offsets{0}, Foreign: validation.Offsets{0}})
	require.ErrorIs(t, err, errEnough)
}

// TestWatchSeesNoFalseAlarm runs writers against lanes and a watch.
func TestWatchSeesNoFalseAlarm(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(50)...)
	w.follow(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r := random(3)
		for ctx.Err() == nil {
			op := event.Replace
			if r.IntN(4) == 0 {
				op = event.Delete
			}
			w.write(op, doc(r.IntN(40), r.IntN(1000)))
		}
	}()
	w.watch(t, validation.WatchState{Offsets: validation.Offsets{0}}, func(_ validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
		require.Empty(t, r.Mismatches, fmt.Sprint(r.Mismatches))
		if r.Rounds == 200 {
			cancel()
			return nil, errEnough
		}
		return nil, nil
	})
	<-ended
}

// TestWatchAsksNothingWhileNothingChanges: rounds without suspects neither read
// documents nor ask how far the lanes are, and the first change is compared as ever.
func TestWatchAsksNothingWhileNothingChanges(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(5)...)
	w.follow(t)
	markers := &lateMarkers{world: w}
	watcher := w.watcher(func(_ validation.WatchState, r validation.WatchReport) ([]validation.Document, error) {
		require.Empty(t, r.Mismatches)
		switch {
		case r.Rounds < 10:
			require.Zero(t, markers.waited)
		case r.Rounds == 10:
			w.write(event.Replace, doc(3, "new"))
		case r.Verified == 1:
			require.Equal(t, 1, markers.waited)
			return nil, errEnough
		}
		require.Less(t, r.Rounds, int64(20))
		return nil, nil
	})
	watcher.Markers = markers
	require.ErrorIs(t, watcher.Watch(t.Context(), validation.WatchState{Offsets: validation.Offsets{0}}), errEnough)
	require.Equal(t, 1, watcher.Source.(*side).reads)
}
