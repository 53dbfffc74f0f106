package bulkimport

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"drover/internal/mongocode"
	"drover/internal/testkit"
)

// used is a throttle of a shard that applications use.
func used(level float64, look func(context.Context) (Health, error)) *Throttle {
	return &Throttle{Name: "u", Look: look, courtesy: courtesy{crowd: true, level: level}}
}

// well is a look at a shard of which nothing is to be said.
func well(context.Context) (Health, error) { return Health{}, nil }

// TestStandingEndsWhereNothingIsSeen: nobody can see how the shard is without the import.
func TestStandingEndsWhereNothingIsSeen(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		look func(context.Context) (Health, error)
		ends time.Duration
	}{
		"looks fail":          {func(context.Context) (Health, error) { return Health{}, errors.New("no metadata") }, 0},
		"looks say nothing":   {well, stillMost},
		"looks are cut short": {func(ctx context.Context) (Health, error) { <-ctx.Done(); return Health{}, ctx.Err() }, lookFor},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				throttle := used(1, tc.look)
				began := time.Now()
				throttle.courtesy.still = began
				throttle.courtesy.window = []int64{1}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.NoError(t, gently(ctx, working(0), throttle))
				require.False(t, throttle.courtesy.stands())
				require.Equal(t, tc.ends, time.Since(began))
				require.Empty(t, throttle.courtesy.window, "what was heard meanwhile is of no level")
				require.Equal(t, throttle.courtesy.since, throttle.courtesy.stood, "the next time is a while away")
			})
		})
	}
}

// TestWhoWaitsHoldsNoPlace: while one shard is to be left alone, others work on another.
func TestWhoWaitsHoldsNoPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		free, standing := used(1, well), used(1, well)
		began := time.Now()
		standing.courtesy.still = began
		var both errgroup.Group
		both.Go(func() error { return gently(t.Context(), working(time.Millisecond), free, standing) })
		synctest.Wait()
		require.NoError(t, gently(t.Context(), working(0), free))
		require.Zero(t, time.Since(began))
		require.NoError(t, both.Wait())
		require.Equal(t, stillMost+time.Millisecond, time.Since(began))
		require.Zero(t, free.busy+standing.busy)
	})
}

// TestLookThatIsCutOffIsNoVerdict: an import that ends says nothing of the shard to others.
func TestLookThatIsCutOffIsNoVerdict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		throttle := &Throttle{Name: "a", Look: func(ctx context.Context) (Health, error) { <-ctx.Done(); return Health{}, ctx.Err() }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		throttle.look(ctx)
		require.Empty(t, throttle.Reason())
		<-time.After(lookEvery)
		throttle.look(t.Context())
		require.Contains(t, throttle.Reason(), "its health cannot be read")
	})
}

// failsOnce is a service that does not answer in time at first.
type failsOnce struct{ tries atomic.Int32 }

// Do implements [s3.HTTPClient].
func (f *failsOnce) Do(r *http.Request) (*http.Response, error) {
	if f.tries.Add(1) == 1 {
		return nil, os.ErrDeadlineExceeded
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// TestUploadHoldsNoPlaceBetweenTries: others work while it waits.
func TestUploadHoldsNoPlaceBetweenTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := &failsOnce{}
		i := &Importer{ReadPace: used(1, well), Bucket: Bucket{Name: "b", Client: s3.New(s3.Options{
			BaseEndpoint: aws.String("http://s3.invalid"), Region: "r", UsePathStyle: true, HTTPClient: service, RetryMaxAttempts: 1,
			Credentials: credentials.NewStaticCredentialsProvider("k", "s", ""),
		})}}
		began := time.Now()
		var g errgroup.Group
		g.Go(func() error { return i.upload(t.Context(), run{object: Object{Key: "k"}}) })
		synctest.Wait()
		require.EqualValues(t, 1, service.tries.Load())
		require.NoError(t, gently(t.Context(), working(0), i.ReadPace))
		require.Zero(t, time.Since(began))
		require.NoError(t, g.Wait())
		require.EqualValues(t, 3, service.tries.Load(), "the object anew, and its manifest")
	})
}

