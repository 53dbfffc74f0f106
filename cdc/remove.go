package cdc

import (
	"context"
	"errors"
	"fmt"

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

// Forget deletes everything that the archive holds of a shard's log, of every topic
// that it had, and gives the number of objects.
func (o *Objects) Forget(ctx context.Context, shard string) (n int, err error) {
	folder := o.root(chunk.Topic(shard))
	for {
		page, err := o.Client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &o.Bucket, Prefix: &folder, MaxKeys: aws.Int32(1000)})
		if err != nil {
			return n, fmt.Errorf("list %s in the archive: %w", folder, err)
		}
		if len(page.Contents) == 0 {
			return n, nil
		}
		ids := make([]types.ObjectIdentifier, 0, len(page.Contents))
		for _, object := range page.Contents {
			ids = append(ids, types.ObjectIdentifier{Key: object.Key})
		}
		out, err := o.Client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &o.Bucket, Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(true)}})
		if err != nil {
			return n, fmt.Errorf("delete %d objects of %s: %w", len(ids), folder, err)
		}
		if len(out.Errors) > 0 {
			e := out.Errors[0]
			return n, fmt.Errorf("delete %s: %s: %s", aws.ToString(e.Key), aws.ToString(e.Code), aws.ToString(e.Message))
		}
		n += len(ids)
	}
}
