package devstack

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Engines of a shard.
const (
	EngineMongod   = "mongod"   // a replica set of one member
	EngineSecantus = "secantus" // a surrogate that calls itself one
)

// MongoDB's answers that the start of a shard expects.
const (
	codeAlreadyInitialized = 23
	codeUserExists         = 51003
	codeUnauthorized       = 13 // somebody made a user before
)

// rootUser is the first user of a shard, made over the loopback address while
// there is no other. Its password is in the state file.
const rootUser = "root"

// ShardServer is one shard: a replica set with authentication on.
type ShardServer struct {
	process
	access ShardAccess
	tools  Tools
	small  bool
	tuned  *tuning
}

// tuning is what a measurement changes about a shard.
type tuning struct {
	cacheMB int
	unsafe  bool
}

// Tune gives a shard another cache. unsafe lets a kill lose what was acknowledged
// in the last second: only for a measurement that kills nothing and says so.
func (s *ShardServer) Tune(cacheMB int, unsafe bool) { s.tuned = &tuning{cacheMB, unsafe} }

// shardEngine is a real mongod where there is one.
func (t Tools) shardEngine() string {
	if _, err := exec.LookPath("mongod"); err == nil {
		return EngineMongod
	}
	return EngineSecantus
}

// newShardAccess chooses a shard's password.
func newShardAccess(name string, port int, engine string) ShardAccess {
	a := ShardAccess{Name: name, Port: port, Engine: engine, User: rootUser, Password: randomHex(16)}
	a.URI = fmt.Sprintf("mongodb://127.0.0.1:%d/?directConnection=true", port)
	a.AdminURI = fmt.Sprintf("mongodb://%s:%s@127.0.0.1:%d/?directConnection=true&authSource=admin",
		url.QueryEscape(a.User), url.QueryEscape(a.Password), port)
	return a
}

// newShard describes one shard of a stack.
func newShard(dir string, access ShardAccess, tools Tools) *ShardServer {
	return &ShardServer{
		process: process{name: access.Name, dir: filepath.Join(dir, access.Name), stop: syscall.SIGTERM, wait: 20 * time.Second},
		access:  access,
		tools:   tools,
	}
}

// NewShard describes a shard of its own in dir, on a free port, for a test
// that wants to kill it. It keeps less of its log than a stack's shard.
func NewShard(dir, name string, tools Tools) (*ShardServer, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	s := newShard(dir, newShardAccess(name, port, tools.shardEngine()), tools)
	s.small = true
	return s, nil
}

// Access tells how to get in.
func (s *ShardServer) Access() ShardAccess { return s.access }

// PID is the running process, or 0.
func (s *ShardServer) PID() int { return s.pid() }

// Dir is the shard's folder.
func (s *ShardServer) Dir() string { return s.dir }

// Start runs the shard and returns when its root user may write.
func (s *ShardServer) Start(ctx context.Context) error { return s.start(ctx) }

// Stop ends the shard in order.
func (s *ShardServer) Stop(ctx context.Context) error { return s.end(ctx) }

// Kill ends the shard as a crash would.
func (s *ShardServer) Kill(ctx context.Context) error { return s.kill(ctx) }

// start runs the shard's engine.
func (s *ShardServer) start(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(s.dir, "data"), 0o755); err != nil {
		return err
	}
	prog, err := s.program()
	if err != nil {
		return err
	}
	return s.process.start(ctx, prog, s.ready)
}

// program is the engine with its flags.
func (s *ShardServer) program() (program, error) {
	if s.access.Engine == EngineMongod {
		return s.mongod()
	}
	server, err := s.tools.secantus()
	if err != nil {
		return program{}, err
	}
	cache, log := "512M", "128MB"
	if s.small {
		cache, log = "64M", "16MB"
	}
	if s.tuned != nil {
		cache = fmt.Sprintf("%dM", s.tuned.cacheMB)
	}
	args := []string{
		"--host", "127.0.0.1", "--port", strconv.Itoa(s.access.Port), "--storage-path", filepath.Join(s.dir, "data"),
		"--auth", "--cache-size", cache, "--log-file-max", log, "--log-level", "WARNING",
		// Captures must be able to come back after a night.
		"--oplog-max-entries", "5000000", "--oplog-retention-seconds", "172800",
		"--noop-heartbeat-seconds", "1",
	}
	if s.tuned == nil || !s.tuned.unsafe {
		args = append(args, "--sync-on-commit") // without it a kill loses what was acknowledged in the last second
	}
	return program{path: server, args: args}, nil
}

