package workers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/chunk"
	"drover/proxy"
	"drover/proxy/auth"
)

// metadataOfProxy is what a proxy reads of the metadata.
type metadataOfProxy interface {
	proxy.Routes
	proxy.Shards
	proxy.Policies
	auth.Directory
}

// kept is what a proxy last read, as it lies in its file. It holds what verifies
// users' passwords, and no password.
type kept struct {
	At       time.Time
	Snapshot proxy.Snapshot
	Shards   []chunk.Shard // by name
	Users    []auth.User   // by name
	Policies []keptPolicy  // by database
}

// keptPolicy is one database's policy.
type keptPolicy struct {
	Database string
	Text     []byte
}

// keeper gives a proxy the metadata, and keeps the last of it in a file. A proxy
// that starts while the metadata is down gets that, once: from then on what
// cannot be read is an error, for a name that the file does not have may exist.
type keeper struct {
	metadataOfProxy
	file     string
	log      *slog.Logger
	password func(shard string) (user, password string)
	stale    prometheus.Gauge

	mu      sync.Mutex
	last    kept
	written []byte
	fresh   map[string]bool // kinds that were read, or given from the file
}

// newKeeper keeps what inner gives in a file of dir. Each proxy has its own.
func newKeeper(inner metadataOfProxy, dir, id string, password func(string) (string, string), log *slog.Logger) *keeper {
	k := &keeper{
		metadataOfProxy: inner, file: filepath.Join(dir, "proxy-"+url.PathEscape(id)+".state"), log: log, password: password,
		stale: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_proxy_stale_metadata", Help: "1 while the proxy works with routes of its last run, because the metadata could not be read.",
		}),
		fresh: map[string]bool{},
	}
	b, err := os.ReadFile(k.file) //nolint:gosec // the operator names the folder
	if err == nil {
		err = gob.NewDecoder(bytes.NewReader(b)).Decode(&k.last)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("Kept metadata is not used", slog.String("file", k.file), slog.Any("error", err)) //nolint:sloglint // no request here
		k.last = kept{}
	}
	return k
}

// took notes what was read and writes the file when it has changed.
func (k *keeper) took(kind string, change func(*kept)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fresh[kind] = true
	if kind == "routes" {
		k.stale.Set(0)
	}
	change(&k.last)
	at := k.last.At
	k.last.At = time.Time{}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(k.last)
	if err == nil && bytes.Equal(b.Bytes(), k.written) {
		k.last.At = at
		return
	}
	sum := bytes.Clone(b.Bytes())
	k.last.At = time.Now()
	b.Reset()
	if err == nil {
		err = gob.NewEncoder(&b).Encode(k.last)
	}
	if err == nil {
		err = replaceFile(k.file, b.Bytes())
	}
	if err != nil {
		k.log.Warn("Metadata was not kept", slog.String("file", k.file), slog.Any("error", err)) //nolint:sloglint // no request here
		return
	}
	k.written = sum
}

// replaceFile writes a file as a whole.
func replaceFile(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// fallBack reports whether what is kept stands in for a reading that failed: it
// does so once for each kind.
func (k *keeper) fallBack(kind string) (kept, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fresh[kind] || k.last.At.IsZero() {
		return kept{}, false
	}
	k.fresh[kind] = true
	return k.last, true
}

// Snapshot implements [proxy.Routes].
func (k *keeper) Snapshot(ctx context.Context) (proxy.Snapshot, error) {
	s, err := k.metadataOfProxy.Snapshot(ctx)
	if err == nil {
		k.took("routes", func(l *kept) { l.Snapshot = s })
		return s, nil
	}
	l, ok := k.fallBack("routes")
	if !ok {
		return s, err
	}
	k.stale.Set(1)
	k.log.WarnContext(ctx, "The metadata cannot be read: starting with the routes of the last run",
		slog.Time("kept_at", l.At), slog.Int("routes", len(l.Snapshot.Routes)), slog.Any("error", err))
	return l.Snapshot, nil
}

// Shard implements [proxy.Shards]. A shard's address seldom changes: what is kept
// stands in as often as it is asked for.
func (k *keeper) Shard(ctx context.Context, name string) (proxy.Shard, error) {
	s, err := k.metadataOfProxy.Shard(ctx, name)
	byName := func(s chunk.Shard, name string) int { return cmp.Compare(s.Name, name) }
	if err == nil {
		k.took("shard "+name, func(l *kept) {
			if i, found := slices.BinarySearchFunc(l.Shards, name, byName); found {
				l.Shards[i] = s.Shard
			} else {
				l.Shards = slices.Insert(l.Shards, i, s.Shard)
			}
		})
		return s, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	i, found := slices.BinarySearchFunc(k.last.Shards, name, byName)
	if !found {
		return s, err
	}
	user, password := k.password(name)
	return proxy.Shard{Shard: k.last.Shards[i], User: user, Password: password}, nil
}

// Users implements [auth.Directory].
func (k *keeper) Users(ctx context.Context) ([]auth.User, error) {
	all, err := k.metadataOfProxy.Users(ctx)
	if err == nil {
		k.took("users", func(l *kept) { l.Users = all })
		return all, nil
	}
	if l, ok := k.fallBack("users"); ok {
		return l.Users, nil
	}
	return nil, err
}

// Policies implements [proxy.Policies].
func (k *keeper) Policies(ctx context.Context) (map[string][]byte, error) {
	all, err := k.metadataOfProxy.Policies(ctx)
	if err == nil {
		k.took("policies", func(l *kept) {
			l.Policies = nil
			for name, text := range all {
				l.Policies = append(l.Policies, keptPolicy{name, text})
			}
			slices.SortFunc(l.Policies, func(a, b keptPolicy) int { return cmp.Compare(a.Database, b.Database) })
		})
		return all, nil
	}
	l, ok := k.fallBack("policies")
	if !ok {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	all = map[string][]byte{}
	for _, p := range l.Policies {
		all[p.Database] = p.Text
	}
	return all, nil
}
