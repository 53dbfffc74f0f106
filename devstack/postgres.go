package devstack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/internal/failure"
)

// postgresServer is Postgres from Debian's binaries, which refuse to run as root.
type postgresServer struct {
	process
	access PostgresAccess
	tools  Tools
}

// newPostgres describes Postgres of stack s.
func newPostgres(s *Stack, tools Tools) *postgresServer {
	return &postgresServer{
		process: process{
			name: "postgres", dir: filepath.Join(s.Dir, "postgres"),
			stop: syscall.SIGINT, // "fast": open connections are closed, data is written
			wait: 30 * time.Second,
		},
		access: s.Postgres,
		tools:  tools,
	}
}

// unprivileged is whom Postgres runs as when the caller is root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nobody else is needed
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, failure.New(failure.Invalid, "devstack.postgres-user", "Postgres refuses to run as root and there is no other user for it: %w", err).
			WithHint("install Debian's postgresql package, or run this command as an ordinary user")
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// dataDir is the database cluster's folder. It is a link to another place when
// Postgres' user cannot reach the stack's folder, as below root's home.
func (p *postgresServer) dataDir() string { return filepath.Join(p.dir, "data") }

// start makes the cluster once and runs the server.
func (p *postgresServer) start(ctx context.Context) error {
	cred, err := unprivileged()
	if err != nil {
		return err
	}
	if err := p.initialise(ctx, cred); err != nil {
		return err
	}
	data, err := filepath.EvalSymlinks(p.dataDir())
	if err != nil {
		return err
	}
	server, err := p.tools.postgres("postgres")
	if err != nil {
		return err
	}
	prog := program{
		path: server,
		args: []string{
			"-D", data, "-p", strconv.Itoa(p.access.Port),
			"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
			"-c", "max_connections=300", "-c", "shared_buffers=64MB",
			"-c", "timezone=UTC", "-c", "log_min_messages=warning",
		},
		credential: cred,
	}
	// Children of a killed server need a moment to see that they are alone, and
	// until then a new one refuses to start.
	for {
		err = p.process.start(ctx, prog, p.ready)
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "pre-existing shared memory block") {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	if err != nil {
		return err
	}
	return p.createDatabase(ctx)
}

// initialise makes the cluster under another name and renames it, so that a
// crash leaves no half-made one.
func (p *postgresServer) initialise(ctx context.Context, cred *syscall.Credential) error {
	if _, err := os.Stat(filepath.Join(p.dataDir(), "PG_VERSION")); err == nil {
		return nil
	}
	initdb, err := p.tools.postgres("initdb")
	if err != nil {
		return err
	}
	home, err := p.home(cred)
	if err != nil {
		return err
	}
	fresh := filepath.Join(home, "data.new")
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	password := filepath.Join(home, "password")
	if err := writeFile(password, []byte(p.access.Password+"\n"), 0o600); err != nil {
		return err
	}
	defer func() { _ = removeIfExists(password) }()
	if cred != nil {
		if err := errors.Join(os.Chown(home, int(cred.Uid), int(cred.Gid)), os.Chown(password, int(cred.Uid), int(cred.Gid))); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, initdb, "-D", fresh, "-U", p.access.User, "--pwfile", password,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions")
	cmd.Dir = "/"
	cmd.Env = baseEnvironment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	if out, err := cmd.CombinedOutput(); err != nil {
		return failure.New(failure.Transient, "devstack.initdb", "initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	final := filepath.Join(home, "data")
	if err := os.Rename(fresh, final); err != nil {
		return err
	}
	if final == p.dataDir() {
		return nil
	}
	if err := removeIfExists(p.dataDir()); err != nil {
		return err
	}
	return os.Symlink(final, p.dataDir())
}

// home is the folder for the cluster: the part's own, or one below /var/tmp
// when cred's user cannot get to it.
func (p *postgresServer) home(cred *syscall.Credential) (string, error) {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return "", err
	}
	if cred == nil || reachable(p.dir) {
		return p.dir, nil
	}
	home := p.elsewhere()
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", err
	}
	return home, nil
}

// elsewhere is the cluster's place outside of the stack's folder.
func (p *postgresServer) elsewhere() string {
	sum := sha256.Sum256([]byte(p.dir))
	return filepath.Join("/var/tmp", "drover-postgres-"+hex.EncodeToString(sum[:6]))
}

// remove deletes the cluster, also when it lies elsewhere.
func (p *postgresServer) remove() error {
	return errors.Join(os.RemoveAll(p.elsewhere()), os.RemoveAll(p.dir))
}

// reachable reports whether every user may pass through dir and all above it.
func reachable(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// connect opens a connection to the maintenance database.
func (p *postgresServer) connect(ctx context.Context) (*pgx.Conn, error) {
	return pgx.Connect(ctx, strings.Replace(p.access.DSN, "/drover?", "/postgres?", 1))
}

// ready says nil when Postgres answers a query.
func (p *postgresServer) ready(ctx context.Context) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.Ping(ctx)
}

// createDatabase makes the database that Drover uses, once.
func (p *postgresServer) createDatabase(ctx context.Context) error {
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = 'drover')").Scan(&exists); err != nil {
		return err
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "create database drover"); err != nil {
		return fmt.Errorf("create database drover: %w", err)
	}
	return nil
}
