package cdc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/klauspost/compress/zstd"

	"drover/event"
	"drover/internal/failure"
)

// Objects is where in S3 the archive keeps its segments:
//
//	<prefix>/<topic>/<topic id>/<partition>/segments/<first>-<last>.zst
//	<prefix>/<topic>/<topic id>/<partition>/manifests/<first>-<last>.json
//
// Names tell all that the content depends on, so an object is never replaced by
// a different one. Segments may overlap, after a crash or while two archives run:
// whichever holds an offset is as good as another.
type Objects struct {
	Client *s3.Client
	Bucket string
	Prefix string // default "log"
}

// root is the folder of a topic.
func (o *Objects) root(topic string) string {
	prefix := strings.Trim(o.Prefix, "/")
	if prefix == "" {
		prefix = "log"
	}
	return prefix + "/" + topic + "/"
}

// folder of one partition.
func (o *Objects) folder(topic, topicID string, partition int32) string {
	return fmt.Sprintf("%s%s/%d/", o.root(topic), topicID, partition)
}

// span names a segment; the digits make names sort by offset.
func span(first, last int64) string { return fmt.Sprintf("%020d-%020d", first, last) }

// put stores a segment, then its manifest, and gives the manifest's key.
func (o *Objects) put(ctx context.Context, body []byte, m Manifest) (string, error) {
	folder, name := o.folder(m.Topic, m.TopicID, m.Partition), span(m.First, m.Last)
	about, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode manifest %s: %w", name, err)
	}
	key := folder + "manifests/" + name + ".json"
	for _, object := range []struct {
		key, kind string
		body      []byte
	}{
		{folder + "segments/" + name + ".zst", "application/zstd", body},
		{key, "application/json", about},
	} {
		_, err := o.Client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &o.Bucket, Key: &object.key, ContentType: &object.kind,
			Body: bytes.NewReader(object.body), ContentLength: aws.Int64(int64(len(object.body))),
		})
		if err != nil {
			return "", fmt.Errorf("put %s: %w", object.key, err)
		}
	}
	return key, nil
}

// find gives the manifest of the segment that holds offset and reaches furthest;
// ok is false when there is none.
func (o *Objects) find(ctx context.Context, topic, topicID string, partition int32, offset int64) (m Manifest, ok bool, err error) {
	folder := o.folder(topic, topicID, partition) + "manifests/"
	key, reach := "", int64(-1)
	pages := s3.NewListObjectsV2Paginator(o.Client, &s3.ListObjectsV2Input{Bucket: &o.Bucket, Prefix: &folder})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return m, false, fmt.Errorf("list %s: %w", folder, err)
		}
		for _, object := range page.Contents {
			first, last, ok := parseSpan(strings.TrimPrefix(aws.ToString(object.Key), folder))
			if ok && first <= offset && offset <= last && last > reach {
				key, reach = *object.Key, last
			}
		}
	}
	if key == "" {
		return m, false, nil
	}
	first, last, _ := parseSpan(strings.TrimPrefix(key, folder))
	m, err = o.manifest(ctx, topic, topicID, partition, stored{first, last})
	return m, err == nil, err
}

// manifest reads the manifest of one segment.
func (o *Objects) manifest(ctx context.Context, topic, topicID string, partition int32, s stored) (m Manifest, err error) {
	key := o.folder(topic, topicID, partition) + "manifests/" + span(s.first, s.last) + ".json"
	body, err := o.get(ctx, key, nil)
	if err != nil {
		return m, err
	}
	defer func() { _ = body.Close() }()
	text, err := io.ReadAll(body)
	if err != nil {
		return m, fmt.Errorf("read %s: %w", key, err)
	}
	whole := Manifest{Topic: topic, Partition: partition, First: s.first, Last: s.last}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, whole.damaged("its manifest %s cannot be read: %w", key, err)
	}
	if s.first != m.First || s.last != m.Last || m.Topic != topic || m.TopicID != topicID || m.Partition != partition || !m.tiled() {
		return m, whole.damaged("manifest %s is of another segment", key)
	}
	return m, nil
}

// parseSpan reads "<first>-<last>.json".
func parseSpan(name string) (first, last int64, ok bool) {
	a, b, _ := strings.Cut(strings.TrimSuffix(name, ".json"), "-")
	first, err1 := strconv.ParseInt(a, 10, 64)
	last, err2 := strconv.ParseInt(b, 10, 64)
	return first, last, err1 == nil && err2 == nil
}

// get opens an object, from a position on unless that is nil.
func (o *Objects) get(ctx context.Context, key string, from *int64) (io.ReadCloser, error) {
	in := &s3.GetObjectInput{Bucket: &o.Bucket, Key: &key}
	if from != nil {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", *from))
	}
	out, err := o.Client.GetObject(ctx, in)
	if _, gone := errors.AsType[*types.NoSuchKey](err); gone {
		return nil, failure.New(failure.Mismatch, "archive.missing", "object %s is not in bucket %s any more: %w", key, o.Bucket, err).
			WithHint("restore the object from a copy of the bucket; without it the log before it cannot be replayed: copy the chunks again that need it")
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() == "InvalidRange" {
		return nil, failure.New(failure.Mismatch, "archive.damaged", "object %s in bucket %s ends before %s: %w", key, o.Bucket, aws.ToString(in.Range), err).
			WithHint("restore the object from a copy, or copy the chunk again")
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	return out.Body, nil
}

// read calls fn for the records of a segment from offset on. A segment that is
// read whole must have the checksum that its manifest says.
func (o *Objects) read(ctx context.Context, m Manifest, offset int64, fn func(int64, *event.Event) error) error {
	first := m.start(offset)
	key := o.folder(m.Topic, m.TopicID, m.Partition) + "segments/" + span(m.First, m.Last) + ".zst"
	from := &m.Blocks[first].Position
	if first == 0 {
		from = nil
	}
	body, err := o.get(ctx, key, from)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("make zstd decoder: %w", err)
	}
	defer decoder.Close()
	sum := sha256.New()
	for b := first; b < len(m.Blocks); b++ {
		compressed := make([]byte, m.Blocks[b].Length)
		if _, err := io.ReadFull(body, compressed); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return m.damaged("it is too short")
			}
			return fmt.Errorf("read %s: %w", key, err)
		}
		sum.Write(compressed)
		if first == 0 && b == len(m.Blocks)-1 && hex.EncodeToString(sum.Sum(nil)) != m.SHA256 {
			return m.damaged("its checksum differs")
		}
		err := m.records(decoder, b, compressed, func(at int64, e *event.Event) error {
			if at < offset {
				return nil
			}
			return fn(at, e)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
