package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"drover/cli"
	"drover/devstack"
	"drover/internal/pause"
)

// server is a shard before it is registered.
type server struct{ name, uri string }

// fleet is what the lesson works on: servers that run, a worker and a proxy of its
// own, all by the commands that operators use.
type fleet struct {
	lookup   func(string) (string, bool)
	database string
	shards   []server // the chunk goes from the first to the second
	bucket   devstack.S3Access
	address  string // of the proxy

	parts sync.WaitGroup
}

// drover runs a command and gives what it printed. A move that waits for a person is
// no error.
func (f *fleet) drover(ctx context.Context, args ...string) (string, error) {
	var out, problem bytes.Buffer
	if code := cli.Main(ctx, cli.Env{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &problem, LookupEnv: f.lookup}); code != 0 && code != 3 {
		return out.String(), fmt.Errorf("drover %s: exit status %d: %s", strings.Join(args, " "), code, strings.TrimSpace(problem.String()))
	}
	return out.String(), nil
}

// ask runs a command and reads its JSON.
func (f *fleet) ask(ctx context.Context, answer any, args ...string) error {
	out, err := f.drover(ctx, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), answer)
}

// start runs a part until ctx ends.
func (f *fleet) start(ctx context.Context, args ...string) {
	f.parts.Go(func() {
		cli.Main(ctx, cli.Env{Args: args, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, LookupEnv: f.lookup})
	})
}

// begin registers the shards, makes the database and starts worker and proxy.
func (f *fleet) begin(ctx context.Context) error {
	for _, s := range f.shards {
		if _, err := f.drover(ctx, "shard", "add", s.name, "--uri", s.uri, "--allow-other-writers"); err != nil {
			return err
		}
	}
	index := `bookings:{"key":{"origin":1,"ref":1},"name":"origin_ref","unique":true}`
	if _, err := f.drover(ctx, "db", "create", f.database, "--collections", "bookings,rows", "--shard-key", "origin", "--chunks", "1",
		"--shards", f.shards[0].name, "--index", index); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	f.address = l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	f.start(ctx, "worker", "--gate-election-quiet", "0s", "--gate-lag", "1s", "--gate-latency", "1m") // one machine for everything
	f.start(ctx, "proxy", "--listen", f.address, "--auth=false", "--linger", "0s", "--name", f.database)
	return f.until(ctx, "the proxy listens", func() (bool, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.address)
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return true, c.Close()
	})
}

// patience bounds every wait; it is no expectation.
const patience = 5 * time.Minute

// until waits for a condition.
func (f *fleet) until(ctx context.Context, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ok, err := is()
		if ok || err != nil {
			return err
		}
		if err := pause.For(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("%s: it did not come about: %w", what, err)
		}
	}
}

// stored adds up the objects in the bucket.
func (f *fleet) stored(ctx context.Context) (objects int, size int64, err error) {
	pages := s3.NewListObjectsV2Paginator(f.bucket.Client(), &s3.ListObjectsV2Input{Bucket: aws.String(f.bucket.Bucket)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return 0, 0, err
		}
		for _, o := range page.Contents {
			objects, size = objects+1, size+aws.ToInt64(o.Size)
		}
	}
	return objects, size, nil
}
