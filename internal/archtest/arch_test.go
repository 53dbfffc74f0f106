// Package archtest keeps the import rules of docs/design.md true. It asks the
// go command, whose files the test cache does not see: run it with -count=1.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// module starts the path of every package of ours.
const module = "drover/"

// Groups of packages of ours that many may import.
const (
	vocabulary = "chunk event"
	support    = "internal/failure internal/stoppoint internal/mongocode internal/pause internal/renewed"
	adapters   = "shard shard/... metadata metadata/... cdc cdc/... replication replication/... bulkimport bulkimport/... validation validation/... proxy proxy/..."
)

// Groups of packages of others.
const (
	bsonOnly = "go.mongodb.org/mongo-driver/v2/bson"
	metrics  = "github.com/prometheus/client_golang/..."
	spans    = "go.opentelemetry.io/otel/..."
	driver   = "go.mongodb.org/mongo-driver/v2/..."
	kafka    = "github.com/twmb/franz-go/..."
	postgres = "github.com/jackc/pgx/v5/..."
	s3       = "github.com/aws/..."
	yaml     = "go.yaml.in/yaml/v3"
	basics   = "golang.org/x/... github.com/klauspost/compress/... github.com/cespare/xxhash/... github.com/xdg-go/scram/... " + metrics
)

// What test support of a package (metadatatest and its like) may import beside.
const (
	testOurs   = "internal/testkit"
	testOthers = "github.com/stretchr/testify/... pgregory.net/rapid go.uber.org/goleak"
)

// rule says what a package may import: packages of ours, and of others beside
// the standard library. "a/..." is a and everything below it, "..." anything.
type rule struct{ pkg, ours, others string }

// rules holds for each package the first that names it.
var rules = []rule{
	{"chunk", "", bsonOnly},
	{"event", "chunk internal/failure", bsonOnly},
	{"remediation/...", "remediation/... chunk internal/failure internal/stoppoint", bsonOnly}, // its executor knows ports only
	{"balancer", "chunk", bsonOnly},
	{"placement", "chunk", ""},
	{"fleet", "balancer placement chunk contract internal/failure", bsonOnly + " " + yaml + " " + basics},
	{"internal/failure", "", ""},
	{"internal/stoppoint", "", ""},
	{"internal/mongocode", "", driver},
	{"internal/pause", "", ""},
	{"internal/renewed", "", ""},
	{"internal/logging", "", ""},
	{"internal/tracing", "", spans + " go.temporal.io/sdk/contrib/opentelemetry go.temporal.io/sdk/interceptor go.mongodb.org/mongo-driver/v2/event"},
	{"internal/config", "chunk internal/failure", "..."},
	{"internal/archtest", "", ""},
	{"internal/testkit/...", "...", "..."},

	{"contract", "chunk remediation", "go.temporal.io/sdk/activity go.temporal.io/sdk/workflow go.temporal.io/sdk/temporal"},
	{"internal/flow", "contract internal/failure", "go.temporal.io/sdk/workflow go.temporal.io/sdk/temporal"},
	{"workflows", "chunk contract remediation internal/flow internal/failure", "go.temporal.io/api/enums/v1 go.temporal.io/sdk/workflow go.temporal.io/sdk/temporal go.temporal.io/sdk/log"},
	// Activities put the adapters' steps in order; a second set of types between them would only be a place for mistakes.
	{"activities", "contract remediation gate fleet bulkimport cdc metadata replication shard switchover validation " + vocabulary + " " + support, "go.temporal.io/sdk/activity go.temporal.io/api/serviceerror " + driver + " " + s3 + " " + basics}, // the last tells a server that is away from one that has given a step up
	{"gate", "chunk contract", metrics},
	{"switchover/...", "switchover/... " + vocabulary + " " + support, bsonOnly + " " + basics},

	// The simulator frames messages as the proxy does; proxy/wire knows nothing of proxies.
	{"shard/shardsim", "proxy/wire " + vocabulary, driver + " " + basics},
	// What performs an operation on a real set knows what an operation is.
	{"shard/replset/...", "remediation shard/... " + vocabulary + " " + support, driver + " " + basics},
	{"shard/...", "shard/... " + vocabulary + " " + support, driver + " " + basics},
	{"metadata/...", "metadata/... " + vocabulary + " " + support, postgres + " " + bsonOnly + " " + basics},
	{"cdc/...", "cdc/... " + vocabulary + " " + support, driver + " " + kafka + " " + s3 + " " + basics},
	{"replication/...", "replication/... " + vocabulary + " " + support, driver + " " + kafka + " " + basics},
	{"bulkimport/...", "bulkimport/... " + vocabulary + " " + support, driver + " " + s3 + " " + basics},
	{"validation/...", "validation/... " + vocabulary + " " + support, driver + " " + basics},
	{"proxy/wire", "", driver + " " + basics + " github.com/golang/snappy/..."},
	{"proxy/...", "proxy/... " + vocabulary + " " + support, driver + " " + spans + " " + basics},

	{"workers/...", "...", "..."},
	{"starter", "chunk contract internal/failure internal/flow", "go.temporal.io/... google.golang.org/..."},
	{"cli/...", "...", "..."},
	{"cmd/...", "cli/... devstack/...", ""},
	{"devstack/...", "devstack/... " + vocabulary + " " + support, "..."},
	{"demo/...", "...", "..."},
	{"bench/...", "...", "..."},
	{"test/...", "...", "..."},
	{"examples/...", "...", "..."},
	{"tools/...", "...", "..."},
	{"scripts/...", "...", "..."},
}

