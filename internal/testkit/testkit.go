// Package testkit gives tests real servers: databases, buckets and topics on
// the shared stack that `make stack` starts, and shards of a test's own.
//
// Where the stack is missing, or with -short, a test is skipped with the
// reason; with REQUIRE_STACK=1, which `make test` sets, it fails.
package testkit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"

	"drover/devstack"
)

// cleanupTimeout bounds what is undone after a test.
const cleanupTimeout = 20 * time.Second

// Bucket is a bucket of a test's own, addressed by path.
type Bucket struct{ Endpoint, Region, AccessKey, SecretKey, Bucket string }

// Stack is the shared stack; the test is skipped or fails where there is none.
func Stack(t testing.TB) *devstack.Stack {
	t.Helper()
	SkipShort(t)
	dir, err := devstack.DefaultDir(os.LookupEnv)
	if err != nil {
		Unavailable(t, err.Error())
	}
	stack, err := devstack.Load(filepath.Join(dir, devstack.StateFile))
	if err != nil {
		Unavailable(t, err.Error())
	}
	return stack
}

// Unavailable ends the test: it needs something that is not there.
func Unavailable(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("REQUIRE_STACK") == "1" {
		t.Fatalf("this test needs the development stack (start it with `make stack`): %s", reason)
	}
	t.Skipf("no development stack (start it with `make stack`): %s", reason)
}

// Tool gives the path of a program that a setup step installs below the cache of
// this project, such as another driver; the test is skipped or fails without it.
func Tool(t testing.TB, path string) string {
	t.Helper()
	SkipShort(t)
	dir, err := os.UserCacheDir()
	if err != nil {
		Unavailable(t, err.Error())
	}
	path = filepath.Join(dir, "drover", path)
	if _, err := os.Stat(path); err != nil {
		Unavailable(t, fmt.Sprintf("%v (install it with scripts/drivers.sh)", err))
	}
	return path
}

// Program gives the path of a program of the system, which a Debian package holds;
// the test is skipped or fails without it.
func Program(t testing.TB, name, pkg string) string {
	t.Helper()
	SkipShort(t)
	path, err := exec.LookPath(name)
	if err != nil {
		Unavailable(t, fmt.Sprintf("%v (scripts/setup.sh installs it with package %s)", err, pkg))
	}
	return path
}

// SkipShort skips a test that starts or needs a server when only the quick
// ones are wanted.
func SkipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server, and -short was given")
	}
}

// listening ends the test unless somebody listens at address.
func listening(t testing.TB, part, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		Unavailable(t, fmt.Sprintf("%s does not run: %v", part, err))
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

// Postgres makes an empty database, dropped after the test, and gives its DSN.
func Postgres(t testing.TB) string {
	t.Helper()
	access := Stack(t).Postgres
	listening(t, "Postgres", fmt.Sprintf("127.0.0.1:%d", access.Port))
	name := "test_" + uniqueName()
	onPostgres(t, access.DSN, "create database "+name)
	t.Cleanup(func() { onPostgres(t, access.DSN, "drop database if exists "+name+" with (force)") })
	return strings.Replace(access.DSN, "/drover?", "/"+name+"?", 1)
}

// onPostgres runs one statement.
func onPostgres(t testing.TB, dsn, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect to Postgres: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// Kafka gives the shared broker's address. Topics must have names of the test's own.
func Kafka(t testing.TB) []string {
	t.Helper()
	brokers := Stack(t).Kafka.Brokers
	listening(t, "Kafka", brokers[0])
	return brokers
}

// Temporal gives the shared server's address. Task queues and workflow ids
// must be the test's own; the namespace is "default".
func Temporal(t testing.TB) string {
	t.Helper()
	address := Stack(t).Temporal.Address
	listening(t, "Temporal", address)
	return address
}

// S3 makes an empty bucket, removed after the test with all that is in it.
func S3(t testing.TB) Bucket {
	t.Helper()
	access := Stack(t).S3
	listening(t, "the S3 server", fmt.Sprintf("127.0.0.1:%d", access.Port))
	client, name := access.Client(), "test-"+uniqueName()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if _, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(name)}); err != nil {
		t.Fatalf("create bucket %s: %v", name, err)
	}
	t.Cleanup(func() { removeBucket(t, client, name) })
	return Bucket{Endpoint: access.Endpoint, Region: access.Region, AccessKey: access.AccessKey, SecretKey: access.SecretKey, Bucket: name}
}

// removeBucket empties and deletes a bucket.
func removeBucket(t testing.TB, client *s3.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	pages := s3.NewListObjectsV2Paginator(client, &s3.ListObjectsV2Input{Bucket: aws.String(name)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			t.Errorf("list bucket %s: %v", name, err)
			return
		}
		var ids []types.ObjectIdentifier
		for _, o := range page.Contents {
			ids = append(ids, types.ObjectIdentifier{Key: o.Key})
		}
		if len(ids) == 0 {
			continue
		}
		if _, err := client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: aws.String(name), Delete: &types.Delete{Objects: ids}}); err != nil {
			t.Errorf("empty bucket %s: %v", name, err)
			return
		}
	}
	if _, err := client.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: aws.String(name)}); err != nil {
		t.Errorf("delete bucket %s: %v", name, err)
	}
}

// uniqueName is a name that no other test has.
func uniqueName() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}
