package cdc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"drover/chunk"
)

// DeleteTopic deletes the topic of a shard's log, for good. One that is not there is
// no error.
func (l *Log) DeleteTopic(ctx context.Context, shard string) error {
	topic := chunk.Topic(shard)
	_, err := kadm.NewClient(l.client).DeleteTopic(ctx, topic)
	if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("delete topic %s: %w", topic, err)
	}
	return nil
}

// Held is one object of the archive.
type Held struct {
	Key   string `json:"key"`
	Bytes int64  `json:"bytes"`
}

// Held lists everything that the archive holds of a shard's log, of every topic that it
// had.
func (o *Objects) Held(ctx context.Context, shard string) (all []Held, err error) {
	folder := o.root(chunk.Topic(shard))
	pages := s3.NewListObjectsV2Paginator(o.Client, &s3.ListObjectsV2Input{Bucket: &o.Bucket, Prefix: &folder})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return all, fmt.Errorf("list %s in the archive: %w", folder, err)
		}
		for _, object := range page.Contents {
			all = append(all, Held{Key: aws.ToString(object.Key), Bytes: aws.ToInt64(object.Size)})
		}
	}
	return all, nil
}

// deleteAtOnce is how many objects one request deletes; S3 takes no more.
const deleteAtOnce = 1000

// Forget deletes everything that [Objects.Held] lists, until nothing is left, and gives
// the number of objects.
func (o *Objects) Forget(ctx context.Context, shard string) (n int, err error) {
	for {
		all, err := o.Held(ctx, shard)
		if err != nil || len(all) == 0 {
			return n, err
		}
		for some := range slices.Chunk(all, deleteAtOnce) {
			ids := make([]types.ObjectIdentifier, 0, len(some))
			for _, object := range some {
				ids = append(ids, types.ObjectIdentifier{Key: &object.Key})
			}
			out, err := o.Client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &o.Bucket, Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(true)}})
			if err != nil {
				return n, fmt.Errorf("delete %d objects of the archive of %s: %w", len(ids), shard, err)
			}
			if len(out.Errors) > 0 {
				e := out.Errors[0]
				return n, fmt.Errorf("delete %s: %s: %s", aws.ToString(e.Key), aws.ToString(e.Code), aws.ToString(e.Message))
			}
			n += len(ids)
		}
	}
}
