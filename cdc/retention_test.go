package cdc

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
	"drover/internal/failure"
	"drover/internal/testkit"
)

// storeSegments puts segments of ten events each, one a day.
func storeSegments(t *testing.T, n int) *Objects {
	t.Helper()
	b := testkit.S3(t)
	o := &Objects{Bucket: b.Bucket, Client: s3.New(s3.Options{
		Region: b.Region, BaseEndpoint: &b.Endpoint, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(b.AccessKey, b.SecretKey, ""),
	})}
	for day := range n {
		s, err := newSegment("drover.log.a", "id", 0)
		require.NoError(t, err)
		for i := range 10 {
			offset := int64(day*10 + i)
			value, err := (&event.Event{Seq: offset + 1, Op: event.Insert, ClusterTime: bson.Timestamp{T: uint32(dayAt(day).Unix())}}).Encode()
			require.NoError(t, err)
			require.NoError(t, s.add(offset, value))
		}
		body, m := s.finish()
		_, err = o.put(t.Context(), body, m)
		require.NoError(t, err)
	}
	return o
}

// dayAt is noon of a day.
func dayAt(day int) time.Time { return time.Date(2026, 1, 1+day, 12, 0, 0, 0, time.UTC) }

// TestArchiveIsIndexedByTime finds where to begin at any time.
func TestArchiveIsIndexedByTime(t *testing.T) {
	t.Parallel()

	o := storeSegments(t, 7)
	for day, want := range map[int]int64{-3: 0, 0: 0, 1: 0, 2: 10, 6: 50, 30: 60} {
		at, ok, err := o.seek(t.Context(), "drover.log.a", "id", 0, dayAt(day).Add(-time.Hour))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, at, "day %d", day)
	}
	_, ok, err := o.seek(t.Context(), "drover.log.a", "id", 1, dayAt(0))
	require.NoError(t, err)
	require.False(t, ok)
}

// TestPruneRemovesOnlyWhatIsOld: nothing at or behind the time goes, and what is
// left can be read.
func TestPruneRemovesOnlyWhatIsOld(t *testing.T) {
	t.Parallel()

	o := storeSegments(t, 7)
	n, err := o.Prune(t.Context(), "drover.log.a", "id", 0, dayAt(3))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	left, err := o.list(t.Context(), "drover.log.a", "id", 0)
	require.NoError(t, err)
	require.Equal(t, []stored{{30, 39}, {40, 49}, {50, 59}, {60, 69}}, left)
	m, ok, err := o.find(t.Context(), "drover.log.a", "id", 0, 35)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, o.read(t.Context(), m, 35, func(int64, *event.Event) error { return nil }))
	n, err = o.Prune(t.Context(), "drover.log.a", "id", 0, dayAt(1000))
	require.NoError(t, err)
	require.Equal(t, 3, n, "the newest one shows how far the archive came")
}

// TestMissingAndBrokenObjectsAreNamed: a hole in the archive is a state with a name
// and an advice, and nothing that is tried for ever.
func TestMissingAndBrokenObjectsAreNamed(t *testing.T) {
	t.Parallel()

	o := storeSegments(t, 2)
	m, _, err := o.find(t.Context(), "drover.log.a", "id", 0, 5)
	require.NoError(t, err)
	folder := o.folder("drover.log.a", "id", 0)
	segment := folder + "segments/" + span(0, 9) + ".zst"
	_, err = o.Client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &o.Bucket, Key: &segment})
	require.NoError(t, err)
	err = o.read(t.Context(), m, 0, func(int64, *event.Event) error { return nil })
	require.True(t, failure.HasCode(err, "archive.missing"), "%v", err)
	require.False(t, failure.Is(err, failure.Transient))

	_, err = o.put(t.Context(), nil, Manifest{Topic: m.Topic, TopicID: m.TopicID, First: 20, Last: 29}) // without blocks
	require.NoError(t, err)
	_, _, err = o.find(t.Context(), "drover.log.a", "id", 0, 25)
	require.True(t, failure.HasCode(err, "archive.damaged"), "%v", err)
}

