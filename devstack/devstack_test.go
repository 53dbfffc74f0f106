package devstack_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.temporal.io/sdk/client"

	"drover/devstack"
	"drover/internal/failure"
	"drover/internal/testkit"
)

// TestMain is also the embedded Kafka of the tests: a process of a stack is a
// program of its own, and this binary is the one at hand.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "embedded-kafka" {
		port, err := strconv.Atoi(os.Args[2])
		if err == nil {
			err = devstack.RunEmbeddedKafka(context.Background(), port)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// newOptions describes a stack of the test's own, which is gone after it.
func newOptions(t *testing.T, parts ...string) devstack.Options {
	t.Helper()
	testkit.SkipShort(t)
	tools, err := devstack.NewTools()
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	opts := devstack.Options{
		Dir: filepath.Join(t.TempDir(), "stack"), Parts: parts, Shards: []string{"shard-a"},
		Self: []string{self, "embedded-kafka"}, Tools: tools,
	}
	t.Cleanup(func() {
		all := opts
		all.Parts = nil
		require.NoError(t, devstack.Reset(context.WithoutCancel(t.Context()), all, nil))
	})
	return opts
}

// up starts the stack; without its programs there is nothing to test.
func up(t *testing.T, opts devstack.Options) *devstack.Stack {
	t.Helper()
	stack, err := devstack.Up(t.Context(), opts, func(part, message string) { t.Logf("%s %s", part, message) })
	if failure.HasCode(err, "devstack.missing") {
		testkit.Unavailable(t, err.Error())
	}
	require.NoError(t, err)
	return stack
}

// pids are the parts' processes; each part must be healthy.
func pids(t *testing.T, opts devstack.Options) map[string]int {
	t.Helper()
	_, parts, err := devstack.Status(t.Context(), opts)
	require.NoError(t, err)
	out := map[string]int{}
	for _, p := range parts {
		require.True(t, p.Healthy, "%s: %s", p.Name, p.Problem)
		out[p.Name] = p.PID
	}
	return out
}

// leftovers are the processes that belong to the stack in dir.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	var out []string
	for _, f := range found {
		env, err := os.ReadFile(f)
		if err == nil && strings.Contains(string(env), "DROVER_PART="+dir+"/") {
			out = append(out, f)
		}
	}
	return out
}

func TestStackSurvivesKillsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	opts := newOptions(t)
	stack := up(t, opts)
	before := pids(t, opts)
	require.Len(t, before, 5)
	writeEverywhere(t, stack)

	again := up(t, opts)
	require.Equal(t, stack, again, "a second up moved something")
	require.Equal(t, before, pids(t, opts), "a second up started something again")

	for part, pid := range before {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL), part)
	}
	require.Equal(t, stack, up(t, opts), "a part came back elsewhere")
	for part, pid := range pids(t, opts) {
		require.NotEqual(t, before[part], pid, part)
	}
	findEverywhere(t, stack)

	require.NoError(t, devstack.Down(t.Context(), opts, nil))
	dir, err := filepath.EvalSymlinks(opts.Dir)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(leftovers(t, dir)) == 0 }, 10*time.Second, 20*time.Millisecond)
	_, parts, err := devstack.Status(t.Context(), opts)
	require.NoError(t, err)
	for _, p := range parts {
		require.False(t, p.Running, p.Name)
	}

	require.NoError(t, devstack.Reset(t.Context(), opts, nil))
	left, err := os.ReadDir(opts.Dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "only the lock file may stay: %v", left)
}

// writeEverywhere leaves something in each part.
func writeEverywhere(t *testing.T, s *devstack.Stack) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, s.Postgres.DSN)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "create table kept (a int); insert into kept values (7)")
	require.NoError(t, err)

	k, err := kgo.NewClient(kgo.SeedBrokers(s.Kafka.Brokers...))
	require.NoError(t, err)
	defer k.Close()
	_, err = kadm.NewClient(k).CreateTopic(ctx, 1, 1, nil, "kept")
	require.NoError(t, err)
	require.NoError(t, k.ProduceSync(ctx, &kgo.Record{Topic: "kept", Value: []byte("7")}).FirstErr())

	_, err = s.S3.Client().PutObject(ctx, &s3.PutObjectInput{
		Bucket: &s.S3.Bucket, Key: aws.String("kept"), Body: strings.NewReader("7"), ContentType: aws.String("text/seven"),
	})
	require.NoError(t, err)

	onShard(t, s, func(c *mongo.Client) {
		_, err := c.Database("d").Collection("kept").InsertOne(ctx, bson.M{"_id": 7})
		require.NoError(t, err)
	})

	tc, err := client.DialContext(ctx, client.Options{HostPort: s.Temporal.Address})
	require.NoError(t, err)
	defer tc.Close()
	_, err = tc.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "kept", TaskQueue: "nobody"}, "Kept")
	require.NoError(t, err)
}

