// Package config holds what a process of Drover can be told, and where each
// value comes from: flag, DROVER_* variable, file, the running dev stack,
// default, in this order.
package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

// Config is every setting of every role. A field's usage text is the one source
// of --help and docs/configuration.md.
type Config struct {
	PostgresDSN       string
	KafkaBrokers      []string
	KafkaPartitions   int32
	S3Endpoint        string
	S3Region          string
	S3Bucket          string
	S3AccessKey       string
	S3SecretKey       string
	TemporalAddress   string
	TemporalNamespace string
	Secret            string
	LogLevel          string

	MetricsListen string
	ProxyListen   string
	ProxyName     string
	ProxyRegion   string
	ProxyDeaf     bool
	ProxyAuth     bool
	TLSCert       string
	TLSKey        string
	TLSClientCA   string
	ShardTLSCA    string
	ShardTLSCert  string
	ShardTLSKey   string
	StateDir      string
	SwitchWait    time.Duration
	SlowRequest   time.Duration
	Linger        time.Duration
	Queues        []string

	FenceDeadline     time.Duration
	ProxyGrace        time.Duration
	GateLag           time.Duration
	GateLatency       time.Duration
	GateElectionQuiet time.Duration
	GateSecondaryLag  time.Duration
	SyncLag           time.Duration
	ArchiveRetention  time.Duration
	ImportPace        string
	ImportLatency     float64
	AuditProxy        string

	SwitchObjective    time.Duration
	RemedyRebuild      []string
	RemedyProvision    []string
	RemedyRelease      []string
	AfterSwitchErrors  float64
	AfterSwitchLatency float64

	// Sources tells where each value came from, by flag name; see [Load].
	Sources map[string]string
}

// SourceOf tells where a value came from.
func (c *Config) SourceOf(name string) string {
	if s, ok := c.Sources[name]; ok {
		return s
	}
	return "default"
}

// Role selects the settings that a command uses.
type Role int

// The roles. Each includes Common.
const (
	Common Role = iota // reaching metadata, Temporal and the shards
	Worker
	Proxy
	Audit // an audit by hand: it reads as those of workers do
)

// The values of ImportPace.
const (
	PaceGentle = "gentle"
	PaceFull   = "full"
)

// setting is one value: its flag, which is also its key in the file and, in
// capitals with DROVER_ before it, its variable.
type setting struct {
	role   Role
	name   string
	secret bool
	add    func(c *Config, fs *pflag.FlagSet, name string)
}

