package cdc

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
)

// OldestChange gives when the oldest change was made that the own log of a member
// still has. ok is false where it does not say.
func OldestChange(ctx context.Context, client *mongo.Client, shard string) (at time.Time, ok bool, err error) {
	return (&heart{client: client, shard: shard}).oldest(ctx)
}

// Kept is how the topic of a captured log is kept.
type Kept struct {
	Partitions int
	For        time.Duration // 0: for ever
	Bytes      int64         // of each partition; 0: any number
}

// Kept asks Kafka how the captured log of a shard is kept.
func (l *Log) Kept(ctx context.Context, shard string) (k Kept, err error) {
	topic := chunk.Topic(shard)
	adm := kadm.NewClient(l.client)
	details, err := adm.ListTopics(ctx, topic)
	if err == nil {
		err = details[topic].Err
	}
	if err != nil {
		return k, fmt.Errorf("look up topic %s: %w", topic, err)
	}
	k.Partitions = len(details[topic].Partitions)
	configs, err := adm.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return k, fmt.Errorf("read the settings of topic %s: %w", topic, err)
	}
	for _, c := range configs {
		if c.Err != nil {
			return k, fmt.Errorf("read the settings of topic %s: %w", topic, c.Err)
		}
		for _, s := range c.Configs {
			n, err := strconv.ParseInt(s.MaybeValue(), 10, 64)
			switch {
			case err != nil || n < 0:
			case s.Key == "retention.ms":
				k.For = time.Duration(n) * time.Millisecond
			case s.Key == "retention.bytes":
				k.Bytes = n
			}
		}
	}
	return k, nil
}
