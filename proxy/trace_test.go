package proxy

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"drover/proxy/wire"
)

// attributesOf gives a span's attributes by name.
func attributesOf(s tracetest.SpanStub) map[string]attribute.Value {
	out := map[string]attribute.Value{}
	for _, a := range s.Attributes {
		out[string(a.Key)] = a.Value
	}
	return out
}

// A request is a span, and what it asks of shards are spans below it: one for one
// chunk, several for several, and for a failure its code. No value is in any.
func TestSpans(t *testing.T) {
	t.Parallel()

	kept := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(kept))
	f, _, _ := newScripted(t, 2, func(s *sent) bson.D {
		if s.name == "insert" {
			return bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: 11000}, {Key: "errmsg", Value: "E11000 duplicate key: secret-value"}}
		}
		return batchReply(s.db+".legs", bson.D{{Key: "n", Value: 1}})
	})
	c := dialRaw(t, f.start(Config{Tracer: provider.Tracer("test")}))
	on := bson.E{Key: "$db", Value: testDatabase}
	// spans gives those of one command: the request's own last, as it ends last.
	spans := func(cmd bson.D) (of tracetest.SpanStub, below tracetest.SpanStubs) {
		kept.Reset()
		c.run(cmd)
		c.run(bson.D{{Key: "ping", Value: 1}, on}) // when it is answered the one before has ended
		for _, s := range kept.GetSpans() {
			for _, a := range s.Attributes {
				require.NotContains(t, a.Value.String(), "secret-value")
			}
			require.NotContains(t, s.Status.Description, "secret-value")
			switch {
			case s.Name == "ping":
			case s.SpanKind == trace.SpanKindServer:
				of = s
			default:
				below = append(below, s)
			}
		}
		for _, s := range below {
			require.Equal(t, of.SpanContext.SpanID(), s.Parent.SpanID())
			require.Equal(t, of.SpanContext.TraceID(), s.SpanContext.TraceID())
		}
		return of, below
	}
	filter := bson.D{{Key: "origin", Value: "secret-value"}}

	of, below := spans(bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: filter}, on})
	require.Equal(t, "find legs", of.Name)
	require.Len(t, below, 1)
	own, leg := attributesOf(of), attributesOf(below[0])
	require.Equal(t, "mongodb", own["db.system.name"].AsString())
	require.Equal(t, testDatabase, own["db.namespace"].AsString())
	require.Equal(t, "legs", own["db.collection.name"].AsString())
	require.Equal(t, "find legs filter {origin:?}", own["db.query.summary"].AsString())
	require.Equal(t, int64(1), own["drover.chunks"].AsInt64())
	require.Equal(t, "find "+leg["drover.shard"].AsString(), below[0].Name)
	require.NotEmpty(t, leg["drover.chunk"].AsString())
	require.NotEqual(t, testDatabase, leg["db.namespace"].AsString(), "a shard sees the placement's database")
	require.Equal(t, codes.Unset, of.Status.Code)

	of, below = spans(bson.D{{Key: "find", Value: "legs"}, on})
	require.Len(t, below, 2)
	require.Equal(t, int64(2), attributesOf(of)["drover.chunks"].AsInt64())

	of, below = spans(bson.D{{Key: "insert", Value: "legs"}, {Key: "documents", Value: bson.A{filter}}, on})
	require.Len(t, below, 1)
	require.Equal(t, codes.Error, of.Status.Code)
	require.Equal(t, "11000", attributesOf(below[0])["error.type"].AsString())

	of, below = spans(bson.D{{Key: "insert", Value: "nowhere"}, {Key: "documents", Value: bson.A{filter}}, on})
	require.Empty(t, below)
	require.Equal(t, "26", attributesOf(of)["db.response.status_code"].AsString())
	require.Equal(t, "NamespaceNotFound", of.Status.Description)
}

// Without a tracer nothing is begun, and nothing has to be ended.
func TestNoSpans(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 1)
	p := New(Config{}, f.ports())
	q := &request{client: newClient(p, nil), cmd: &wire.Command{}}
	ctx, span := p.traceRequest(t.Context(), q, p.commands["find"])
	require.Equal(t, t.Context(), ctx)
	require.Nil(t, span)
	q.endRequest(span, true, errors.New("any"))
	endTry(nil, &answer{}, nil)
}
