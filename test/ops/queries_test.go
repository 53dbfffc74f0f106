package ops_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"drover/internal/testkit"
)

// What a query says of labels, and what its texts show of them.
var (
	selected    = regexp.MustCompile(`(drover_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher     = regexp.MustCompile(`([a-z_]+) *(?:=~|!~|!=|=) *"([^"]*)"`)
	grouped     = regexp.MustCompile(`\b(by|on) *\(([a-z_, ]*)\)`)
	aggregated  = regexp.MustCompile(`\b(sum|max|min|avg|count)\b`)
	shownLabel  = regexp.MustCompile(`\$labels\.([a-z_]+)`)
	legendLabel = regexp.MustCompile(`\{\{ *([a-z_]+) *\}\}`)
)

// variables stand for those that Grafana fills in.
var variables = strings.NewReplacer("$__range", "1h", "$chunk", ".*")

// requireQuery checks that the metrics of a query exist, that they have the labels
// which it asks for, and that the code knows the values of those. It gives the labels
// of the result.
func requireQuery(t *testing.T, known map[string]metric, where, expr string) (shown []string) {
	t.Helper()

	require.Regexp(t, named, expr, where)
	all := []string{"instance"} // what Prometheus adds
	for _, m := range selected.FindAllStringSubmatch(expr, -1) {
		base := m[1]
		if known[base].kind == "" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			require.Equal(t, "histogram", known[base].kind, "%s: there is no metric %s", where, m[1])
			all = append(all, "le")
		} else {
			require.NotEqual(t, "histogram", known[base].kind, "%s: %s is a histogram: name its _bucket, _sum or _count", where, base)
		}
		all = append(all, known[base].labels...)
		for _, x := range matcher.FindAllStringSubmatch(m[2], -1) {
			require.Contains(t, known[base].labels, x[1], "%s: %s has no such label", where, base)
			for value := range strings.SplitSeq(x[2], "|") {
				require.True(t, strings.HasPrefix(value, "$") || inCode(t, value), "%s: no part gives %s the value %q", where, x[1], value)
			}
		}
	}
	for _, m := range grouped.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[2], ",") {
			require.Contains(t, all, strings.TrimSpace(label), "%s: none of its metrics has this label", where)
			if m[1] == "by" {
				shown = append(shown, strings.TrimSpace(label))
			}
		}
	}
	if !aggregated.MatchString(expr) {
		return all
	}
	return shown
}

// sources is all that the parts of Drover are made of.
var sources = sync.OnceValues(func() (string, error) {
	var all strings.Builder
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // of this repository
		all.Write(text)
		return err
	})
	return all.String(), err
})

// inCode reports whether a part may show a value: it is a text in the code.
func inCode(t *testing.T, value string) bool {
	t.Helper()

	all, err := sources()
	require.NoError(t, err)
	return strings.Contains(all, `"`+value+`"`)
}

// requireParsed lets Prometheus read queries.
func requireParsed(t *testing.T, queries []map[string]string) {
	t.Helper()

	promtool := testkit.Program(t, "promtool", "prometheus")
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": queries}}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "queries.yml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