// settings is the whole list.
var settings = []setting{
	{Common, "postgres-dsn", true, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.PostgresDSN, n, "", "connection string of the metadata database")
	}},
	{Common, "kafka-brokers", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringSliceVar(&c.KafkaBrokers, n, nil, "host:port of Kafka brokers, separated by commas")
	}},
	{Common, "kafka-partitions", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.Int32Var(&c.KafkaPartitions, n, 4, "partitions of a shard's captured log; fixed once the topic exists")
	}},
	{Common, "s3-endpoint", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.S3Endpoint, n, "", "URL of the S3 service; empty: AWS")
	}},
	{Common, "s3-region", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.S3Region, n, "us-east-1", "region of the bucket")
	}},
	{Common, "s3-bucket", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.S3Bucket, n, "drover", "bucket of snapshots and archive")
	}},
	{Common, "s3-access-key", true, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.S3AccessKey, n, "", "access key of the bucket")
	}},
	{Common, "s3-secret-key", true, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.S3SecretKey, n, "", "secret key of the bucket")
	}},
	{Common, "temporal-address", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.TemporalAddress, n, "127.0.0.1:7233", "host:port of Temporal's frontend")
	}},
	{Common, "temporal-namespace", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.TemporalNamespace, n, "default", "Temporal namespace")
	}},
	{Common, "secret", true, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.Secret, n, "", "the fleet's secret, from which the passwords of Drover's users on every shard derive")
	}},
	{Common, "log-level", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.LogLevel, n, "info", "debug, info, warn or error")
	}},
	{Worker, "queues", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringSliceVar(&c.Queues, n, []string{"control", "bulk", "fence"}, "task queues to serve: control, bulk, fence")
	}},
	{Worker, "fence-deadline", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.FenceDeadline, n, time.Second, "a fence that is not published by then goes back")
	}},
	{Worker, "proxy-grace", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.ProxyGrace, n, 150*time.Millisecond, "how long a fence waits for a proxy that gives no word")
	}},
	{Worker, "gate-lag", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.GateLag, n, 200*time.Millisecond, "gate (1): most that the lanes may be behind")
	}},
	{Worker, "gate-latency", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.GateLatency, n, 300*time.Millisecond, "gate (2): most that p99 from capture to apply may be, over the last minute")
	}},
	{Worker, "gate-election-quiet", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.GateElectionQuiet, n, 5*time.Minute, "gate (4): how long the target's primary must have been primary")
	}},
	{Worker, "gate-secondary-lag", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.GateSecondaryLag, n, 2*time.Second, "gate (4): most that a secondary of the target may be behind")
	}},
	{Worker, "after-switch-errors", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.Float64Var(&c.AfterSwitchErrors, n, 0.01, "after a switch: how much the share of failed requests of a chunk may grow")
	}},
	{Worker, "after-switch-latency", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.Float64Var(&c.AfterSwitchLatency, n, 3, "after a switch: how many times p99 of a chunk may be what it was (50 ms more are always allowed)")
	}},
	{Worker, "sync-lag", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.SyncLag, n, 2*time.Second, "lag below which a target counts as in sync and is validated")
	}},
	{Worker, "import-pace", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.ImportPace, n, PaceGentle, "gentle: imports rest while a shard that they read or load is slow, its cache full or a secondary behind; full: they never do")
	}},
	{Worker, "import-latency", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.Float64Var(&c.ImportLatency, n, 1.2, "how many times p99 of applications' requests to a shard may be what it was, while a gentle import reads or loads it; 0: not looked at")
	}},
	{Worker, "audit-proxy", true, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.AuditProxy, n, "", "connection string of a proxy, with a user who may read: audits read some documents through it before a switch; empty: they do not")
	}},
	{Worker, "switch-objective", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.SwitchObjective, n, time.Minute, "how long switches may keep writes of a logical database waiting in a calendar month; past it there is an alarm")
	}},
	{Worker, "remedy-rebuild", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringSliceVar(&c.RemedyRebuild, n, nil, "command, and its arguments after commas, that empties a node and starts it again; empty: no rebuilds")
	}},
	{Worker, "remedy-provision", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringSliceVar(&c.RemedyProvision, n, nil, "command that starts an empty node on a spare machine; empty: no new members")
	}},
	{Worker, "remedy-release", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringSliceVar(&c.RemedyRelease, n, nil, "command that stops and empties a node that has left its set")
	}},
	{Worker, "archive-retention", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.ArchiveRetention, n, 30*24*time.Hour, "how long the archive of captured logs is kept, longer while a move needs it; 0: for ever")
	}},
	{Proxy, "listen", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.ProxyListen, n, "127.0.0.1:27017", "host:port that applications connect to")
	}},
	{Proxy, "name", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.ProxyName, n, "", "name of this proxy; empty: host name and listen address")
	}},
	{Proxy, "region", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.ProxyRegion, n, "", "where this proxy stands, shown in hello and in its metrics; every proxy serves every region")
	}},
	{Proxy, "switch-wait", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.SwitchWait, n, 1500*time.Millisecond, "how long a request is held across a switch before the driver is asked to retry")
	}},
	{Proxy, "slow-request", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.SlowRequest, n, 500*time.Millisecond, "requests that take longer are logged, without values; below 0: none")
	}},
	{Proxy, "linger", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.DurationVar(&c.Linger, n, 15*time.Second, "how long a proxy that is told to end serves on while drivers leave it for another one; longer than their heartbeats are apart")
	}},
	{Proxy, "deaf", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.BoolVar(&c.ProxyDeaf, n, false, "ignore every notification (for drills: everything must stay right)")
	}},
	{Proxy, "auth", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.BoolVar(&c.ProxyAuth, n, true, "applications must log in as a user of drover user")
	}},
	{Proxy, "tls-cert", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.TLSCert, n, "", "file with the certificate shown to applications; empty: no TLS")
	}},
	{Proxy, "tls-key", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.TLSKey, n, "", "file with its key")
	}},
	{Proxy, "tls-client-ca", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.TLSClientCA, n, "", "file with the authorities of applications' certificates, which are then required")
	}},
	{Proxy, "shard-tls-ca", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.ShardTLSCA, n, "", "file with the authorities of the shards' certificates (for shards whose URI says tls=true); empty: the system's")
	}},
	{Proxy, "shard-tls-cert", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.ShardTLSCert, n, "", "file with the certificate shown to shards; empty: none")
	}},
	{Proxy, "shard-tls-key", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.ShardTLSKey, n, "", "file with its key")
	}},
	{Proxy, "state-dir", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.StateDir, n, "", "folder for the last known routes and users, with which a proxy starts while the metadata is down; empty: none are kept")
	}},
	{Worker, "metrics-listen", false, func(c *Config, fs *pflag.FlagSet, n string) {
		fs.StringVar(&c.MetricsListen, n, "", "host:port of /metrics, /healthz, /readyz, /shapes (proxy) and /debug/pprof; empty: off")
	}},
}