// TestManifestOfNoSegmentIsDamage: what readers rely on is seen before they do. A length
// below zero ended the worker that met it, and a place behind the end was asked for again
// for ever.
func TestManifestOfNoSegmentIsDamage(t *testing.T) {
	t.Parallel()

	b := testkit.S3(t)
	o := &Objects{Bucket: b.Bucket, Client: s3.New(s3.Options{
		Region: b.Region, BaseEndpoint: &b.Endpoint, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(b.AccessKey, b.SecretKey, ""),
	})}
	s, err := newSegment("drover.log.a", "id", 0)
	require.NoError(t, err)
	for offset := range int64(40) {
		value, err := (&event.Event{Seq: offset + 1, Op: event.Insert, Document: make([]byte, 100<<10)}).Encode()
		require.NoError(t, err)
		require.NoError(t, s.add(offset, value))
	}
	body, good := s.finish()
	require.Greater(t, len(good.Blocks), 2)
	read := func() error {
		m, ok, err := o.find(t.Context(), "drover.log.a", "id", 0, 35)
		require.True(t, ok || err != nil)
		if err != nil {
			return err
		}
		return o.read(t.Context(), m, 35, func(int64, *event.Event) error { return nil })
	}
	for name, spoil := range map[string]func(m *Manifest){
		"":                  func(*Manifest) {},
		"length below zero": func(m *Manifest) { m.Blocks[len(m.Blocks)-1].Length *= -1 },
		"endless":           func(m *Manifest) { m.Blocks[2].Length = 1 << 60 },
		"elsewhere":         func(m *Manifest) { m.Blocks[2].Position = 1 << 40 },
		"before the start":  func(m *Manifest) { m.Blocks[2].Position *= -1 },
		"another order":     func(m *Manifest) { m.Blocks[1], m.Blocks[2] = m.Blocks[2], m.Blocks[1] },
		"behind the end":    func(m *Manifest) { m.Blocks[2].Offset = 1000 },
		"one is left out":   func(m *Manifest) { m.Blocks = m.Blocks[1:] },
		"of another topic":  func(m *Manifest) { m.Topic = "drover.log.b" },
		"of another life":   func(m *Manifest) { m.TopicID = "id2" }, // of the topic
		"of another part":   func(m *Manifest) { m.Partition = 1 },
		"an empty one": func(m *Manifest) {
			b := m.Blocks
			b[2].Position, b[2].Length, b[1].Length = b[1].Position, b[1].Length+b[2].Length, 0
		},
		"endless at the end": func(m *Manifest) {
			last := &m.Blocks[len(m.Blocks)-1]
			m.Bytes, last.Length = last.Position+1<<40, 1<<40
		},
		"offsets fall":   func(m *Manifest) { m.Blocks[1].Offset, m.Blocks[2].Offset = m.Blocks[2].Offset, m.Blocks[1].Offset },
		"begins later":   func(m *Manifest) { m.Blocks[0].Offset++ },
		"more bytes":     func(m *Manifest) { m.Bytes++ },
		"another number": func(m *Manifest) { m.Count++ },
	} {
		m := good
		m.Blocks = slices.Clone(good.Blocks)
		spoil(&m)
		about, err := json.Marshal(m)
		require.NoError(t, err)
		put(t, o, "segments/"+span(0, 39)+".zst", body)
		put(t, o, "manifests/"+span(0, 39)+".json", about)
		require.Equal(t, name != "", failure.HasCode(read(), "archive.damaged"), name)
	}
	about, err := json.Marshal(good)
	require.NoError(t, err)
	put(t, o, "manifests/"+span(0, 39)+".json", about)
	for _, length := range []int64{good.Blocks[1].Position, good.Bytes - 1} { // before the block that is read, and in its middle
		put(t, o, "segments/"+span(0, 39)+".zst", body[:length])
		require.True(t, failure.HasCode(read(), "archive.damaged"), "cut at %d", length)
	}
}

// put stores an object of a partition as it is.
func put(t *testing.T, o *Objects, name string, body []byte) {
	t.Helper()
	key := o.folder("drover.log.a", "id", 0) + name
	_, err := o.Client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &o.Bucket, Key: &key, Body: bytes.NewReader(body)})
	require.NoError(t, err)
}
