package scenario_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// span is one that a process has sent.
type span struct {
	service, name, id, parent string
	attributes                map[string]string
}

// collector takes what processes send by OTLP.
type collector struct {
	url string

	mu    sync.Mutex
	spans map[string]span // by trace and id
}

// newCollector listens until the test ends.
func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{spans: map[string]span{}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in collectorpb.ExportTraceServiceRequest
		b, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(b, &in)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.take(&in)
	}))
	t.Cleanup(srv.Close)
	c.url = srv.URL
	return c
}

// texts gives attributes that are texts.
func texts(all []*commonpb.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range all {
		out[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return out
}

// take keeps spans.
func (c *collector) take(in *collectorpb.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range in.GetResourceSpans() {
		service := texts(r.GetResource().GetAttributes())["service.name"]
		for _, scope := range r.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				trace := string(s.GetTraceId())
				c.spans[trace+string(s.GetSpanId())] = span{
					service: service, name: s.GetName(), id: trace + string(s.GetSpanId()), parent: trace + string(s.GetParentSpanId()),
					attributes: texts(s.GetAttributes()),
				}
			}
		}
	}
}

// leads reports whether a chain of spans of one service was received, each below the
// one before; names are those that spans begin with.
func (c *collector) leads(service string, names ...string) (last span, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		at := s
		for i := len(names) - 1; ; i-- {
			if at.service != service || !strings.HasPrefix(at.name, names[i]) {
				break
			}
			if i == 0 {
				return s, true
			}
			if at, ok = c.spans[at.parent]; !ok {
				break
			}
		}
	}
	return last, false
}

// await waits for a chain of spans and gives the last one.
func (c *collector) await(t *testing.T, service string, names ...string) (last span) {
	t.Helper()
	ok := eventually(t, func() (ok bool) {
		last, ok = c.leads(service, names...)
		return ok
	})
	require.True(t, ok, "%s sends no span %s; there are %v", service, strings.Join(names, " with below it "), c.counts())
	return last
}

// counts says what was received.
func (c *collector) counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, s := range c.spans {
		out[s.service+": "+s.name]++
	}
	return out
}