// TestLoadHoldsNoPlaceBetweenTries: others work while it waits for a shard that refuses a batch.
func TestLoadHoldsNoPlaceBetweenTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &Importer{LoadPace: used(1, well), Target: Target{Database: "db", KeepsEmptyTimestamps: true, Client: testkit.Replying(t,
			bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: mongocode.LockTimeout}, {Key: "errmsg", Value: "not now"}},
			bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}},
		)}}
		var b batch
		b.add(raw(bson.D{{Key: "_id", Value: 1}}))
		var done loadedStretch
		began := time.Now()
		var g errgroup.Group
		g.Go(func() error { return i.loadBatch(t.Context(), "c", &b, &done, i.loading()) })
		synctest.Wait()
		require.NoError(t, gently(t.Context(), working(0), i.LoadPace))
		require.Zero(t, time.Since(began))
		require.NoError(t, g.Wait())
		require.Equal(t, Documents(1), done.Documents)
		require.Equal(t, retryFirst, time.Since(began), "at the second try")
	})
}

// TestTriesAreCountedFromTheFirstFailure: what waits for its first turn for minutes is
// tried again as often as what waits for none.
func TestTriesAreCountedFromTheFirstFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		require.NoError(t, retry(t.Context(), func(context.Context) error {
			if tries++; tries == 1 {
				<-time.After(2 * retryFor)
				return mongo.CommandError{Code: mongocode.LockTimeout}
			}
			return nil
		}))
		require.Equal(t, 2, tries)
	})
}

// TestRequestsTakeAPlaceLast: those that wait for other requests keep nobody from working.
func TestRequestsTakeAPlaceLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var entered atomic.Int32
		r := &reader{slots: make(chan struct{}, 1), pace: pace{
			others: func() bool { return true },
			gently: func(context.Context, func(context.Context) error) error {
				entered.Add(1)
				return errors.New("not today")
			},
		}}
		r.slots <- struct{}{}
		c := &cursor{from: r, frames: []Frame{{}}}
		c.request(t.Context())
		synctest.Wait()
		require.Zero(t, entered.Load())
		<-r.slots
		_, _, err := c.next(t.Context())
		require.ErrorContains(t, err, "not today")
		require.EqualValues(t, 1, entered.Load())
		require.Empty(t, r.slots)
	})
}

// cutOffRead gives a read of one document whose next turn is not given any more.
func cutOffRead(t *testing.T) (context.Context, turns, *mongo.Cursor) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	cursor, err := mongo.NewCursorFromDocuments([]any{bson.D{{Key: "_id", Value: int32(1)}}}, nil, nil)
	require.NoError(t, err)
	require.True(t, cursor.Next(ctx))
	require.False(t, cursor.Next(ctx))
	cancel(errors.New("paused"))
	return ctx, turns{}, cursor
}

// TestReadThatIsCutOffIsNotWhole: the cursor itself knows of no error.
func TestReadThatIsCutOffIsNotWhole(t *testing.T) {
	t.Parallel()
	type reading func(context.Context, turns, *mongo.Cursor) (snapshot, error)
	for name, read := range map[string]reading{
		"in order": func(ctx context.Context, ts turns, cursor *mongo.Cursor) (snapshot, error) {
			return collect(ctx, ts, cursor, collection{name: "c"}, Slice{Collection: "c"}, Limits{}.withDefaults(), nil)
		},
		"in none": func(ctx context.Context, ts turns, cursor *mongo.Cursor) (snapshot, error) {
			return collectUnordered(ctx, ts, cursor, collection{name: "c"}, Slice{Collection: "c"}, Limits{}.withDefaults(), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, ts, cursor := cutOffRead(t)
			_, err := read(ctx, ts, cursor)
			require.ErrorContains(t, err, "paused")
		})
	}
}
