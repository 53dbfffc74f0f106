package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"drover/internal/config"
)

// load runs Load for a worker with the given sources.
func load(t *testing.T, args []string, env, dev map[string]string, file string) (config.Config, map[string]string, error) {
	t.Helper()
	var c config.Config
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.Flags(fs, config.Worker)
	require.NoError(t, fs.Parse(args))
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "drover.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	}
	from, err := config.Load(fs, config.Worker, config.Source{
		LookupEnv: func(k string) (string, bool) { v, ok := env[k]; return v, ok }, File: path, DevStack: dev,
	})
	return c, from, err
}

func TestOrderOfSources(t *testing.T) {
	t.Parallel()

	env := map[string]string{"DROVER_SECRET": "env", "DROVER_S3_BUCKET": "env"}
	dev := map[string]string{"secret": "dev", "s3-bucket": "dev", "s3-region": "dev", "temporal-address": "dev"}
	c, from, err := load(t, []string{"--secret", "flag"}, env, dev, "s3-bucket: file\ns3-region: file\nfence-deadline: 2s\n")
	require.NoError(t, err)
	require.Equal(t, []string{"flag", "env", "file", "dev"}, []string{c.Secret, c.S3Bucket, c.S3Region, c.TemporalAddress})
	require.Equal(t, 2*time.Second, c.FenceDeadline)
	require.Equal(t, int32(4), c.KafkaPartitions)
	require.Equal(t, "default", from["kafka-partitions"])
	require.Equal(t, "DROVER_S3_BUCKET", from["s3-bucket"])
}

func TestProblemsComeAtOnce(t *testing.T) {
	t.Parallel()

	_, _, err := load(t, nil, map[string]string{"DROVER_FENCE_DEADLINE": "soon", "DROVER_KAFKA_PARTITIONS": "many"}, nil, "fense-deadline: 1s\n")
	require.ErrorContains(t, err, "DROVER_FENCE_DEADLINE")
	require.ErrorContains(t, err, "DROVER_KAFKA_PARTITIONS")
	require.ErrorContains(t, err, `unknown setting "fense-deadline"`)

	c, _, err := load(t, nil, nil, nil, "kafka-brokers: [k1:9092, k2:9092]\nkafka-partitions: 8\ns3-bucket: {a: b}\nlisen: 1\nlisten: x\n")
	require.ErrorContains(t, err, "s3-bucket is neither a value nor a list of values")
	require.ErrorContains(t, err, `unknown setting "lisen"`)
	require.NotContains(t, err.Error(), `"listen"`, "a file may serve every role")
	require.Equal(t, []string{"k1:9092", "k2:9092"}, c.KafkaBrokers, "what can be read is read")
	require.Equal(t, int32(8), c.KafkaPartitions)

	c, _, err = load(t, []string{"--queues", "control,bilk"}, nil, nil, "")
	require.NoError(t, err)
	err = c.Validate(config.Worker)
	c.FenceDeadline, c.GateLag, c.GateElectionQuiet = time.Minute, 0, 0
	c.RemedyRebuild, c.RemedyProvision = []string{"/nowhere/rebuild", "--now"}, []string{"sh", "-c", "true"}
	require.ErrorContains(t, c.Validate(config.Worker), `remedy-rebuild is "/nowhere/rebuild,--now": exec: "/nowhere/rebuild": stat /nowhere/rebuild: no such file or directory; want a program`)
	require.NotContains(t, c.Validate(config.Worker).Error(), "remedy-provision")
	require.NotContains(t, c.Validate(config.Worker).Error(), "remedy-release", "it need not be given")
	require.ErrorContains(t, c.Validate(config.Worker), "fence-deadline is 1m0s; want less than 10s")
	require.ErrorContains(t, c.Validate(config.Worker), "gate-lag is 0s; want a positive duration")
	require.NotContains(t, c.Validate(config.Worker).Error(), "gate-election-quiet")
	for _, want := range []string{"postgres-dsn is not set", "secret is not set", "kafka-brokers is not set", `queues has "bilk"`} {
		require.ErrorContains(t, err, want)
	}
}

func TestProblemsOfAProxy(t *testing.T) {
	t.Parallel()

	var c config.Config
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.Flags(fs, config.Proxy)
	require.NoError(t, fs.Parse([]string{"--tls-cert", "none.pem", "--shard-tls-key", "none.key", "--listen", "nowhere", "--switch-wait", "0s"}))
	err := c.Validate(config.Proxy)
	for _, want := range []string{"tls-cert and tls-key", "shard-tls-cert and shard-tls-key", "none.pem", "none.key", `listen is "nowhere"`, "switch-wait", "secret is not set"} {
		require.ErrorContains(t, err, want)
	}
}

// TestDocumentation keeps docs/configuration.md at what the binary knows. Run
// with UPDATE_DOCS=1 to write it.
func TestDocumentation(t *testing.T) {
	t.Parallel()

	var b strings.Builder
	b.WriteString(`# Configuration

Each setting is a flag; its variable and its key in the file (` + "`--config FILE`" + `, YAML) have the same name. The order is: flag, variable,
file, what is kept for the whole fleet ([fleet.md](fleet.md)), a running dev stack (` + "`.drover/stack.json`, or the file that `DROVER_STACK` names" + `), default. ` + "`drover config show`" + ` prints what is in
force and where each value comes from; secrets are hidden.

The passwords of Drover's users on the shards derive from the fleet's secret: HMAC-SHA256 over "SHARD:USER", in hexadecimal. Whoever
has the secret has every shard; give it to workers and proxies only, and never change it without registering the shards anew.

| flag | variable | default | used by | meaning |
| --- | --- | --- | --- | --- |
`)
	for _, d := range config.Docs() {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s |\n", d.Flag, d.Variable, d.Default, d.Used, d.Usage)
	}
	path := filepath.Join("..", "..", "docs", "configuration.md")
	if os.Getenv("UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "run make generate")
}
