package shard_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/shard"
)

// authority gives the certificate of one.
func authority(t *testing.T) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestClientsTakeRenewedFiles: the driver reads the files of an address once, so that a worker needed a
// restart for a renewed authority. A broken renewal leaves the last good client.
func TestClientsTakeRenewedFiles(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "ca.pem")
	clients := shard.NewClients(secret, shard.Options{})
	at := chunk.Shard{Name: "s1", URI: "mongodb://127.0.0.1:1/?directConnection=true&tls=true&tlsCAFile=" + file}
	_, err := clients.Client(at, chunk.ReaderUser)
	require.ErrorContains(t, err, "ca.pem")

	get := func(text []byte) *mongo.Client {
		require.NoError(t, os.WriteFile(file+".new", text, 0o600))
		require.NoError(t, os.Rename(file+".new", file))
		c, err := clients.Client(at, chunk.ReaderUser)
		require.NoError(t, err)
		return c
	}
	one := authority(t)
	first := get(one)
	require.Same(t, first, get(one))
	second := get(authority(t))
	require.NotSame(t, first, second)
	require.Same(t, second, get([]byte("broken")))
	require.NoError(t, os.Remove(file))
	c, err := clients.Client(at, chunk.ReaderUser)
	require.NoError(t, err)
	require.Same(t, second, c)

	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, clients.Close(ctx))
	for _, c := range []*mongo.Client{first, second} {
		require.ErrorIs(t, c.Disconnect(ctx), mongo.ErrClientDisconnected, "who held it went on with it until now")
	}
}

// TestWhatIsHeldTakesRenewedFiles: a set and its fencer are held as long as the process runs.
// Former clients end when nobody has used them for a while.
func TestWhatIsHeldTakesRenewedFiles(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, authority(t), 0o600))
	clients := shard.NewClients(secret, shard.Options{})
	later := clients.Clock()
	ctx := context.WithoutCancel(t.Context())
	set, err := clients.Set(chunk.Shard{Name: "s1", URI: "mongodb://127.0.0.1:1/?directConnection=true&tls=true&tlsCAFile=" + file})
	require.NoError(t, err)
	fencer := set.NewFencer()
	admin := set.Admin()
	own, data, err := fencer.Node("127.0.0.1:1")
	require.NoError(t, err)
	require.NotSame(t, admin, own, "the window waits for nobody's pool")
	same, _, err := fencer.Node("127.0.0.1:1")
	require.NoError(t, err)
	require.Same(t, own, same)

	require.False(t, set.Renewed())
	require.NoError(t, os.WriteFile(file, []byte("broken"), 0o600))
	require.False(t, set.Renewed(), "there is nothing to begin anew with")
	require.NoError(t, os.WriteFile(file, authority(t), 0o600))
	require.True(t, set.Renewed(), "who waits with a client that was got before waits for ever")
	require.NotSame(t, admin, set.Admin())
	newOwn, newData, err := fencer.Node("127.0.0.1:1")
	require.NoError(t, err)
	require.NotSame(t, own, newOwn)
	require.NotSame(t, data, newData)
	require.ElementsMatch(t, []*mongo.Client{admin, own, data}, clients.Former(), "who holds one goes on with it")

	clients.Pooled(own, event.ConnectionCheckedOut)
	later(11 * time.Minute)
	_ = set.Admin()
	require.Equal(t, []*mongo.Client{own}, clients.Former(), "one is in use")
	clients.Pooled(own, event.ConnectionCheckedIn)
	later(9 * time.Minute)
	_ = set.Admin()
	require.Len(t, clients.Former(), 1, "it was in use a moment ago")
	later(2 * time.Minute)
	_ = set.Admin()
	require.Empty(t, clients.Former())

	require.NoError(t, fencer.Close(ctx))
	for _, c := range []*mongo.Client{newOwn, newData} {
		require.ErrorIs(t, c.Disconnect(ctx), mongo.ErrClientDisconnected)
	}
	require.NoError(t, clients.Close(ctx))
	require.False(t, set.Renewed(), "there is nothing to begin anew with")
	for _, c := range []*mongo.Client{admin, own, data} {
		require.ErrorIs(t, c.Disconnect(ctx), mongo.ErrClientDisconnected)
	}
}

// TestFilesThatHangHoldUpNobodyElse: a shard's files are read every ten seconds by all that lasts, and a
// mount that hung kept the clients of all shards from everybody, fences included.
func TestFilesThatHangHoldUpNobodyElse(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, syscall.Mkfifo(file, 0o600))
	clients := shard.NewClients(secret, shard.Options{})
	hung := make(chan error, 1)
	go func() {
		_, err := clients.Client(chunk.Shard{Name: "s1", URI: "mongodb://127.0.0.1:1/?directConnection=true&tls=true&tlsCAFile=" + file}, chunk.ReaderUser)
		hung <- err
	}()
	pipe, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	other := make(chan error, 1)
	go func() {
		_, err := clients.Client(chunk.Shard{Name: "s2", URI: "mongodb://127.0.0.1:1/?directConnection=true"}, chunk.ReaderUser)
		other <- err
	}()
	select {
	case err := <-other:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Error("it waits for the files of another shard")
	}
	require.Empty(t, hung)

	require.NoError(t, os.WriteFile(file+".new", authority(t), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
	require.NoError(t, pipe.Close())
	require.NoError(t, <-hung)
	require.NoError(t, clients.Close(context.WithoutCancel(t.Context())))
}
