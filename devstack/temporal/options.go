package main

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
)

// projectSearchAttributes are registered on every namespace at start. The SQL
// visibility store has fixed columns per type (10 Keyword, 3 each of Int,
// Double, Datetime, Bool, KeywordList, Text), so this list is a budget.
var projectSearchAttributes = map[string]enumspb.IndexedValueType{
	"SourceShard":     enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	"TargetShard":     enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	"ChunkID":         enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	"MigrationStep":   enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	"StepStartedAt":   enumspb.INDEXED_VALUE_TYPE_DATETIME,
	"ShardName":       enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	"ReplicationLag":  enumspb.INDEXED_VALUE_TYPE_DOUBLE,
	"NeedsAttention":  enumspb.INDEXED_VALUE_TYPE_BOOL,
	"DocumentsToMove": enumspb.INDEXED_VALUE_TYPE_INT,
}

// options are the command line.
type options struct {
	host        string
	port        int
	httpPort    int
	uiPort      int
	metricsPort int
	healthPort  int
	db          string
	namespaces  []string
	retention   time.Duration
	readyFile   string
	logLevel    string
	logFormat   string
	dynamic     map[string]any
	attributes  map[string]enumspb.IndexedValueType
	stopTimeout time.Duration
	stock       bool
}

// parseOptions reads the command line.
func parseOptions(args []string) (options, error) {
	o := options{
		dynamic:    map[string]any{},
		attributes: maps.Clone(projectSearchAttributes),
	}
	fs := flag.NewFlagSet("devserver", flag.ContinueOnError)
	fs.StringVar(&o.host, "host", "127.0.0.1", "IP address that every listener binds to")
	fs.IntVar(&o.port, "port", 7233, "frontend gRPC port")
	fs.IntVar(&o.httpPort, "http-port", 0, "frontend HTTP API port (0: any free port)")
	fs.IntVar(&o.uiPort, "ui-port", 8233, "web UI port (0: no UI)")
	fs.IntVar(&o.metricsPort, "metrics-port", 0, "Prometheus port of the server itself (0: off)")
	fs.IntVar(&o.healthPort, "health-port", 7234, "port of /healthz and /readyz (0: off)")
	fs.StringVar(&o.db, "db", "", "SQLite file, created if absent (empty: in memory)")
	namespaces := fs.String("namespaces", "default", "comma-separated namespaces to create")
	fs.DurationVar(&o.retention, "retention", 72*time.Hour, "how long closed workflows are kept (new namespaces)")
	fs.StringVar(&o.readyFile, "ready-file", "", "write a JSON file with the addresses once ready")
	fs.StringVar(&o.logLevel, "log-level", "warn", "debug, info, warn or error")
	fs.StringVar(&o.logFormat, "log-format", "json", "json or console")
	fs.DurationVar(&o.stopTimeout, "stop-timeout", 20*time.Second, "give up on a graceful stop after this long")
	fs.BoolVar(&o.stock, "stock", false, "keep the server's own dynamic config defaults (see singleHostDefaults)")
	fs.Func("search-attribute", "further Name=Type search attribute (repeatable)", o.addAttribute)
	fs.Func("dynamic", "dynamic config key=value (repeatable)", o.addDynamic)
	if err := fs.Parse(args); err != nil {
		return options{}, err
	}
	if fs.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	for name := range strings.SplitSeq(*namespaces, ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(o.namespaces, name) {
			o.namespaces = append(o.namespaces, name)
		}
	}
	if len(o.namespaces) == 0 {
		return options{}, fmt.Errorf("at least one namespace is needed")
	}
	return o, nil
}

// addAttribute reads Name=Type.
func (o *options) addAttribute(s string) error {
	name, typ, ok := strings.Cut(s, "=")
	if !ok || name == "" {
		return fmt.Errorf("want Name=Type, got %q", s)
	}
	kind, err := enumspb.IndexedValueTypeFromString(typ)
	if err != nil || kind == enumspb.INDEXED_VALUE_TYPE_UNSPECIFIED {
		return fmt.Errorf("unknown search attribute type %q", typ)
	}
	o.attributes[name] = kind
	return nil
}

// addDynamic reads key=value, where value is a boolean, a number or text.
func (o *options) addDynamic(s string) error {
	key, raw, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return fmt.Errorf("want key=value, got %q", s)
	}
	switch {
	case raw == "true" || raw == "false":
		o.dynamic[key] = raw == "true"
	default:
		if n, err := strconv.Atoi(raw); err == nil {
			o.dynamic[key] = n
		} else if f, err := strconv.ParseFloat(raw, 64); err == nil {
			o.dynamic[key] = f
		} else {
			o.dynamic[key] = raw // durations are given as "2s"
		}
	}
	return nil
}
