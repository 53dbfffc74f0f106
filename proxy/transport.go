package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"drover/internal/renewed"
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

	kept renewed.Kept[tls.Certificate]
}

// get gives the certificate as it is in the files.
func (k *KeyPair) get() (*tls.Certificate, error) {
	return k.kept.Get(func(contents [][]byte) (*tls.Certificate, error) {
		c, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, fmt.Errorf("read certificate %s: %w", k.Cert, err)
		}
		return &c, nil
	}, k.Cert, k.Key)
}

// authorities is a file of certificates whose holders are trusted. A renewed one is
// taken without a restart, for connections that are made from then on.
type authorities struct {
	file string

	kept renewed.Kept[x509.CertPool]
}

// get gives the authorities as they are in the file, nil without one: then the system's
// count.
func (a *authorities) get() (*x509.CertPool, error) {
	if a.file == "" {
		return nil, nil //nolint:nilnil // nil is the system's
	}
	return a.kept.Get(func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(contents[0]) {
			return nil, fmt.Errorf("read authorities: %s holds no certificate", a.file)
		}
		return pool, nil
	}, a.file)
}

// ClientTLS makes the settings of the side that applications see: own is shown,
// and with a file of authorities each of them must show a certificate of one.
func ClientTLS(own *KeyPair, authoritiesFile string) (*tls.Config, error) {
	trusted := &authorities{file: authoritiesFile}
	settings := func() (*tls.Config, error) {
		pool, err := trusted.get()
		cfg := &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.get() },
			ClientCAs:      pool,
		}
		if trusted.file != "" {
			cfg.ClientAuth = tls.RequireAndVerifyClientCert
		}
		return cfg, err
	}
	_, err := own.get()
	cfg, caErr := settings()
	if trusted.file == "" {
		return cfg, err
	}
	var mu sync.Mutex
	current := cfg
	cfg = cfg.Clone()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		fresh, err := settings()
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		// One set of authorities keeps its settings: its clients may resume sessions.
		if fresh.ClientCAs != current.ClientCAs {
			current = fresh
		}
		return current, nil
	}
	return cfg, errors.Join(err, caErr)
}

// ShardTLS makes the settings of the side that shards see, for one connection at a time:
// the file of authorities may be empty for the system's, own nil for no certificate.
func ShardTLS(own *KeyPair, authoritiesFile string) (func() *tls.Config, error) {
	trusted := &authorities{file: authoritiesFile}
	_, err := trusted.get()
	problems := []error{err}
	var show func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	if own != nil {
		_, err := own.get()
		problems = append(problems, err)
		show = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.get() }
	}
	return func() *tls.Config {
		pool, _ := trusted.get() // it was read once, so that there is one
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, GetClientCertificate: show}
	}, errors.Join(problems...)
}
