package devstack

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sys/unix"
)

// s3Server is versitygw over a folder.
type s3Server struct {
	process
	access S3Access
	tools  Tools
}

// newS3 describes the S3 server of stack s.
func newS3(s *Stack, tools Tools) *s3Server {
	return &s3Server{
		process: process{name: "s3", dir: filepath.Join(s.Dir, "s3"), stop: syscall.SIGTERM, wait: 10 * time.Second},
		access:  s.S3,
		tools:   tools,
	}
}

// start runs the server and makes the bucket.
func (s *s3Server) start(ctx context.Context) error {
	gateway, err := s.tools.versitygw()
	if err != nil {
		return err
	}
	data := filepath.Join(s.dir, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	args := []string{
		"--port", "127.0.0.1:" + strconv.Itoa(s.access.Port),
		"--region", s.access.Region, "--quiet", "posix",
	}
	if s.access.Sidecar {
		sidecar := filepath.Join(s.dir, "meta")
		if err := os.MkdirAll(sidecar, 0o755); err != nil {
			return err
		}
		args = append(args, "--sidecar", sidecar)
	}
	err = s.process.start(ctx, program{
		path: gateway,
		args: append(args, data),
		env:  []string{"ROOT_ACCESS_KEY=" + s.access.AccessKey, "ROOT_SECRET_KEY=" + s.access.SecretKey},
	}, s.ready)
	if err != nil {
		return err
	}
	_, err = s.access.Client().CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(s.access.Bucket)})
	if _, ok := errors.AsType[*types.BucketAlreadyOwnedByYou](err); ok {
		return nil
	}
	return err
}

// ready says nil when the server lists its buckets.
func (s *s3Server) ready(ctx context.Context) error {
	_, err := s.access.Client().ListBuckets(ctx, &s3.ListBucketsInput{})
	return err
}

// Client talks to the server with its root key. It keeps no connections: the
// server may be gone and back between two questions.
func (a S3Access) Client() *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(a.Endpoint),
		Region:       a.Region,
		Credentials:  credentials.NewStaticCredentialsProvider(a.AccessKey, a.SecretKey, ""),
		HTTPClient:   &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		UsePathStyle: true,
	})
}

// hasExtendedAttributes reports whether files in dir can carry the attributes
// in which the gateway keeps its metadata.
func hasExtendedAttributes(dir string) bool {
	f, err := os.CreateTemp(dir, "xattr.*")
	if err != nil {
		return false
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer f.Close()
	return unix.Fsetxattr(int(f.Fd()), "user.drover", []byte("x"), 0) == nil
}