// findEverywhere looks for what [writeEverywhere] left.
func findEverywhere(t *testing.T, s *devstack.Stack) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, s.Postgres.DSN)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	var n int
	require.NoError(t, conn.QueryRow(ctx, "select a from kept").Scan(&n))
	require.Equal(t, 7, n)

	k, err := kgo.NewClient(kgo.SeedBrokers(s.Kafka.Brokers...), kgo.ConsumeTopics("kept"))
	require.NoError(t, err)
	defer k.Close()
	fetches := k.PollFetches(ctx)
	require.NoError(t, fetches.Err())
	require.Equal(t, "7", string(fetches.Records()[0].Value))

	got, err := s.S3.Client().GetObject(ctx, &s3.GetObjectInput{Bucket: &s.S3.Bucket, Key: aws.String("kept")})
	require.NoError(t, err)
	body, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	require.NoError(t, got.Body.Close())
	require.Equal(t, "7", string(body))
	require.Equal(t, "text/seven", aws.ToString(got.ContentType))

	onShard(t, s, func(c *mongo.Client) {
		require.NoError(t, c.Database("d").Collection("kept").FindOne(ctx, bson.M{"_id": 7}).Err())
	})

	tc, err := client.DialContext(ctx, client.Options{HostPort: s.Temporal.Address})
	require.NoError(t, err)
	defer tc.Close()
	_, err = tc.DescribeWorkflow(ctx, "kept", "")
	require.NoError(t, err)
}

// onShard calls do with a client of shard-a that is its root user.
func onShard(t *testing.T, s *devstack.Stack, do func(*mongo.Client)) {
	t.Helper()
	a, ok := s.Shard("shard-a")
	require.True(t, ok)
	c, err := mongo.Connect(options.Client().ApplyURI(a.AdminURI))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Disconnect(t.Context())) }()
	do(c)
}

// Two commands at once must not start a part twice.
func TestUpTwiceAtOnceStartsEachPartOnce(t *testing.T) {
	t.Parallel()
	opts := newOptions(t, "s3", "shard-a")
	up(t, newOptions(t, "s3")) // skips where the programs are missing

	errs := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := devstack.Up(t.Context(), opts, nil)
			errs <- err
		}()
	}
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	pids(t, opts)
	dir, err := filepath.EvalSymlinks(opts.Dir)
	require.NoError(t, err)
	require.Len(t, leftovers(t, dir), 2)
}

// The port of a stopped part may have been taken by somebody: the message must
// show what the part itself said about it.
func TestFailureShowsTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	opts := newOptions(t, "shard-a")
	stack := up(t, opts)
	require.NoError(t, devstack.Down(t.Context(), opts, nil))
	a, _ := stack.Shard("shard-a")
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", a.Port))
	require.NoError(t, err)
	defer l.Close()

	_, err = devstack.Up(t.Context(), opts, nil)
	require.True(t, failure.HasCode(err, "devstack.not-ready"), "%v", err)
	require.ErrorContains(t, err, "shard-a")
	require.ErrorContains(t, err, "Address already in use")
}

func TestMissingProgramsAreNamed(t *testing.T) {
	t.Parallel()
	opts := newOptions(t, "s3")
	opts.Tools.Cache = t.TempDir()
	_, err := devstack.Up(t.Context(), opts, nil)
	require.True(t, failure.HasCode(err, "devstack.missing"), "%v", err)
	require.ErrorContains(t, err, "versitygw is not installed")
}

func TestUnknownNamesAreRefusedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]devstack.Options{
		"devstack.unknown-part": {Parts: []string{"mysql"}},
		"devstack.shard-name":   {Shards: []string{"kafka"}},
		"devstack.kafka-engine": {Kafka: "redpanda"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts.Dir = filepath.Join(t.TempDir(), "stack")
			_, err := devstack.Up(t.Context(), opts, nil)
			require.True(t, failure.HasCode(err, name), "%v", err)
			found, err := filepath.Glob(filepath.Join(opts.Dir, "*", "pid"))
			require.NoError(t, err)
			require.Empty(t, found)
		})
	}
}

func TestEmbeddedKafkaNeedsNoJava(t *testing.T) {
	t.Parallel()
	opts := newOptions(t, "kafka")
	opts.Kafka = devstack.EngineEmbedded
	opts.Tools.Cache = t.TempDir()
	stack := up(t, opts)

	k, err := kgo.NewClient(kgo.SeedBrokers(stack.Kafka.Brokers...))
	require.NoError(t, err)
	defer k.Close()
	_, err = kadm.NewClient(k).CreateTopic(t.Context(), 1, 1, nil, "t")
	require.NoError(t, err)
	require.NoError(t, k.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("7")}).FirstErr())

	opts.Kafka = devstack.EngineKafka
	_, err = devstack.Up(t.Context(), opts, nil)
	require.True(t, failure.HasCode(err, "devstack.kafka-runs"), "%v", err)
}

func TestStatusAndDownWithoutAStack(t *testing.T) {
	t.Parallel()
	opts := devstack.Options{Dir: filepath.Join(t.TempDir(), "none")}
	_, _, err := devstack.Status(t.Context(), opts)
	require.True(t, failure.HasCode(err, "devstack.no-stack"), "%v", err)
	require.NoError(t, devstack.Down(t.Context(), opts, nil))
	require.NoError(t, devstack.Reset(t.Context(), opts, nil))
}

// The state file holds passwords.
func TestStateFileIsPrivate(t *testing.T) {
	t.Parallel()
	opts := newOptions(t, "s3")
	up(t, opts)
	info, err := os.Stat(filepath.Join(opts.Dir, devstack.StateFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestDefaultDirFollowsTheVariable(t *testing.T) {
	t.Parallel()
	lookup := func(value string) func(string) (string, bool) {
		return func(string) (string, bool) { return value, true }
	}
	dir, err := devstack.DefaultDir(lookup("/a/b/stack.json"))
	require.NoError(t, err)
	require.Equal(t, "/a/b", dir)
	_, err = devstack.DefaultDir(lookup("/a/b"))
	require.True(t, failure.HasCode(err, "devstack.state-path"), "%v", err)
}
