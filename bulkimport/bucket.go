package bulkimport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"drover/internal/failure"
)

// Bucket is where the objects are.
type Bucket struct {
	Client *s3.Client
	Name   string
}

// put writes one object whole.
func (b Bucket) put(ctx context.Context, key, contentType string, content []byte) error {
	_, err := b.Client.PutObject(ctx, &s3.PutObjectInput{
		Bucket:        &b.Name,
		Key:           &key,
		Body:          bytes.NewReader(content),
		ContentLength: aws.Int64(int64(len(content))),
		ContentType:   &contentType,
	})
	return b.refusal(err, "write", key)
}

// Answers of a service that no repetition changes, by what a person has to do.
var (
	bucketFull = []string{ // as different services call it
		"InsufficientStorage", "StorageFull", "XMinioStorageFull", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "ServiceQuotaExceeded", "EntityTooLarge",
	}
	bucketClosed = []string{
		"NoSuchBucket", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled", "AccountProblem", "InvalidBucketName", "NotSignedUp",
	}
)

// refusal names an answer that the service would give again and again; anything
// else is tried again by whoever asked.
func (b Bucket) refusal(err error, what, key string) error {
	if err == nil {
		return nil
	}
	api, ok := errors.AsType[smithy.APIError](err)
	status, answered := errors.AsType[*awshttp.ResponseError](err)
	switch {
	case ok && slices.Contains(bucketFull, api.ErrorCode()), answered && status.HTTPStatusCode() == http.StatusInsufficientStorage:
		return failure.New(failure.Invalid, "import.bucket_full", "bucket %s takes no more: %s s3 object %s: %w", b.Name, what, key, err).
			WithHint("make room in the bucket or raise its quota, then resume: what is stored already is not read again")
	case ok && slices.Contains(bucketClosed, api.ErrorCode()):
		return failure.New(failure.Invalid, "import.bucket_refused", "bucket %s cannot be used: %s s3 object %s: %w", b.Name, what, key, err).
			WithHint("check --s3-bucket, its keys and their rights, then resume: what is stored already is not read again")
	default:
		return fmt.Errorf("%s s3 object %s: %w", what, key, err)
	}
}

// get reads one object whole.
func (b Bucket) get(ctx context.Context, key string) ([]byte, error) {
	return b.read(ctx, &s3.GetObjectInput{Bucket: &b.Name, Key: &key})
}

// getRange reads length bytes from offset.
func (b Bucket) getRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	content, err := b.read(ctx, &s3.GetObjectInput{
		Bucket: &b.Name, Key: &key, Range: aws.String(fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)),
	})
	if err != nil {
		return nil, err
	}
	if int64(len(content)) != length {
		return nil, damaged(key, fmt.Sprintf("it has %d bytes from %d on instead of %d", len(content), offset, length))
	}
	return content, nil
}

// read gets what in asks for.
func (b Bucket) read(ctx context.Context, in *s3.GetObjectInput) ([]byte, error) {
	out, err := b.Client.GetObject(ctx, in)
	if isNoObject(err) {
		return nil, failure.New(failure.Invalid, "import.object_missing", "read s3 object %s: %w", *in.Key, err).
			WithHint("a stored slice lost its object: abort this migration and start another one")
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorCode() == "InvalidRange" {
		return nil, damaged(*in.Key, "it ends before "+aws.ToString(in.Range))
	}
	if err != nil {
		return nil, b.refusal(err, "read", *in.Key)
	}
	content, err := io.ReadAll(out.Body)
	if err = errors.Join(err, out.Body.Close()); err != nil {
		return nil, fmt.Errorf("read s3 object %s: %w", *in.Key, err)
	}
	return content, nil
}

// isNoObject reports that there is no such object.
func isNoObject(err error) bool {
	if _, ok := errors.AsType[*types.NoSuchKey](err); ok {
		return true
	}
	_, ok := errors.AsType[*types.NotFound](err)
	return ok
}
