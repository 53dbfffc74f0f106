package tracing

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// env looks variables up in a map.
func env(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

func TestWhenSpansAreWanted(t *testing.T) {
	t.Parallel()

	const endpoint, exporter = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER"
	for name, tc := range map[string]struct {
		env  map[string]string
		want bool
		err  string
	}{
		"nothing said":    {nil, false, ""},
		"endpoint":        {map[string]string{endpoint: "http://x"}, true, ""},
		"endpoint of it":  {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, true, ""},
		"exporter":        {map[string]string{exporter: "otlp"}, true, ""},
		"none":            {map[string]string{exporter: "none", endpoint: "http://x"}, false, ""},
		"disabled":        {map[string]string{"OTEL_SDK_DISABLED": "true", endpoint: "http://x"}, false, ""},
		"protocol":        {map[string]string{endpoint: "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, true, ""},
		"other protocol":  {map[string]string{endpoint: "http://x", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, false, "want http/protobuf"},
		"other exporter":  {map[string]string{exporter: "zipkin"}, false, "want otlp or none"},
		"unused protocol": {map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, false, ""},
	} {
		got, err := wanted(env(tc.env))
		require.Equal(t, tc.want, got, name)
		if tc.err == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, tc.err, name)
		}
	}
	p, err := New(t.Context(), "drover-proxy", "a", env(nil))
	require.NoError(t, err)
	require.Nil(t, p)
}

// Spans leave by OTLP to where the environment says, under the service's name.
func TestSpansAreSent(t *testing.T) {
	got := make(chan string, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- r.URL.Path + " " + r.Header.Get("X-Team") + " " + string(b)
	}))
	defer srv.Close()
	vars := map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": srv.URL, "OTEL_EXPORTER_OTLP_HEADERS": "x-team=data", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test-ground",
	}
	for name, v := range vars {
		t.Setenv(name, v)
	}
	p, err := New(t.Context(), "drover-proxy", "proxy-1", env(vars))
	require.NoError(t, err)
	_, span := p.Tracer("test").Start(t.Context(), "find legs")
	span.End()
	require.NoError(t, p.Shutdown(t.Context()))
	body := <-got
	require.Contains(t, body, "/v1/traces data ")
	for _, part := range []string{"find legs", "drover-proxy", "proxy-1", "test-ground"} {
		require.Contains(t, body, part)
	}
}
