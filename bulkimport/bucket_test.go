package bulkimport

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

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
