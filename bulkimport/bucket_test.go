package bulkimport

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/failure"
)

// answering is a bucket whose service gives one answer to everything.
func answering(t *testing.T, status int, body string) Bucket {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_, _ = w.Write([]byte(body))
		}
	}))
	t.Cleanup(server.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return Bucket{Name: "b", Client: s3.New(s3.Options{
		BaseEndpoint: aws.String(server.URL), Region: "r", UsePathStyle: true, HTTPClient: &http.Client{Transport: transport}, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider("k", "s", ""),
	})}
}

// TestBucketThatRefusesStopsTheMove: an answer that would be the same for ever is for
// a person, with what to do; any other one is tried again.
func TestBucketThatRefusesStopsTheMove(t *testing.T) {
	t.Parallel()
	answer := func(code string) string {
		return fmt.Sprintf(`<Error><Code>%s</Code><Message>m</Message></Error>`, code)
	}
	for name, tc := range map[string]struct {
		status int
		body   string
		code   string
	}{
		"full disk":   {http.StatusInsufficientStorage, "", "import.bucket_full"},
		"quota":       {http.StatusForbidden, answer("QuotaExceeded"), "import.bucket_full"},
		"MinIO full":  {http.StatusInsufficientStorage, answer("XMinioStorageFull"), "import.bucket_full"},
		"no bucket":   {http.StatusNotFound, answer("NoSuchBucket"), "import.bucket_refused"},
		"no right":    {http.StatusForbidden, answer("AccessDenied"), "import.bucket_refused"},
		"unavailable": {http.StatusServiceUnavailable, answer("SlowDown"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := answering(t, tc.status, tc.body)
			err := b.put(t.Context(), "k", "text/plain", []byte("x"))
			require.Error(t, err)
			_, reading := b.get(t.Context(), "k")
			require.Error(t, reading)
			for _, err := range []error{err, reading} {
				require.Equal(t, tc.code != "", failure.Is(err, failure.Invalid), "%v", err)
				if tc.code != "" {
					require.True(t, failure.HasCode(err, tc.code), "%v", err)
				}
			}
		})
	}
}

// TestManifestWithOtherFramesIsDamage: what readers rely on is seen before they do. A
// length below zero ended the worker that met it, and the next one, and the one after.
func TestManifestWithOtherFramesIsDamage(t *testing.T) {
	t.Parallel()
	s := Slice{Migration: 3, Collection: "c"}
	var docs []bson.Raw
	for n := range 7 {
		docs = append(docs, raw(bson.D{{Key: "_id", Value: n}, {Key: "pad", Value: strings.Repeat("x", 60<<10)}}))
	}
	r, err := buildRun(s, Order{}, snapshot{docs: docs})
	require.NoError(t, err)
	s.Object = r.object
	for name, spoil := range map[string]func(f []Frame) []Frame{
		"":                  func(f []Frame) []Frame { return f },
		"no length":         func(f []Frame) []Frame { f[1].Length = 0; return f },
		"length below zero": func(f []Frame) []Frame { f[3].Length = -f[3].Length; return f },
		"bytes below zero":  func(f []Frame) []Frame { f[0].Bytes = -f[0].Bytes; return f },
		"more bytes":        func(f []Frame) []Frame { f[2].Bytes++; return f },
		"no documents":      func(f []Frame) []Frame { f[1].Documents = 0; return f },
		"a gap":             func(f []Frame) []Frame { f[2].Offset++; return f },
		"one is left out":   func(f []Frame) []Frame { return f[:3] },
		"another order":     func(f []Frame) []Frame { f[1].First, f[2].First = f[2].First, f[1].First; return f },
		"none":              func([]Frame) []Frame { return nil },
	} {
		m := r.manifest
		m.Frames = spoil(slices.Clone(m.Frames))
		body, err := json.Marshal(m)
		require.NoError(t, err)
		_, err = loadManifest(t.Context(), answering(t, http.StatusOK, string(body)), s)
		require.Equal(t, name != "", failure.HasCode(err, "import.object_damaged"), "%s: %v", name, err)
	}
	first := r.manifest.Frames[1]
	first.First = r.manifest.Frames[0].First
	decoder, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer decoder.Close()
	_, err = first.open(decoder, "k", Order{}, r.content[first.Offset:first.Offset+first.Length])
	require.True(t, failure.HasCode(err, "import.object_damaged"), "another first document: %v", err)
}

// TestObjectThatIsTooShortIsDamage: nobody tries for ever to read what is not there.
func TestObjectThatIsTooShortIsDamage(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]Bucket{
		"cut":        answering(t, http.StatusPartialContent, "abc"),
		"far beyond": answering(t, http.StatusRequestedRangeNotSatisfiable, `<Error><Code>InvalidRange</Code><Message>m</Message></Error>`),
	} {
		_, err := b.getRange(t.Context(), "k", 0, 10)
		require.True(t, failure.HasCode(err, "import.object_damaged"), "%s: %v", name, err)
	}
}

// TestManifestThatCannotBeReadIsDamage: cut short, or something else altogether.
func TestManifestThatCannotBeReadIsDamage(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{", `{"version": 1}`, `["x"]`} {
		b := answering(t, http.StatusOK, body)
		_, err := loadManifest(t.Context(), b, Slice{Migration: 1, Collection: "c", Object: Object{Key: "k"}})
		require.True(t, failure.HasCode(err, "import.object_damaged"), "%q: %v", body, err)
	}
	_, _, err := answering(t, http.StatusOK, "{").recorded(t.Context(), "k")
	require.True(t, failure.HasCode(err, "import.object_damaged"), "%v", err)
}
