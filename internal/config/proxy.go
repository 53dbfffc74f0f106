package config

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// validateProxy returns the problems of a proxy's settings.
func (c *Config) validateProxy() (problems []error) {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		problems = append(problems, errors.New("tls-cert and tls-key go together: give both or neither"))
	}
	if c.TLSClientCA != "" && c.TLSCert == "" {
		problems = append(problems, errors.New("tls-client-ca needs tls-cert and tls-key"))
	}
	if (c.ShardTLSCert == "") != (c.ShardTLSKey == "") {
		problems = append(problems, errors.New("shard-tls-cert and shard-tls-key go together: give both or neither"))
	}
	for name, path := range map[string]string{
		"tls-cert": c.TLSCert, "tls-key": c.TLSKey, "tls-client-ca": c.TLSClientCA,
		"shard-tls-ca": c.ShardTLSCA, "shard-tls-cert": c.ShardTLSCert, "shard-tls-key": c.ShardTLSKey,
	} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	if _, _, err := net.SplitHostPort(c.ProxyListen); err != nil {
		problems = append(problems, fmt.Errorf("listen is %q; want host:port", c.ProxyListen))
	}
	return append(problems, c.validateLive()...)
}
