package cdc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/internal/testkit"
)

// archived is the position store of a test.
type archived struct {
	mu sync.Mutex
	at [64]int64
}

func (a *archived) Archived(_ context.Context, _ string, partition int32) (int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at[partition], nil
}

func (a *archived) SaveArchived(_ context.Context, topic string, partition int32, from, to int64, _ string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at[partition] != from {
		return failure.New(failure.Lost, "archive.lost", "%s/%d is at %d, not %d", topic, partition, a.at[partition], from)
	}
	a.at[partition] = to
	return nil
}

// reached reports whether each partition is archived up to its offset.
func (a *archived) reached(offsets []int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for p, o := range offsets {
		if a.at[p] < o {
			return false
		}
	}
	return true
}

// objects gives a fresh bucket.
func objects(t testing.TB) *cdc.Objects {
	t.Helper()
	b := testkit.S3(t)
	return &cdc.Objects{Bucket: b.Bucket, Client: s3.New(s3.Options{
		Region: b.Region, BaseEndpoint: &b.Endpoint, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(b.AccessKey, b.SecretKey, ""),
	})}
}

// archive gives an archive of small segments.
func (b *bundle) archive(o *cdc.Objects, positions cdc.ArchivePositions, stops *stoppoint.Points) *cdc.Archive {
	return &cdc.Archive{
		Shard: b.name, Log: b.log, Objects: o, Positions: positions, Stops: stops,
		Settings: cdc.ArchiveSettings{SegmentBytes: 4 << 10, SegmentAge: 200 * time.Millisecond, RetryEvery: 10 * time.Millisecond},
	}
}

