// Package tracing sends spans away by OTLP, where OpenTelemetry's standard variables
// ask for it.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// Behaviour: off, unless OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
// or OTEL_TRACES_EXPORTER=otlp is set, or when OTEL_SDK_DISABLED is true or
// OTEL_TRACES_EXPORTER none. The other variables of the exporter (headers, timeout,
// certificate, compression), of the batches (OTEL_BSP_*), of sampling
// (OTEL_TRACES_SAMPLER) and of the resource (OTEL_SERVICE_NAME,
// OTEL_RESOURCE_ATTRIBUTES) count as OpenTelemetry says.
//
// Not supported: other exporters than otlp, and other protocols than http/protobuf.

// wanted reports whether the variables ask for spans, and what is wrong with them.
func wanted(lookup func(string) (string, bool)) (bool, error) {
	get := func(name string) string {
		v, _ := lookup(name)
		return v
	}
	if get("OTEL_SDK_DISABLED") == "true" {
		return false, nil
	}
	on := get("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	switch v := get("OTEL_TRACES_EXPORTER"); v {
	case "":
	case "otlp":
		on = true
	case "none":
		return false, nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q; want otlp or none", v)
	}
	if !on {
		return false, nil
	}
	var problems []error
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if v := get(name); !slices.Contains([]string{"", "http/protobuf"}, v) {
			problems = append(problems, fmt.Errorf("%s is %q; want http/protobuf", name, v))
		}
	}
	return len(problems) == 0, errors.Join(problems...)
}

// New gives what makes spans of a service, nil when nobody asks for them. Shut it
// down at the end: what was not sent yet is sent then. The exporter itself reads the
// process's environment.
func New(ctx context.Context, service, instance string, lookup func(string) (string, bool)) (*sdktrace.TracerProvider, error) {
	on, err := wanted(lookup)
	if err != nil || !on {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("send spans: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName(service), semconv.ServiceInstanceID(instance)), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe %s for its spans: %w", service, err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
}
