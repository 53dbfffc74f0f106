package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/devstack"
	"drover/internal/testkit"
)

// A small move under an application: everything is copied and compared, the target
// serves, and the application lost nothing.
func TestLesson(t *testing.T) {
	t.Parallel()

	bucket, dsn, address := testkit.S3(t), testkit.Postgres(t), testkit.Temporal(t)
	id := strconv.FormatInt(time.Now().UnixNano(), 36)
	testkit.Namespace(t, address, "cost-"+id)
	env := map[string]string{
		"DROVER_STACK": "none", "DROVER_POSTGRES_DSN": dsn, "DROVER_KAFKA_BROKERS": strings.Join(testkit.Kafka(t), ","),
		"DROVER_S3_ENDPOINT": bucket.Endpoint, "DROVER_S3_REGION": bucket.Region, "DROVER_S3_BUCKET": bucket.Bucket,
		"DROVER_S3_ACCESS_KEY": bucket.AccessKey, "DROVER_S3_SECRET_KEY": bucket.SecretKey,
		"DROVER_TEMPORAL_ADDRESS": address, "DROVER_TEMPORAL_NAMESPACE": "cost-" + id, "DROVER_SECRET": "cost",
		"DROVER_FENCE_DEADLINE": "3s", "DROVER_SWITCH_WAIT": "5s", // the machine may be busy
	}
	f := &fleet{
		lookup:   func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		database: "cost",
		bucket: devstack.S3Access{
			Endpoint: bucket.Endpoint, Region: bucket.Region, Bucket: bucket.Bucket, AccessKey: bucket.AccessKey, SecretKey: bucket.SecretKey,
		},
	}
	for _, name := range []string{"a", "b"} {
		f.shards = append(f.shards, server{name + "-" + id, testkit.Shard(t).AdminURI()})
	}
	var out bytes.Buffer
	r, err := f.lesson(t.Context(), &out, size{documents: 500, rate: 50})
	require.NoError(t, err, out.String())
	require.Equal(t, f.shards[1].name, r.status.Serving.Shard)
	require.NotNil(t, r.status.Import)
	require.GreaterOrEqual(t, r.status.Import.Documents, int64(500))
	require.NotNil(t, r.status.Validation)
	require.GreaterOrEqual(t, r.status.Validation.Documents, int64(500))
	require.Positive(t, r.objects)
	require.Zero(t, r.verdict.Lost, r.verdict.Examples)
	require.Zero(t, r.verdict.Duplicated)
	require.Zero(t, r.errors)
}