// uses reports whether a command of role r knows s.
func (s setting) uses(r Role) bool {
	return s.role == Common || s.role == r || s.name == "metrics-listen" && r == Proxy || s.name == "audit-proxy" && r == Audit
}

// Variable is the environment variable of a flag: DROVER_POSTGRES_DSN.
func Variable(r Role, name string) string {
	if r == Proxy && (name == "listen" || name == "name" || name == "deaf" || name == "region") {
		name = "proxy-" + name
	}
	return "DROVER_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// Flags adds the settings of role r to fs.
func (c *Config) Flags(fs *pflag.FlagSet, r Role) {
	for _, s := range settings {
		if s.uses(r) {
			s.add(c, fs, s.name)
		}
	}
}

// Source gives values that no flag set: the environment, a file, what is kept for the
// whole fleet, and the address book of a running dev stack.
type Source struct {
	LookupEnv func(string) (string, bool)
	File      string            // path of a YAML file, may be empty
	Fleet     map[string]string // kept for all proxies, by flag name, may be nil
	DevStack  map[string]string // by flag name, may be nil
}

// Load fills every flag of fs that the command line did not set, and returns
// where each value came from, by flag name. All problems come at once, with what
// could be read; only with a file that can't be read at all there is nothing else.
func Load(fs *pflag.FlagSet, r Role, src Source) (map[string]string, error) {
	file, problems, err := readFile(src.File)
	if err != nil {
		return nil, err
	}
	from := map[string]string{}
	for _, s := range settings {
		if !s.uses(r) {
			continue
		}
		flag := fs.Lookup(s.name)
		variable := Variable(s.role, s.name)
		env, inEnv := src.LookupEnv(variable)
		inFile, hasFile := file[s.name]
		fleet, hasFleet := src.Fleet[s.name]
		dev, hasDev := src.DevStack[s.name]
		switch {
		case flag.Changed:
			from[s.name] = "flag"
			continue
		case inEnv:
			err, from[s.name] = fs.Set(s.name, env), variable
		case hasFile:
			err, from[s.name] = fs.Set(s.name, inFile), src.File
		case hasFleet:
			err, from[s.name] = fs.Set(s.name, fleet), "fleet"
		case hasDev:
			err, from[s.name] = fs.Set(s.name, dev), "dev stack"
		default:
			from[s.name] = "default"
			continue
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s from %s: %w", s.name, from[s.name], err))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(file)) {
		if fs.Lookup(key) == nil && !known(key) {
			problems = append(problems, fmt.Errorf("%s: unknown setting %q", src.File, key))
		}
	}
	return from, errors.Join(problems...)
}

// live names the settings that a running proxy takes over; see [Live].
var live = map[string]bool{"switch-wait": true, "slow-request": true, "linger": true, "log-level": true}

// Live reports whether a setting may change while a proxy runs.
func Live(name string) bool { return live[name] }

// Changed names the settings of role r whose values differ, in the order of the list.
func Changed(was, now *pflag.FlagSet, r Role) (names []string) {
	for _, s := range settings {
		if s.uses(r) && was.Lookup(s.name).Value.String() != now.Lookup(s.name).Value.String() {
			names = append(names, s.name)
		}
	}
	return names
}

func known(name string) bool {
	for _, s := range settings {
		if s.name == name {
			return true
		}
	}
	return false
}

// readFile reads a configuration file: a value for each key, or a list of them. A key
// that has neither is a problem of its own.
func readFile(path string) (values map[string]string, problems []error, _ error) {
	if path == "" {
		return nil, nil, nil
	}
	b, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	nodes := map[string]yaml.Node{}
	if err := yaml.Unmarshal(b, &nodes); err != nil {
		return nil, nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	values = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[key]
		var list []string
		switch {
		case node.Kind == yaml.ScalarNode:
			values[key] = node.Value
		case node.Decode(&list) == nil:
			values[key] = strings.Join(list, ",")
		default:
			problems = append(problems, fmt.Errorf("%s: %s is neither a value nor a list of values", path, key))
		}
	}
	return values, problems, nil
}

// Validate returns all problems at once; each names the setting and what would
// be right.
func (c *Config) Validate(r Role) error {
	var problems []error
	need := func(name, value string) {
		if value == "" {
			problems = append(problems, fmt.Errorf("%s is not set: give --%s or %s, or start the dev stack with drover dev up", name, name, Variable(Common, name)))
		}
	}
	need("postgres-dsn", c.PostgresDSN)
	need("secret", c.Secret)
	if r == Worker {
		need("kafka-brokers", strings.Join(c.KafkaBrokers, ","))
		need("s3-access-key", c.S3AccessKey)
		need("s3-secret-key", c.S3SecretKey)
		for _, q := range c.Queues {
			if q != "control" && q != "bulk" && q != "fence" {
				problems = append(problems, fmt.Errorf("queues has %q; want control, bulk or fence", q))
			}
		}
	}
	if r == Proxy {
		problems = append(problems, c.validateProxy()...)
	}
	if c.KafkaPartitions < 1 {
		problems = append(problems, fmt.Errorf("kafka-partitions is %d; want 1 or more", c.KafkaPartitions))
	}
	if r == Worker {
		problems = append(problems, c.limits()...)
		if c.ImportPace != PaceGentle && c.ImportPace != PaceFull {
			problems = append(problems, fmt.Errorf("import-pace is %q; want %s or %s", c.ImportPace, PaceGentle, PaceFull))
		}
		if c.ImportLatency != 0 && c.ImportLatency <= 1 {
			problems = append(problems, fmt.Errorf("import-latency is %g; want a factor above 1, or 0", c.ImportLatency))
		}
		problems = append(problems, c.hooks()...)
	}
	return errors.Join(problems...)
}

// mostHold is how long a proxy holds a request while a switch is under way: a
// fence that may last longer sends errors to clients.
const mostHold = 10 * time.Second

// limits checks the bounds of the gate and of the fence.
func (c *Config) limits() (problems []error) {
	for _, x := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"fence-deadline", c.FenceDeadline, 1}, {"switch-objective", c.SwitchObjective, 1}, {"gate-lag", c.GateLag, 1}, {"gate-latency", c.GateLatency, 1},
		{"gate-election-quiet", c.GateElectionQuiet, 0}, {"gate-secondary-lag", c.GateSecondaryLag, 1}, {"sync-lag", c.SyncLag, 1}, {"archive-retention", c.ArchiveRetention, 0},
	} {
		if x.value < x.least {
			problems = append(problems, fmt.Errorf("%s is %s; want a positive duration", x.name, x.value))
		}
	}
	if c.AfterSwitchErrors <= 0 || c.AfterSwitchErrors >= 1 {
		problems = append(problems, fmt.Errorf("after-switch-errors is %g; want a share between 0 and 1, as 0.01", c.AfterSwitchErrors))
	}
	if c.AfterSwitchLatency < 1 {
		problems = append(problems, fmt.Errorf("after-switch-latency is %g; want a factor of 1 or more", c.AfterSwitchLatency))
	}
	if c.FenceDeadline >= mostHold {
		problems = append(problems, fmt.Errorf("fence-deadline is %s; want less than %s, for which proxies hold requests: longer fences would reach the applications as errors",
			c.FenceDeadline, mostHold))
	}
	return problems
}

