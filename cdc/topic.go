package cdc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"drover/chunk"
	"drover/internal/failure"
)

// maxRecordBytes is above the largest change event (16 MB) with its envelope.
const maxRecordBytes = 36 << 20

// DefaultPartitions is how many partitions a shard's topic has. The number
// places documents, so it never changes once the topic exists.
const DefaultPartitions = 4

// TopicSettings of a shard's captured log.
type TopicSettings struct {
	Partitions     int32         // default [DefaultPartitions]
	Replication    int16         // default: the broker's
	Retention      time.Duration // by time, default 7 days
	RetentionBytes int64         // by size of a partition, default no limit
}

// orDefault fills in what is zero.
func (s TopicSettings) orDefault() TopicSettings {
	if s.Partitions == 0 {
		s.Partitions = DefaultPartitions
	}
	if s.Replication == 0 {
		s.Replication = -1
	}
	if s.Retention == 0 {
		s.Retention = 7 * 24 * time.Hour
	}
	if s.RetentionBytes == 0 {
		s.RetentionBytes = -1
	}
	return s
}

// EnsureTopic makes the topic of shard's log unless it is there. One with
// another number of partitions is refused.
func EnsureTopic(ctx context.Context, client *kgo.Client, shard string, settings TopicSettings) error {
	s := settings.orDefault()
	adm, topic := kadm.NewClient(client), chunk.Topic(shard)
	config := map[string]*string{
		"cleanup.policy":         kadm.StringPtr("delete"),
		"retention.ms":           kadm.StringPtr(strconv.FormatInt(s.Retention.Milliseconds(), 10)),
		"retention.bytes":        kadm.StringPtr(strconv.FormatInt(s.RetentionBytes, 10)),
		"max.message.bytes":      kadm.StringPtr(strconv.Itoa(maxRecordBytes)),
		"message.timestamp.type": kadm.StringPtr("CreateTime"),
	}
	_, err := adm.CreateTopic(ctx, s.Partitions, s.Replication, config, topic)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, kerr.TopicAlreadyExists):
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	details, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return fmt.Errorf("look up topic %s: %w", topic, err)
	}
	if err := details[topic].Err; err != nil {
		return fmt.Errorf("look up topic %s: %w", topic, err)
	}
	if n := len(details[topic].Partitions); n != int(s.Partitions) {
		return failure.New(failure.Invalid, "log.partitions_differ",
			"topic %s has %d partitions, not %d", topic, n, s.Partitions).
			WithHint("the number of partitions of a captured log never changes; set it back")
	}
	return nil
}
