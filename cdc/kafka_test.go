package cdc_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"drover/chunk"
	"drover/devstack"
	"drover/internal/testkit"
)

// Fault B123: a refused produce request leaves a hole in front of records that
// were accepted; all of it is sent again and lanes see none of it.
func TestProduceErrorLeavesNoHole(t *testing.T) {
	t.Parallel()

	for name, err := range map[string]*kerr.Error{
		"final":   kerr.MessageTooLarge,
		"lost":    kerr.OutOfOrderSequenceNumber,
		"unsure":  kerr.RequestTimedOut,
		"again":   kerr.NotLeaderForPartition,
		"refused": kerr.TopicAuthorizationFailed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			cluster, cerr := kfake.NewCluster(kfake.NumBrokers(1))
			require.NoError(t, cerr)
			t.Cleanup(cluster.Close)
			b := setup(t, cluster.ListenAddrs())
			start(t, b.capture(nil))
			load := b.load(t, 4)
			for p := range int32(4) {
				was := load.count()
				require.Eventually(t, func() bool { return load.count() > was+40 }, time.Minute, time.Millisecond)
				cluster.Fault(kfake.Fault{
					Keys: []kmsg.Key{kmsg.Produce}, Topic: chunk.Topic(b.name), Partitions: []int32{p}, Err: err, Count: 2,
				})
			}
			was := load.count()
			require.Eventually(t, func() bool { return load.count() > was+200 }, time.Minute, time.Millisecond)
			done := load.end()
			complete(t, b.read(t, b.seam(t)), done)
		})
	}
}

// wire lets a test cut a client off from Kafka.
type wire struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

// dial is a [kgo.Dialer].
func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return nil, errors.New("cut off")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err == nil {
		w.conns = append(w.conns, conn)
	}
	return conn, err
}

// set cuts the wire or mends it.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for _, c := range w.conns {
			_ = c.Close()
		}
		w.conns = nil
	}
}

func TestKafkaOutOfReach(t *testing.T) {
	t.Parallel()

	b := setup(t, testkit.Kafka(t))
	w := &wire{}
	c := b.capture(nil)
	c.Kafka = []kgo.Opt{kgo.Dialer(w.dial)}
	start(t, c)
	load := b.load(t, 4)
	for range 5 {
		was := load.count()
		require.Eventually(t, func() bool { return load.count() > was+60 }, time.Minute, time.Millisecond)
		w.set(true)
		was = load.count()
		require.Eventually(t, func() bool { return load.count() > was+60 }, time.Minute, time.Millisecond)
		w.set(false)
	}
	done := load.end()
	complete(t, b.read(t, b.seam(t)), done)
}

// A broker that is killed loses nothing that it acknowledged; what it did not
// acknowledge is sent again.
func TestKafkaKilledAndRestarted(t *testing.T) {
	t.Parallel()

	testkit.Kafka(t) // says where a real broker can't run
	opts := devstack.Options{Dir: t.TempDir(), Parts: []string{"kafka"}}
	quiet := func(string, string) {}
	stack, err := devstack.Up(t.Context(), opts, quiet)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, devstack.Down(context.WithoutCancel(t.Context()), opts, quiet)) })
	b := setup(t, stack.Kafka.Brokers)
	start(t, b.capture(nil))
	load := b.load(t, 4)
	was := load.count()
	require.Eventually(t, func() bool { return load.count() > was+100 }, time.Minute, time.Millisecond)
	_, parts, err := devstack.Status(t.Context(), opts)
	require.NoError(t, err)
	for _, part := range parts {
		if part.Name == "kafka" && part.PID != 0 {
			require.NoError(t, syscall.Kill(part.PID, syscall.SIGKILL))
		}
	}
	was = load.count()
	require.Eventually(t, func() bool { return load.count() > was+100 }, time.Minute, time.Millisecond)
	_, err = devstack.Up(t.Context(), opts, quiet)
	require.NoError(t, err)
	was = load.count()
	require.Eventually(t, func() bool { return load.count() > was+100 }, time.Minute, time.Millisecond)
	done := load.end()
	complete(t, b.read(t, b.seam(t)), done)
}