// hooks checks that what remediation is to call can be called.
func (c *Config) hooks() (problems []error) {
	for _, x := range []struct {
		name    string
		command []string
	}{{"remedy-rebuild", c.RemedyRebuild}, {"remedy-provision", c.RemedyProvision}, {"remedy-release", c.RemedyRelease}} {
		if len(x.command) == 0 {
			continue
		}
		if _, err := exec.LookPath(x.command[0]); err != nil {
			problems = append(problems, fmt.Errorf("%s is %q: %w; want a program that this user may run, and its arguments after commas, or nothing",
				x.name, strings.Join(x.command, ","), err))
		}
	}
	return problems
}

// Doc is one line of the table in docs/configuration.md.
type Doc struct{ Flag, Variable, Default, Usage, Used string }

// Docs lists every setting in order.
func Docs() []Doc {
	var out []Doc
	for _, s := range settings {
		fs := pflag.NewFlagSet("docs", pflag.ContinueOnError)
		s.add(new(Config), fs, s.name)
		f := fs.Lookup(s.name)
		used := map[Role]string{Common: "all", Worker: "worker", Proxy: "proxy"}[s.role]
		if s.name == "metrics-listen" {
			used = "worker, proxy"
		}
		out = append(out, Doc{Flag: "--" + f.Name, Variable: Variable(s.role, s.name), Default: f.DefValue, Usage: f.Usage, Used: used})
	}
	return out
}

// IsSecret reports whether a setting must not be shown.
func IsSecret(name string) bool {
	for _, s := range settings {
		if s.name == name {
			return s.secret
		}
	}
	return false
}