// matches reports whether one of the patterns names path.
func matches(patterns, path string) bool {
	for p := range strings.FieldsSeq(patterns) {
		if p == "..." || p == path {
			return true
		}
		if below, ok := strings.CutSuffix(p, "/..."); ok && (path == below || strings.HasPrefix(path, below+"/")) {
			return true
		}
	}
	return false
}

// ruleOf gives the rule of a package of ours.
func ruleOf(pkg string) (rule, bool) {
	for _, r := range rules {
		if matches(r.pkg, pkg) {
			if strings.HasSuffix(pkg, "test") {
				r.ours, r.others = r.ours+" "+testOurs, r.others+" "+testOthers
			}
			return r, true
		}
	}
	return rule{}, false
}

// standard reports whether a path is the standard library's: only others' have
// a dot in their first part.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// listed is what the go command tells of a package.
type listed struct {
	ImportPath string
	Imports    []string
}

// list gives all packages of ours.
func list(t *testing.T) []listed {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports", module+"...").Output()
	require.NoError(t, err)
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		all = append(all, p)
	}
	require.Greater(t, len(all), 3, "the go command listed next to nothing")
	return all
}

func TestImports(t *testing.T) {
	t.Parallel()

	for _, p := range list(t) {
		pkg := strings.TrimPrefix(p.ImportPath, module)
		r, ruled := ruleOf(pkg)
		if !ruled {
			t.Errorf("%s has no import rule", pkg)
			continue
		}
		for _, imp := range p.Imports {
			if dep, ours := strings.CutPrefix(imp, module); ours {
				if !matches(r.ours, dep) {
					t.Errorf("%s must not import %s", pkg, dep)
				}
			} else if !standard(imp) && !matches(r.others, imp) {
				t.Errorf("%s must not import %s", pkg, imp)
			}
		}
	}
}

// The rules themselves: adapters are introduced to each other by workers only,
// and workflows and activities know each other by contract only.
func TestRules(t *testing.T) {
	t.Parallel()

	for a := range strings.FieldsSeq(adapters) {
		for b := range strings.FieldsSeq(adapters) {
			a, b := strings.TrimSuffix(a, "/..."), strings.TrimSuffix(b, "/...")
			r, ok := ruleOf(a)
			require.True(t, ok, a)
			require.False(t, a != b && matches(r.ours, b), "%s may import %s", a, b)
			require.False(t, matches(r.others, "go.temporal.io/sdk/workflow"), a)
		}
	}
	for _, pair := range [][2]string{{"workflows", "activities"}, {"activities", "workflows"}, {"chunk", "event"}, {"starter", "workflows"}} {
		r, ok := ruleOf(pair[0])
		require.True(t, ok)
		require.False(t, matches(r.ours, pair[1]), "%s may import %s", pair[0], pair[1])
	}
	require.True(t, standard("encoding/json"))
	require.False(t, standard("go.temporal.io/sdk/workflow"))
	require.True(t, matches("a/...", "a/b/c"))
	require.True(t, matches("a/...", "a"))
	require.False(t, matches("a/...", "ab"))
}
