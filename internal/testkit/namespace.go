package testkit

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"google.golang.org/protobuf/types/known/durationpb"
)

// namespacePatience bounds the wait for a new namespace; it is no expectation.
const namespacePatience = 4 * time.Minute

// Namespace makes a Temporal namespace of the test's own, with Drover's search
// attributes: task queues have fixed names.
func Namespace(t testing.TB, address, name string) client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), namespacePatience)
	defer cancel()
	c, err := client.DialContext(ctx, client.Options{HostPort: address, Namespace: name, Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if _, err := c.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace: name, WorkflowExecutionRetentionPeriod: durationpb.New(24 * time.Hour),
	}); err != nil {
		t.Fatal(err)
	}
	attributes := map[string]enumspb.IndexedValueType{
		"ChunkID": enumspb.INDEXED_VALUE_TYPE_KEYWORD, "SourceShard": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		"TargetShard": enumspb.INDEXED_VALUE_TYPE_KEYWORD, "MigrationStep": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		"ShardName": enumspb.INDEXED_VALUE_TYPE_KEYWORD, "StepStartedAt": enumspb.INDEXED_VALUE_TYPE_DATETIME,
		"NeedsAttention": enumspb.INDEXED_VALUE_TYPE_BOOL,
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for { // a new namespace takes a moment to be seen everywhere
		_, err := c.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{Namespace: name, SearchAttributes: attributes})
		if err == nil || strings.Contains(err.Error(), "already exist") {
			l, listed := c.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: name})
			if listed == nil && len(l.GetCustomAttributes()) >= len(attributes) {
				return c
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("namespace %s does not come to be: %v", name, err)
		case <-tick.C:
		}
	}
}
