package upstream

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// address is what a shard's URI says.
type address struct {
	hosts  []string // host:port
	direct bool     // talk to the one host and believe no other
	tls    bool
}

// parseAddress reads a mongodb:// URI without credentials. The standard URL
// parser refuses several hosts with ports.
func parseAddress(uri string) (address, error) {
	rest, ok := strings.CutPrefix(uri, "mongodb://")
	if !ok {
		return address{}, fmt.Errorf("URI of a shard does not begin with mongodb://")
	}
	hosts, query := rest, ""
	if at := strings.IndexAny(rest, "/?"); at >= 0 {
		hosts, query = rest[:at], rest[at:]
	}
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		hosts = hosts[at+1:]
	}
	var a address
	for host := range strings.SplitSeq(hosts, ",") {
		if host == "" {
			return address{}, fmt.Errorf("URI of a shard names an empty host")
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "27017")
		}
		a.hosts = append(a.hosts, host)
	}
	_, query, _ = strings.Cut(query, "?")
	options, err := url.ParseQuery(query)
	if err != nil {
		return address{}, fmt.Errorf("options of a shard's URI: %w", err)
	}
	for name, values := range options {
		switch on := values[0] == "true"; strings.ToLower(name) {
		case "directconnection":
			a.direct = on
		case "tls", "ssl":
			a.tls = on
		}
	}
	if a.direct && len(a.hosts) != 1 {
		return address{}, fmt.Errorf("directConnection with %d hosts", len(a.hosts))
	}
	return a, nil
}
