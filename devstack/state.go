package devstack

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"drover/internal/failure"
)

// StateFile is the name of the state file inside a stack's folder.
const StateFile = "stack.json"

// DefaultShards are the shards of a stack that was not asked for others.
var DefaultShards = []string{"shard-a", "shard-b", "shard-c"}

// Stack is where everything is and how to get in. It is what the state file
// holds; ports and credentials are chosen once and stay.
type Stack struct {
	Dir      string         `json:"dir"`
	Secret   string         `json:"secret"` // the fleet's secret for this stack
	Postgres PostgresAccess `json:"postgres"`
	Kafka    KafkaAccess    `json:"kafka"`
	S3       S3Access       `json:"s3"`
	Temporal TemporalAccess `json:"temporal"`
	Shards   []ShardAccess  `json:"shards"`
}

// PostgresAccess is the way into Postgres.
type PostgresAccess struct {
	Port     int    `json:"port"`
	User     string `json:"user"`
	Password string `json:"password"`
	DSN      string `json:"dsn"`
}

// KafkaAccess is the way to the broker.
type KafkaAccess struct {
	Port           int      `json:"port"`
	ControllerPort int      `json:"controllerPort"`
	ClusterID      string   `json:"clusterId"`
	Engine         string   `json:"engine"` // EngineKafka or EngineEmbedded
	Brokers        []string `json:"brokers"`
}

// S3Access is the way into the S3 server. Buckets are addressed by path.
type S3Access struct {
	Port      int    `json:"port"`
	Endpoint  string `json:"endpoint"`
	Region    string `json:"region"`
	Bucket    string `json:"bucket"`
	AccessKey string `json:"accessKey"`
	SecretKey string `json:"secretKey"`
	Sidecar   bool   `json:"sidecar"` // metadata beside the files: the file system has no extended attributes
}

// TemporalAccess is the way to the Temporal server.
type TemporalAccess struct {
	Port       int    `json:"port"`
	UIPort     int    `json:"uiPort"`
	HealthPort int    `json:"healthPort"`
	Address    string `json:"address"`
	Namespace  string `json:"namespace"`
	UI         string `json:"ui"`
}

// ShardAccess is the way into one shard.
type ShardAccess struct {
	Name     string `json:"name"`
	Port     int    `json:"port"`
	Engine   string `json:"engine"`   // EngineMongod or EngineSecantus
	URI      string `json:"uri"`      // without credentials
	AdminURI string `json:"adminUri"` // as the root user
	User     string `json:"user"`
	Password string `json:"password"`
}

// Shard is the access to the named shard.
func (s *Stack) Shard(name string) (ShardAccess, bool) {
	for _, a := range s.Shards {
		if a.Name == name {
			return a, true
		}
	}
	return ShardAccess{}, false
}

// statePath is the state file of the stack in dir.
func statePath(dir string) string { return filepath.Join(dir, StateFile) }

// Load reads a state file. A stack that never ran is an error with code
// "devstack.no-stack".
func Load(path string) (*Stack, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, failure.New(failure.Invalid, "devstack.no-stack", "no stack is described by %s", path).
			WithHint("start one with `drover dev up` or `make stack`")
	}
	if err != nil {
		return nil, err
	}
	s := &Stack{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, failure.New(failure.Invalid, "devstack.state", "read %s: %w", path, err).
			WithHint("`drover dev reset` starts over")
	}
	return s, nil
}

// save writes the state file. It holds passwords of loopback servers, so only
// the owner may read it.
func (s *Stack) save(path string) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, append(raw, '\n'), 0o600)
}

// complete chooses what is not chosen yet: ports, passwords, identities.
func (s *Stack) complete(opts Options, tools Tools) error {
	ports := &portPicker{taken: map[int]bool{}}
	s.Dir = opts.Dir
	if s.Secret == "" {
		s.Secret = randomHex(32)
	}
	s.completePostgres(ports)
	if err := s.completeKafka(ports, opts.Kafka); err != nil {
		return err
	}
	s.completeS3(ports)
	s.completeTemporal(ports)
	for _, name := range opts.Shards {
		if _, ok := s.Shard(name); ok {
			continue
		}
		if err := checkShardName(name); err != nil {
			return err
		}
		s.Shards = append(s.Shards, newShardAccess(name, ports.pick(), tools.shardEngine()))
	}
	return ports.err
}

// completePostgres chooses Postgres' port and password.
func (s *Stack) completePostgres(ports *portPicker) {
	p := &s.Postgres
	if p.Port == 0 {
		p.Port, p.User, p.Password = ports.pick(), "drover", randomHex(16)
	}
	p.DSN = fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d/drover?sslmode=disable", p.User, p.Password, p.Port)
}

// completeKafka chooses Kafka's ports and engine. The engine of a stack that
// has data does not change by itself.
func (s *Stack) completeKafka(ports *portPicker, engine string) error {
	k := &s.Kafka
	if k.Port == 0 {
		k.Port, k.ControllerPort, k.ClusterID = ports.pick(), ports.pick(), randomUUID()
	}
	switch engine {
	case "":
		if k.Engine == "" {
			k.Engine = EngineKafka
		}
	case EngineKafka, EngineEmbedded:
		k.Engine = engine
	default:
		return failure.New(failure.Invalid, "devstack.kafka-engine", "unknown Kafka engine %q", engine).
			WithHint("use %q or %q", EngineKafka, EngineEmbedded)
	}
	k.Brokers = []string{fmt.Sprintf("127.0.0.1:%d", k.Port)}
	return nil
}

// completeS3 chooses the S3 server's port and keys.
func (s *Stack) completeS3(ports *portPicker) {
	a := &s.S3
	if a.Port == 0 {
		a.Port, a.AccessKey, a.SecretKey = ports.pick(), "drover", randomHex(20)
		a.Region, a.Bucket = "us-east-1", "drover"
		a.Sidecar = !hasExtendedAttributes(s.Dir)
	}
	a.Endpoint = fmt.Sprintf("http://127.0.0.1:%d", a.Port)
}

// completeTemporal chooses Temporal's ports.
func (s *Stack) completeTemporal(ports *portPicker) {
	t := &s.Temporal
	if t.Port == 0 {
		t.Port, t.UIPort, t.HealthPort = ports.pick(), ports.pick(), ports.pick()
		t.Namespace = "default"
	}
	t.Address = fmt.Sprintf("127.0.0.1:%d", t.Port)
	t.UI = fmt.Sprintf("http://127.0.0.1:%d", t.UIPort)
}

// checkShardName keeps a shard's name usable as a folder and in a URI.
func checkShardName(name string) error {
	ok := name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && !isReserved(name)
	if !ok {
		return failure.New(failure.Invalid, "devstack.shard-name", "%q is no name for a shard", name).
			WithHint("use small letters, digits and dashes, and none of %s", strings.Join(reservedNames, ", "))
	}
	return nil
}
