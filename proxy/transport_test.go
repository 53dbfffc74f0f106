package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

// newAuthority makes one with its file.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.file, _ = a.issue("ca", nil)
	return a
}

// issue makes a certificate and its key; without an authority it is one itself.
func (a *authority) issue(name string, by *authority) (certFile, keyFile string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true, IsCA: by == nil,
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	if by == nil {
		a.key = key
		a.cert, err = x509.ParseCertificate(der)
		require.NoError(a.t, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	require.NoError(a.t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(a.t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return certFile, keyFile
}

// For how long a client looks for a server: one that must find it, and one that can't.
const (
	patient = 30 * time.Second
	hasty   = time.Second
)

// pair makes a certificate that a signs.
func (a *authority) pair(name string) *KeyPair {
	cert, key := a.issue(name, a)
	return &KeyPair{Cert: cert, Key: key}
}

// trusts writes a file with the authorities' own certificates.
func trusts(t *testing.T, file string, all ...*authority) {
	t.Helper()
	var text []byte
	for _, a := range all {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
	}
	require.NoError(t, os.WriteFile(file, text, 0o600))
}

// findOver reads a document as an application that trusts an authority's certificates
// and shows one, if it is not nil. It looks for a server as long as it has patience.
func findOver(f *fleet, p *Proxy, trusted *authority, cert *KeyPair, patience time.Duration) error {
	tc := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	tc.RootCAs.AddCert(trusted.cert)
	if cert != nil {
		own, err := cert.get()
		require.NoError(f.t, err)
		tc.Certificates = []tls.Certificate{*own}
	}
	c := f.dial(p, options.Client().SetTLSConfig(tc).SetServerSelectionTimeout(patience))
	return c.Database(testDatabase).Collection("legs").FindOne(f.t.Context(), bson.D{{Key: "origin", Value: "x"}}).Err()
}

func TestTLSOnBothSides(t *testing.T) {
	t.Parallel()

	ours, theirs := newAuthority(t), newAuthority(t)
	pair := (*authority).pair
	shardSide, err := ClientTLS(pair(ours, "shard"), ours.file)
	require.NoError(t, err)
	f, s := newFakeFleet(t, 1)
	s.answers(func(bson.Raw) bson.D { return emptyCursorReply() })
	s.secure(shardSide)
	f.shards["shard-a"] = withTLS(f.shards["shard-a"])

	cfg := Config{ID: "proxy-1"}
	cfg.TLS, err = ClientTLS(pair(ours, "proxy"), ours.file)
	require.NoError(t, err)
	cfg.ShardTLS, err = ShardTLS(pair(ours, "proxy-as-client"), ours.file)
	require.NoError(t, err)
	p := f.start(cfg)
	require.ErrorIs(t, findOver(f, p, ours, pair(ours, "app"), patient), mongo.ErrNoDocuments)
	asked := len(s.seen())
	require.ErrorContains(t, findOver(f, p, ours, nil, hasty), "server selection")
	require.ErrorContains(t, findOver(f, p, ours, pair(theirs, "stranger"), hasty), "server selection")
	require.Len(t, s.seen(), asked)

	// A shard that does not know the proxy's certificate is not used without it.
	cfg.ShardTLS, err = ShardTLS(pair(theirs, "stranger-as-client"), ours.file)
	require.NoError(t, err)
	cfg.ShardWait = time.Second
	p = f.start(cfg)
	err = findOver(f, p, ours, pair(ours, "app2"), patient)
	requireCode(t, 6, err)
	require.Len(t, s.seen(), asked)
}

// withTLS gives a shard whose URI asks for TLS.
func withTLS(s Shard) Shard {
	s.URI = strings.Replace(s.URI, "?", "?tls=true&", 1)
	return s
}

func TestCertificatesAreRenewed(t *testing.T) {
	t.Parallel()

	a := newAuthority(t)
	cert, key := a.issue("proxy", a)
	k := &KeyPair{Cert: cert, Key: key}
	first, err := k.get()
	require.NoError(t, err)
	before, err := os.Stat(cert)
	require.NoError(t, err)
	a.issue("proxy", a)
	require.NoError(t, os.Chtimes(cert, before.ModTime(), before.ModTime()), "as who copies files with their times")
	second, err := k.get()
	require.NoError(t, err)
	require.NotEqual(t, first.Certificate, second.Certificate)

	require.NoError(t, os.WriteFile(cert, []byte("broken"), 0o600))
	third, err := k.get()
	require.NoError(t, err)
	require.Equal(t, second.Certificate, third.Certificate, "a broken renewal must leave the last good one in force")

	_, err = ClientTLS(&KeyPair{Cert: "none.pem", Key: "none.key"}, "no-ca.pem")
	require.ErrorContains(t, err, "none.pem")
	require.ErrorContains(t, err, "no-ca.pem", "all faults must come at once")
}

// A file of authorities that was renewed counted only after a restart, on either side.
func TestAuthoritiesAreRenewed(t *testing.T) {
	t.Parallel()

	ours, theirs := newAuthority(t), newAuthority(t)
	shardSide, err := ClientTLS(theirs.pair("shard"), "")
	require.NoError(t, err)
	f, s := newFakeFleet(t, 1)
	s.answers(func(bson.Raw) bson.D { return emptyCursorReply() })
	s.secure(shardSide)
	f.shards["shard-a"] = withTLS(f.shards["shard-a"])

	clients, shards := filepath.Join(t.TempDir(), "clients.pem"), filepath.Join(t.TempDir(), "shards.pem")
	trusts(t, clients, ours)
	trusts(t, shards, ours)
	cfg := Config{ID: "proxy-1", ShardWait: time.Second}
	cfg.TLS, err = ClientTLS(ours.pair("proxy"), clients)
	require.NoError(t, err)
	cfg.ShardTLS, err = ShardTLS(nil, shards)
	require.NoError(t, err)
	p := f.start(cfg)
	our, their := ours.pair("app"), theirs.pair("stranger")

	requireCode(t, 6, findOver(f, p, ours, our, patient)) // the shard's certificate is of nobody that is known
	trusts(t, shards, ours, theirs)
	require.ErrorIs(t, findOver(f, p, ours, our, patient), mongo.ErrNoDocuments)

	require.ErrorContains(t, findOver(f, p, ours, their, hasty), "server selection")
	trusts(t, clients, theirs)
	require.ErrorIs(t, findOver(f, p, ours, their, patient), mongo.ErrNoDocuments)
	require.ErrorContains(t, findOver(f, p, ours, our, hasty), "server selection", "an authority that is gone is trusted no more")

	require.NoError(t, os.WriteFile(clients, []byte("broken"), 0o600))
	require.ErrorIs(t, findOver(f, p, ours, their, patient), mongo.ErrNoDocuments, "a broken renewal must leave the last good one in force")
}

// secure makes the shard ask for TLS on connections from now on.
func (s *fakeShard) secure(cfg *tls.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tls = cfg
}

// wrapped gives a connection with TLS where the shard asks for it.
func (s *fakeShard) wrapped(nc net.Conn) (net.Conn, error) {
	s.mu.Lock()
	cfg := s.tls
	s.mu.Unlock()
	if cfg == nil {
		return nc, nil
	}
	tc := tls.Server(nc, cfg)
	return tc, tc.HandshakeContext(context.Background())
}
