package cdc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"drover/chunk"
)

// What is handed over waits for company, but not when somebody waits for it.
func TestHurryEndsTheLinger(t *testing.T) {
	t.Parallel()

	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, chunk.Topic("s")))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	r := &run{
		Capture: &Capture{Shard: "s", Brokers: cluster.ListenAddrs(), Topic: TopicSettings{Partitions: 2}},
		set:     CaptureSettings{Linger: time.Minute}.orDefault(),
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p, err := newProducer(ctx, r, func(err error) { t.Error(err) })
	require.NoError(t, err)
	defer p.close()
	p.send(record{value: []byte("the first looks for its partition")})
	require.NoError(t, p.client.Flush(ctx))
	for range 3 {
		for at := range int32(2) {
			p.send(record{partition: at, value: []byte("change")})
		}
		p.hurry()
		require.NoError(t, p.flush(ctx), "it waits for company")
	}
}
