package cdc

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/twmb/franz-go/pkg/kadm"

	"drover/chunk"
)

// seekSlack is more than the clocks of a shard and of its capture may differ.
const seekSlack = time.Minute

// Seek gives an offset at or before the first record of a partition that was
// written on the shard at t or later: in Kafka where it reaches back so far, else
// in the archive.
func (r *Replay) Seek(ctx context.Context, shard string, partition int32, t time.Time) (int64, error) {
	topic := chunk.Topic(shard)
	starts, err := r.Log.StartOffsets(ctx, shard)
	if err != nil {
		return 0, err
	}
	if int(partition) >= len(starts) {
		return 0, fmt.Errorf("%s has no partition %d", topic, partition)
	}
	listed, err := kadm.NewClient(r.Log.client).ListOffsetsAfterMilli(ctx, t.Add(-seekSlack).UnixMilli(), topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("look up offsets of %s at %s: %w", topic, t, err)
	}
	at, _ := listed.Lookup(topic, partition)
	if starts[partition] == 0 || at.Offset > starts[partition] {
		return at.Offset, nil
	}
	id, err := r.Log.topicID(ctx, topic)
	if err != nil {
		return 0, err
	}
	offset, ok, err := r.Objects.seek(ctx, topic, id, partition, t)
	if err != nil || ok {
		return offset, err
	}
	return starts[partition], nil
}

// stored is one segment of a partition, by its names.
type stored struct{ first, last int64 }

// list gives the segments of a partition that have a manifest, by their first
// offsets.
func (o *Objects) list(ctx context.Context, topic, topicID string, partition int32) ([]stored, error) {
	folder := o.folder(topic, topicID, partition) + "manifests/"
	var all []stored
	pages := s3.NewListObjectsV2Paginator(o.Client, &s3.ListObjectsV2Input{Bucket: &o.Bucket, Prefix: &folder})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", folder, err)
		}
		for _, object := range page.Contents {
			if first, last, ok := parseSpan(strings.TrimPrefix(aws.ToString(object.Key), folder)); ok {
				all = append(all, stored{first, last})
			}
		}
	}
	slices.SortFunc(all, func(a, b stored) int { return int(a.first - b.first) })
	return all, nil
}

// seek gives the first offset of the newest segment that begins before t, of the
// oldest one when none does.
func (o *Objects) seek(ctx context.Context, topic, topicID string, partition int32, t time.Time) (offset int64, ok bool, err error) {
	all, err := o.list(ctx, topic, topicID, partition)
	if err != nil || len(all) == 0 {
		return 0, false, err
	}
	n := sort.Search(len(all), func(i int) bool { // the first segment that begins after t
		if err != nil {
			return true
		}
		var m Manifest
		m, err = o.manifest(ctx, topic, topicID, partition, all[i])
		return int64(m.FirstTime.T) > t.Unix()
	})
	return all[max(0, n-1)].first, true, err
}

// Prune removes the segments of a partition whose changes are all older than
// before, oldest first, and gives how many. The newest one always stays: it shows
// how far the archive came.
func (o *Objects) Prune(ctx context.Context, topic, topicID string, partition int32, before time.Time) (int, error) {
	all, err := o.list(ctx, topic, topicID, partition)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, s := range all[:max(0, len(all)-1)] {
		m, err := o.manifest(ctx, topic, topicID, partition, s)
		if err != nil {
			return n, err
		}
		if int64(m.LastTime.T) >= before.Unix() {
			break
		}
		folder, name := o.folder(topic, topicID, partition), span(s.first, s.last)
		// The manifest first: what has one must be readable.
		for _, key := range []string{folder + "manifests/" + name + ".json", folder + "segments/" + name + ".zst"} {
			if _, err := o.Client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &o.Bucket, Key: &key}); err != nil {
				return n, fmt.Errorf("delete %s: %w", key, err)
			}
		}
		n++
	}
	return n, nil
}
