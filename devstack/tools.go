package devstack

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"drover/internal/failure"
)

// versionsFile pins what scripts/setup.sh installs.
//
//go:embed versions.env
var versionsFile string

// version is one line of [versionsFile].
func version(name string) string {
	for line := range strings.Lines(versionsFile) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && key == name {
			return value
		}
	}
	panic("devstack: versions.env does not name " + name)
}

// Tools finds the programs of the stack.
type Tools struct {
	Cache  string // what `make setup` fills, one folder for each program and version
	Source string // a checkout of this repository, or empty: where the Temporal server's source is
}

// NewTools looks for the cache where scripts/setup.sh puts it, and for a
// checkout in the working directory and above it.
func NewTools() (Tools, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return Tools{}, fmt.Errorf("find the cache of installed programs: %w", err)
	}
	t := Tools{Cache: filepath.Join(cache, "drover")}
	if dir, err := os.Getwd(); err == nil {
		t.Source = checkout(dir)
	}
	return t, nil
}

// checkout is the root of the repository that dir is in, or empty.
func checkout(dir string) string {
	for {
		raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(raw), "module drover\n") {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// missing is the error for a program that is not installed.
func missing(name, where string) error {
	return failure.New(failure.Invalid, "devstack.missing", "%s is not installed: %s is missing", name, where).
		WithHint("run `make setup` in a checkout of the repository")
}

// cached is a program of the cache.
func (t Tools) cached(name, folder string, path ...string) (string, error) {
	p := filepath.Join(append([]string{t.Cache, folder}, path...)...)
	if _, err := os.Stat(p); err != nil {
		return "", missing(name, p)
	}
	return p, nil
}

// kafkaJars is the folder with the broker's jars.
func (t Tools) kafkaJars() (string, error) {
	return t.cached("Kafka", "kafka-"+version("KAFKA_VERSION"), "libs")
}

// versitygw is the S3 server.
func (t Tools) versitygw() (string, error) {
	return t.cached("versitygw", "versitygw-"+version("VERSITYGW_VERSION"), "bin", "versitygw")
}

// secantus is the shard server for machines without mongod.
func (t Tools) secantus() (string, error) {
	return t.cached("secantusd-rs", "secantus-mdb-"+version("SECANTUS_VERSION"), "bin", "secantusd-rs")
}

// java is the Java runtime.
func (t Tools) java() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if p := filepath.Join(home, "bin", "java"); isFile(p) {
			return p, nil
		}
	}
	p, err := exec.LookPath("java")
	if err != nil {
		return "", failure.New(failure.Invalid, "devstack.missing", "Java is not installed, Kafka needs it").
			WithHint("install a Java runtime, 17 or newer, or use --kafka embedded")
	}
	return p, nil
}

// postgres is one of Postgres' programs: the newest of Debian's versions, or
// what is on PATH.
func (t Tools) postgres(program string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		// Two digits each for a long time to come, so the names sort by version.
		return slices.Max(found), nil
	}
	p, err := exec.LookPath(program)
	if err != nil {
		return "", missing("Postgres", program)
	}
	return p, nil
}

// temporal is the Temporal server: the one built from the checkout's sources,
// or outside a checkout the one that was built last.
func (t Tools) temporal() (string, error) {
	if t.Source != "" {
		folder, err := temporalFolder(filepath.Join(t.Source, "devstack", "temporal"))
		if err != nil {
			return "", err
		}
		return t.cached("the Temporal server", folder, "bin", "temporal")
	}
	found, err := filepath.Glob(filepath.Join(t.Cache, "temporal-*", "bin", "temporal"))
	if err != nil {
		return "", err
	}
	newest := ""
	for _, p := range found {
		if newest == "" || modified(p) > modified(newest) {
			newest = p
		}
	}
	if newest == "" {
		return "", missing("the Temporal server", filepath.Join(t.Cache, "temporal-*"))
	}
	return newest, nil
}

// modified is the time of p's last change.
func modified(p string) int64 {
	info, err := os.Stat(p)
	if err != nil {
		return 0
	}
	return info.ModTime().UnixNano()
}

// isFile reports whether p is there and is no folder.
func isFile(p string) bool {
	info, err := os.Stat(p)
	return err == nil && !info.IsDir()
}

// temporalFolder names the cache folder of the server built from source. The
// name holds a hash over the sources, which scripts/setup.sh computes the same way.
func temporalFolder(source string) (string, error) {
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", err
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	slices.Sort(files)
	h := sha256.New()
	for _, f := range append([]string{filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum")}, files...) {
		raw, err := os.ReadFile(f)
		if err != nil {
			return "", fmt.Errorf("hash the Temporal server's sources: %w", err)
		}
		h.Write(raw)
	}
	return "temporal-" + hex.EncodeToString(h.Sum(nil))[:16], nil
}
