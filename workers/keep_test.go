package workers

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/proxy"
	"drover/proxy/auth"
)

// fakeMetadata is the metadata, which may be down.
type fakeMetadata struct{ err error }

func (f *fakeMetadata) Snapshot(context.Context) (proxy.Snapshot, error) {
	r := chunk.Route{Chunk: chunk.Chunk{ID: "shop/0001", Database: "shop", Range: chunk.Range{Lo: "\x80\xff\x00", Hi: chunk.KeyMax}}, Token: 7}
	return proxy.Snapshot{Databases: []chunk.Database{{Name: "shop", KeySpace: chunk.Hashed}}, Routes: []chunk.Route{r}}, f.err
}

func (f *fakeMetadata) Route(context.Context, chunk.ID) (chunk.Route, []proxy.Former, error) {
	return chunk.Route{}, nil, f.err
}

func (f *fakeMetadata) Shard(_ context.Context, name string) (proxy.Shard, error) {
	return proxy.Shard{Shard: chunk.Shard{Name: name, URI: "mongodb://" + name}, User: "u", Password: "a-secret-password"}, f.err
}

func (f *fakeMetadata) Users(context.Context) ([]auth.User, error) {
	return []auth.User{{Name: "till", Credentials: auth.Credentials{Salt: []byte{1}}, Grants: []auth.Grant{{Database: "shop", Actions: []auth.Action{auth.Read}}}}}, f.err
}

func (f *fakeMetadata) Policies(context.Context) (map[string][]byte, error) {
	return map[string][]byte{"shop": []byte(`{}`)}, f.err
}

// A proxy that starts while Postgres is down works with what it read last, and
// never takes that for the whole truth.
func TestProxyStartsWithoutMetadata(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	password := func(string) (string, string) { return "u", "derived" }
	log := slog.New(slog.DiscardHandler)
	up := newKeeper(&fakeMetadata{}, dir, "host/0.0.0.0:1", password, log)
	want, err := up.Snapshot(t.Context())
	require.NoError(t, err)
	users, err := up.Users(t.Context())
	require.NoError(t, err)
	_, err = up.Policies(t.Context())
	require.NoError(t, err)
	_, err = up.Shard(t.Context(), "shard-a")
	require.NoError(t, err)
	info, err := os.Stat(up.file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	b, err := os.ReadFile(up.file)
	require.NoError(t, err)
	require.NotContains(t, string(b), "a-secret-password")

	down := &fakeMetadata{err: errors.New("down")}
	k := newKeeper(down, dir, "host/0.0.0.0:1", password, log)
	got, err := k.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, want.Routes, got.Routes)
	require.Equal(t, want.Databases[0].Name, got.Databases[0].Name)
	require.InDelta(t, 1, testutil.ToFloat64(k.stale), 0)
	_, err = k.Snapshot(t.Context())
	require.Error(t, err, "a name that the file does not have may exist")
	again, err := k.Users(t.Context())
	require.NoError(t, err)
	require.Equal(t, users, again)
	policies, err := k.Policies(t.Context())
	require.NoError(t, err)
	require.Contains(t, policies, "shop")
	for range 2 {
		s, err := k.Shard(t.Context(), "shard-a")
		require.NoError(t, err)
		require.Equal(t, "derived", s.Password)
		require.Equal(t, "mongodb://shard-a", s.URI)
	}
	_, err = k.Shard(t.Context(), "shard-b")
	require.Error(t, err)

	down.err = nil
	_, err = k.Snapshot(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 0, testutil.ToFloat64(k.stale), 0)

	require.NoError(t, os.WriteFile(up.file, []byte("broken"), 0o600))
	k = newKeeper(&fakeMetadata{err: errors.New("down")}, dir, "host/0.0.0.0:1", password, log)
	_, err = k.Snapshot(t.Context())
	require.Error(t, err)
	k = newKeeper(&fakeMetadata{err: errors.New("down")}, dir, "another", password, log)
	_, err = k.Snapshot(t.Context())
	require.Error(t, err)
}

func TestNameOfAnotherProxyIsRefused(t *testing.T) {
	t.Parallel()

	all := []metadata.Proxy{{ID: "p1", Address: "host-a:27017"}}
	require.NoError(t, nameTaken(all, "p2", "host-b:27017"))
	require.NoError(t, nameTaken(all, "p1", "host-a:27017"), "its last run")
	require.True(t, failure.HasCode(nameTaken(all, "p1", "host-a:27018"), "proxy.name_taken"))
	require.True(t, failure.HasCode(nameTaken(all, "p1", "host-b:27017"), "proxy.name_taken"), "another machine's proxy on the same port")

	for listen, want := range map[string]string{
		"0.0.0.0:27017": "host-b:27017", ":27017": "host-b:27017", "[::]:27017": "host-b:27017",
		"127.0.0.1:27017": "", "10.0.0.7:27017": "", "0.0.0.0:0": "", "nowhere": "",
	} {
		require.Equal(t, want, reachedAt("host-b", listen), listen)
	}
}

// fleetOf is a metadata in which some proxies live.
type fleetOf []metadata.Proxy

// LiveProxies implements [liveProxies].
func (f fleetOf) LiveProxies(context.Context) ([]metadata.Proxy, error) { return f, nil }

// A proxy that cannot start says all that is wrong with it at once: its name, its
// certificates, the files that are broken, not only the first of them.
func TestAllFaultsOfAProxyComeAtOnce(t *testing.T) {
	t.Parallel()

	broken := filepath.Join(t.TempDir(), "broken.pem")
	require.NoError(t, os.WriteFile(broken, []byte("broken"), 0o600))
	cfg := config.Config{
		ProxyName: "p1", ProxyListen: "127.0.0.1:27018",
		TLSCert: broken, TLSKey: "none.key", TLSClientCA: broken, ShardTLSCA: broken, ShardTLSCert: "none.pem", ShardTLSKey: "none.key",
	}
	pc, err := proxyConfig(&cfg)
	require.Equal(t, 2, strings.Count(err.Error(), "holds no certificate"), "%v", err)
	require.Equal(t, 2, strings.Count(err.Error(), "none."), "%v", err)
	require.True(t, failure.HasCode(checkName(t.Context(), fleetOf{{ID: "p1", Address: "127.0.0.1:27017"}}, pc), "proxy.name_taken"))
	require.NoError(t, checkName(t.Context(), fleetOf{{ID: "p1", Address: "127.0.0.1:27018"}}, pc))

	err = ProxyFaults(t.Context(), &cfg)
	require.Equal(t, 2, strings.Count(err.Error(), "holds no certificate"), "%v", err)
	require.NotContains(t, err.Error(), "none.", "settings that name no file are found before")
	cfg.PostgresDSN = "postgres://%zz"
	require.ErrorContains(t, ProxyFaults(t.Context(), &cfg), "zz")
}