// mongod is a real server. Members of a set with authentication on need a key
// file, also when there is one.
func (s *ShardServer) mongod() (program, error) {
	server, err := exec.LookPath("mongod")
	if err != nil {
		return program{}, missing("mongod, which this stack was made with,", "mongod on PATH")
	}
	key := filepath.Join(s.dir, "keyfile")
	if _, err := os.Stat(key); errors.Is(err, os.ErrNotExist) {
		if err := writeFile(key, []byte(base64.StdEncoding.EncodeToString(randomBytes(48))), 0o400); err != nil {
			return program{}, err
		}
	}
	return program{
		path: server,
		args: []string{
			"--replSet", s.access.Name, "--bind_ip", "127.0.0.1", "--port", strconv.Itoa(s.access.Port),
			"--dbpath", filepath.Join(s.dir, "data"), "--auth", "--keyFile", key,
			"--oplogSize", "2048", "--wiredTigerCacheSizeGB", s.mongodCache(), "--quiet", "--nounixsocket",
		},
	}, nil
}

// mongodCache is the cache of a real server in GB, which takes no less than 0.25.
func (s *ShardServer) mongodCache() string {
	if s.tuned == nil {
		return "0.5"
	}
	return fmt.Sprintf("%.2f", max(0.25, float64(s.tuned.cacheMB)/1024))
}

// ready says nil when the root user is there and the shard takes writes. On
// the way it makes the set and the user, both only once.
func (s *ShardServer) ready(ctx context.Context) error {
	done := filepath.Join(s.dir, "bootstrapped")
	if _, err := os.Stat(done); errors.Is(err, os.ErrNotExist) {
		if err := s.bootstrap(ctx); err != nil {
			return err
		}
		if err := writeFile(done, nil, 0o644); err != nil {
			return err
		}
	}
	return s.ask(ctx, s.access.AdminURI)
}

// ask reports whether the shard is a primary for the user of uri.
func (s *ShardServer) ask(ctx context.Context, uri string) error {
	client, err := s.connect(uri)
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	var hello struct {
		Primary bool `bson:"isWritablePrimary"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return err
	}
	if !hello.Primary {
		return errors.New("it is not a primary yet")
	}
	return client.Database("admin").RunCommand(ctx, bson.D{{Key: "usersInfo", Value: s.access.User}}).Err()
}

// connect makes a client whose questions fail soon.
func (s *ShardServer) connect(uri string) (*mongo.Client, error) {
	return mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(time.Second).
		SetConnectTimeout(time.Second).SetMaxPoolSize(1))
}

// bootstrap initiates the set and makes the root user, which a server without
// users allows to whoever comes over the loopback address.
func (s *ShardServer) bootstrap(ctx context.Context) error {
	client, err := s.connect(s.access.URI)
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	admin := client.Database("admin")
	if s.access.Engine == EngineMongod {
		err := admin.RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: bson.D{
			{Key: "_id", Value: s.access.Name},
			{Key: "members", Value: bson.A{bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: fmt.Sprintf("127.0.0.1:%d", s.access.Port)}}}},
		}}}).Err()
		if err != nil && !hasCode(err, codeAlreadyInitialized, codeUnauthorized) {
			return fmt.Errorf("initiate the replica set: %w", err)
		}
	}
	err = admin.RunCommand(ctx, bson.D{
		{Key: "createUser", Value: s.access.User},
		{Key: "pwd", Value: s.access.Password},
		{Key: "roles", Value: bson.A{"root"}},
	}).Err()
	if err != nil && !hasCode(err, codeUserExists, codeUnauthorized) {
		return fmt.Errorf("make the root user: %w", err)
	}
	return nil
}

// hasCode reports whether the server answered with one of the codes.
func hasCode(err error, codes ...int) bool {
	e, ok := errors.AsType[mongo.ServerError](err)
	if !ok {
		return false
	}
	for _, c := range codes {
		if e.HasErrorCode(c) {
			return true
		}
	}
	return false
}
