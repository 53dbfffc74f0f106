package proxy

import (
	"context"
	"errors"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Behaviour: with a [Config.Tracer] every request of a client is a span, "find legs",
// and each of its tries on a shard one below it, "find shard-a", with the chunk and
// the placement; an error has its code. Names and attributes are those that
// OpenTelemetry has for databases, and drover.*. No span holds a value: the shape of
// the request is what the slow-request log shows.
//
// Not supported: joining a client's own trace, since drivers do not send it.

// traceRequest begins the span of a request. Both results are what they were when
// nothing is traced.
func (p *Proxy) traceRequest(ctx context.Context, q *request, c *command) (context.Context, trace.Span) {
	if p.cfg.Tracer == nil {
		return ctx, nil
	}
	name := c.name
	attrs := []attribute.KeyValue{
		attribute.String("db.system.name", "mongodb"), attribute.String("db.operation.name", c.name),
		attribute.String("db.namespace", string(q.cmd.DB)),
	}
	if coll := q.cmd.Collection(); c.data && len(coll) > 0 {
		name += " " + string(coll)
		attrs = append(attrs, attribute.String("db.collection.name", string(coll)))
	}
	ctx, span := p.cfg.Tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(q.start), trace.WithAttributes(attrs...))
	if c.data && span.IsRecording() {
		span.SetAttributes(attribute.String("db.query.summary", q.shape()))
	}
	return ctx, span
}

// endRequest ends the span of a request.
func (q *request) endRequest(span trace.Span, failed bool, err error) {
	if span == nil {
		return
	}
	q.client.legs.mu.Lock()
	span.SetAttributes(attribute.Int("drover.chunks", q.client.legs.fan))
	q.client.legs.mu.Unlock()
	if q.client.user != "" {
		span.SetAttributes(attribute.String("drover.user", q.client.user))
	}
	failSpan(span, 0, failed, err)
	span.End()
}

// traceTry begins the span of one try on a shard.
func (d *delivery) traceTry(ctx context.Context, r *route) (context.Context, trace.Span) {
	if d.p.cfg.Tracer == nil {
		return ctx, nil
	}
	return d.p.cfg.Tracer.Start(ctx, string(d.q.cmd.Name)+" "+r.Placement.Shard, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("db.system.name", "mongodb"), attribute.String("db.operation.name", string(d.q.cmd.Name)),
		attribute.String("db.namespace", r.Placement.Database), attribute.String("drover.shard", r.Placement.Shard),
		attribute.String("drover.chunk", string(r.Chunk.ID)), attribute.Int64("drover.token", int64(r.Token)),
		attribute.Int64("drover.held_ms", d.split.hold.Milliseconds()), attribute.Int64("drover.queued_ms", d.split.queue.Milliseconds()),
	))
}

// endTry ends the span of one try.
func endTry(span trace.Span, a *answer, err error) {
	if span == nil {
		return
	}
	failSpan(span, a.code, err == nil && !a.ok, err)
	span.End()
}

// failSpan marks a span as failed, if it did.
func failSpan(span trace.Span, c code, failed bool, err error) {
	if !failed && err == nil {
		return
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		c = r.code
	}
	kind := "error"
	if c != 0 {
		kind = strconv.Itoa(int(c))
		span.SetAttributes(attribute.String("db.response.status_code", kind))
	}
	span.SetAttributes(attribute.String("error.type", kind))
	// Texts of errors may hold values, as those of duplicate keys do.
	span.SetStatus(codes.Error, codeNames[c])
}
