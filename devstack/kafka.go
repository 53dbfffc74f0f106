package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"drover/internal/failure"
)

// Engines of the Kafka part.
const (
	EngineKafka    = "kafka"    // the real broker, under Java
	EngineEmbedded = "embedded" // franz-go's stand-in, in memory
)

// kafkaServer is a single broker that is its own controller.
type kafkaServer struct {
	process
	access KafkaAccess
	tools  Tools
	self   []string
}

// newKafka describes Kafka of stack s. The command self runs [RunEmbeddedKafka].
func newKafka(s *Stack, tools Tools, self []string) *kafkaServer {
	return &kafkaServer{
		process: process{name: "kafka", dir: filepath.Join(s.Dir, "kafka"), stop: syscall.SIGTERM, wait: 20 * time.Second},
		access:  s.Kafka,
		tools:   tools,
		self:    self,
	}
}

// start formats the log folder once and runs the broker.
func (k *kafkaServer) start(ctx context.Context) error {
	if k.access.Engine == EngineEmbedded {
		return k.startEmbedded(ctx)
	}
	java, err := k.tools.java()
	if err != nil {
		return err
	}
	jars, err := k.tools.kafkaJars()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(k.dir, 0o755); err != nil {
		return err
	}
	properties := filepath.Join(k.dir, "server.properties")
	if err := writeFile(properties, []byte(k.properties()), 0o644); err != nil {
		return err
	}
	classpath := filepath.Join(jars, "*")
	if _, err := os.Stat(filepath.Join(k.data(), "meta.properties")); errors.Is(err, os.ErrNotExist) {
		// A format that was cut short leaves no meta.properties, and what it left is in the way.
		if err := os.RemoveAll(k.data()); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, java, "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", k.access.ClusterID, "-c", properties)
		cmd.Env = baseEnvironment()
		if out, err := cmd.CombinedOutput(); err != nil {
			return failure.New(failure.Transient, "devstack.kafka-format", "format Kafka's log folder: %w: %s", err, strings.TrimSpace(string(out)))
		}
	}
	return k.process.start(ctx, program{
		path: java,
		args: []string{
			"-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError", // cheap to start, on few cores
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
			"-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
			"-cp", classpath, "kafka.Kafka", properties,
		},
	}, k.ready)
}

// data is the folder of the broker's logs.
func (k *kafkaServer) data() string { return filepath.Join(k.dir, "data") }

// properties is the broker's configuration. A killed broker loses nothing that
// it acknowledged, because the operating system has it; a power cut may.
func (k *kafkaServer) properties() string {
	lines := []string{
		"process.roles=broker,controller",
		"node.id=1",
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", k.access.Port, k.access.ControllerPort),
		fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d", k.access.Port),
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=PLAINTEXT",
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d", k.access.ControllerPort),
		"log.dirs=" + k.data(),
		"auto.create.topics.enable=false",
		"default.replication.factor=1",
		"min.insync.replicas=1",
		"offsets.topic.replication.factor=1",
		"offsets.topic.num.partitions=4",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"transaction.state.log.num.partitions=4",
		"share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1",
		"group.initial.rebalance.delay.ms=0",
		"log.segment.bytes=67108864",
		"log.retention.hours=168",
		"broker.session.timeout.ms=5000",
		"broker.heartbeat.interval.ms=500",
		"controlled.shutdown.enable=true",
	}
	return strings.Join(lines, "\n") + "\n"
}

// ready says nil when the broker is in the cluster's metadata, which shows
// only brokers that may serve.
func (k *kafkaServer) ready(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.access.Brokers...), kgo.RetryTimeout(2*time.Second))
	if err != nil {
		return err
	}
	defer client.Close()
	meta, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	if len(meta.Brokers) == 0 || meta.Controller < 0 {
		return errors.New("the broker has not joined its cluster yet")
	}
	return nil
}

// startEmbedded runs the stand-in in a child of its own.
func (k *kafkaServer) startEmbedded(ctx context.Context) error {
	if len(k.self) == 0 {
		return failure.New(failure.Invalid, "devstack.embedded", "nothing here can run the embedded Kafka").
			WithHint("start it with `drover dev up --kafka embedded`")
	}
	return k.process.start(ctx, program{
		path: k.self[0],
		args: append(slices.Clone(k.self[1:]), strconv.Itoa(k.access.Port)),
	}, k.ready)
}

// RunEmbeddedKafka serves Kafka's protocol on a port of the loopback address
// until ctx ends. What it holds is in memory and goes with it.
func RunEmbeddedKafka(ctx context.Context, port int) error {
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) {
			var lc net.ListenConfig
			return lc.Listen(ctx, network, fmt.Sprintf("127.0.0.1:%d", port))
		}),
	)
	if err != nil {
		return fmt.Errorf("start the embedded Kafka: %w", err)
	}
	<-ctx.Done()
	cluster.Close()
	return nil
}
