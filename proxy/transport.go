package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// handshakeLimit bounds a client's TLS handshake.
const handshakeLimit = 10 * time.Second

// secure does the TLS handshake with a client before anything is read of it. A
// client without a certificate of the right authority never comes further.
func (p *Proxy) secure(ctx context.Context, nc net.Conn) error {
	tc, ok := nc.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	if err := tc.HandshakeContext(ctx); err != nil {
		p.metrics.refused("tls")
		p.log.WarnContext(ctx, "TLS handshake failed", "client", nc.RemoteAddr().String(), "error", err)
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return nil
}

// KeyPair is a certificate and its key in files. A renewed one is taken without
// a restart.
type KeyPair struct {
	Cert, Key string

	mu      sync.Mutex
	written time.Time
	loaded  *tls.Certificate
}

// get gives the certificate as it is in the files; a broken pair leaves the last
// good one in force.
func (k *KeyPair) get() (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(k.Cert)
	if err == nil && k.loaded != nil && info.ModTime().Equal(k.written) {
		return k.loaded, nil
	}
	var c tls.Certificate
	if err == nil {
		c, err = tls.LoadX509KeyPair(k.Cert, k.Key)
	}
	switch {
	case err == nil:
		k.loaded, k.written = &c, info.ModTime()
	case k.loaded == nil:
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	return k.loaded, nil
}

// readAuthorities reads a file of certificates.
func readAuthorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("read authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read authorities: %s holds no certificate", path)
	}
	return pool, nil
}

// ClientTLS makes the settings of the side that applications see: own is shown,
// and with an authorities file each of them must show a certificate of one.
func ClientTLS(own *KeyPair, authorities string) (*tls.Config, error) {
	cfg := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.get() },
	}
	_, err := own.get()
	if authorities != "" {
		pool, caErr := readAuthorities(authorities)
		err = errors.Join(err, caErr)
		cfg.ClientCAs, cfg.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return cfg, err
}

// ShardTLS makes the settings of the side that shards see: authorities may be
// empty for the system's, own nil for no certificate.
func ShardTLS(own *KeyPair, authorities string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	var problems []error
	if own != nil {
		_, err := own.get()
		problems = append(problems, err)
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.get() }
	}
	if authorities != "" {
		pool, err := readAuthorities(authorities)
		problems = append(problems, err)
		cfg.RootCAs = pool
	}
	return cfg, errors.Join(problems...)
}