// archiveTo archives until everything before ends is in o.
func (b *bundle) archiveTo(t testing.TB, o *cdc.Objects, positions *archived, ends []int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.archive(o, positions, nil).Run(ctx) }()
	require.Eventually(t, func() bool { return positions.reached(ends) }, time.Minute, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

// reader is [cdc.Log] or [cdc.Replay].
type reader interface {
	Read(ctx context.Context, shard string, partition int32, from int64, fn func(int64, *event.Event) error) error
}

// offsetsAndSeqs reads [from, to) of a partition.
func (b *bundle) offsetsAndSeqs(t testing.TB, r reader, partition int32, from, to int64) (all [][2]int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := r.Read(ctx, b.name, partition, from, func(offset int64, e *event.Event) error {
		if e != nil {
			all = append(all, [2]int64{offset, e.Seq})
		}
		if offset >= to-1 {
			return cdc.ErrStop
		}
		return nil
	})
	require.NoError(t, err)
	return all
}

// The archive dies between every two of its steps, two of them run at once, and
// Kafka drops its front: what was written is read from any offset on.
func TestReplayHasNoHoleAndNoRepetition(t *testing.T) {
	t.Parallel()

	b := setup(t, testkit.Kafka(t))
	o := objects(t)
	start(t, b.capture(nil))
	load := b.load(t, 4)
	positions := &archived{}
	var mu sync.Mutex
	steps := 0
	stops := stoppoint.New(func(context.Context, string) error {
		mu.Lock()
		defer mu.Unlock()
		if steps++; steps%3 == 0 {
			return errCrash
		}
		return nil
	})
	for range 8 { // each time with a rival
		ctx, cancel := context.WithCancel(t.Context())
		rival := make(chan error, 1)
		go func() { rival <- b.archive(o, positions, nil).Run(ctx) }()
		err := b.archive(o, positions, stops).Run(ctx)
		require.True(t, errors.Is(err, errCrash) || failure.Is(err, failure.Lost), "%v", err)
		cancel()
		<-rival
	}
	load.end()
	b.seam(t)
	ends, err := b.log.EndOffsets(t.Context(), b.name)
	require.NoError(t, err)
	want := make([][][2]int64, len(ends))
	for p, end := range ends {
		want[p] = b.offsetsAndSeqs(t, b.log, int32(p), 0, end)
		require.Len(t, want[p], int(end))
	}
	b.archiveTo(t, o, positions, ends)

	half := make([]int64, len(ends))
	for p := range ends {
		half[p] = ends[p] / 2
	}
	replay := &cdc.Replay{Log: b.cut(t, half), Objects: o}
	for p, end := range ends {
		for _, from := range []int64{0, 1, end / 3, end/2 - 1, end / 2, end - 1} {
			got := b.offsetsAndSeqs(t, replay, int32(p), from, end)
			require.Equal(t, want[p][from:], got, "partition %d from %d", p, from)
		}
	}
	err = replay.Read(t.Context(), b.name, 0, 1<<40, func(int64, *event.Event) error { return errors.New("a record") })
	require.True(t, failure.HasCode(err, "log.offset_out_of_range"), "%v", err)
}

// A move that was paused for longer than Kafka keeps its log finds its start marker in the
// archive; Kafka alone would be searched for it for ever.
func TestMarkersAreFoundInTheArchive(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	o := objects(t)
	start(t, b.capture(nil))
	for range 3 {
		b.seam(t)
	}
	m := chunk.Marker{Kind: chunk.StartMarker, Migration: 9, Placement: 42, At: time.Now()}
	want := b.find(t, b.marker(t, m))
	for range 3 {
		b.seam(t)
	}
	ends, err := b.log.EndOffsets(t.Context(), b.name)
	require.NoError(t, err)
	b.archiveTo(t, o, &archived{}, ends)
	replay := &cdc.Replay{Log: b.cut(t, ends), Objects: o}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := replay.FindMarker(ctx, b.name, m.Key(), m.At)
	require.NoError(t, err)
	require.Equal(t, want, got)
	newer := chunk.Marker{Kind: chunk.ValidateMarker, Migration: 9, Placement: 42, At: time.Now()}
	b.marker(t, newer)
	got, err = replay.FindMarker(ctx, b.name, newer.Key(), newer.At)
	require.NoError(t, err, "one that is not captured yet is waited for")
	require.GreaterOrEqual(t, got[0].Offset, ends[0])
}

// What Kafka dropped before it was archived is a hole that nobody hides.
func TestArchiveRefusesAHole(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	start(t, b.capture(nil))
	for range 3 {
		b.seam(t)
	}
	ends, err := b.log.EndOffsets(t.Context(), b.name)
	require.NoError(t, err)
	b.cut(t, ends)
	positions := &archived{}
	positions.at[0] = 1
	err = b.archive(nil, positions, nil).Run(t.Context())
	require.True(t, failure.HasCode(err, "log.offset_out_of_range"), "%v", err)
}

func TestDamagedSegmentIsRefused(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	o := objects(t)
	start(t, b.capture(nil))
	b.seam(t)
	ends, err := b.log.EndOffsets(t.Context(), b.name)
	require.NoError(t, err)
	b.archiveTo(t, o, &archived{}, ends)
	damage(t, o)
	replay := &cdc.Replay{Log: b.cut(t, ends), Objects: o}
	err = replay.Read(t.Context(), b.name, 0, 0, func(int64, *event.Event) error { return nil })
	require.True(t, failure.HasCode(err, "archive.damaged"), "%v", err)
}

// damage turns a bit in the middle of every segment.
func damage(t testing.TB, o *cdc.Objects) {
	t.Helper()
	list, err := o.Client.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &o.Bucket})
	require.NoError(t, err)
	for _, object := range list.Contents {
		if !strings.HasSuffix(*object.Key, ".zst") {
			continue
		}
		out, err := o.Client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &o.Bucket, Key: object.Key})
		require.NoError(t, err)
		body, err := io.ReadAll(out.Body)
		require.NoError(t, err)
		body[len(body)/2] ^= 1
		_, err = o.Client.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: &o.Bucket, Key: object.Key, Body: bytes.NewReader(body), ContentLength: aws.Int64(int64(len(body))),
		})
		require.NoError(t, err)
	}
}
