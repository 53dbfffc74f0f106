// Package ops_test keeps what operators are given true: alarms, dashboards and
// their documents must agree with each other and with the metrics that exist.
package ops_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"drover/internal/testkit"
)

// deploy is where the files are.
const deploy = "../../deploy"

// rule is one alarm.
type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// rules reads every alarm.
func rules(t *testing.T) (all []rule) {
	t.Helper()

	files, err := filepath.Glob(deploy + "/alerts/*.yml")
	require.NoError(t, err)
	for _, f := range files {
		var content struct {
			Groups []struct {
				Rules []rule `yaml:"rules"`
			} `yaml:"groups"`
		}
		text, err := os.ReadFile(f) //nolint:gosec // of this repository
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, &content), f)
		for _, g := range content.Groups {
			all = append(all, g.Rules...)
		}
	}
	require.NotEmpty(t, all)
	return all
}

// read gives a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()

	text, err := os.ReadFile("../../" + name) //nolint:gosec // of this repository
	require.NoError(t, err)
	return string(text)
}

// metric is what docs/metrics.md says of one.
type metric struct {
	kind   string
	labels []string
}

// metrics reads docs/metrics.md, which another test compares with the code.
func metrics(t *testing.T) map[string]metric {
	t.Helper()

	out := map[string]metric{}
	row := regexp.MustCompile("(?m)^\\| `(drover_[a-z0-9_]+)` \\| [a-z]+ \\| ([a-z]+) \\| ([a-z_, -]+) \\|")
	for _, m := range row.FindAllStringSubmatch(read(t, "docs/metrics.md"), -1) {
		out[m[1]] = metric{m[2], strings.Split(strings.Trim(m[3], "-"), ", ")}
	}
	require.NotEmpty(t, out)
	return out
}

// named finds metrics in an expression.
var named = regexp.MustCompile(`drover_[a-z0-9_]+`)

func TestAlarmsUseMetricsThatExist(t *testing.T) {
	t.Parallel()

	known := metrics(t)
	for _, r := range rules(t) {
		shown := requireQuery(t, known, r.Alert, r.Expr)
		for _, m := range shownLabel.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
			require.Contains(t, shown, m[1], "%s: its text shows a label that it does not have", r.Alert)
		}
		require.Contains(t, []string{"page", "ticket"}, r.Labels["severity"], r.Alert)
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.NotEmpty(t, r.Annotations["description"], r.Alert)
		require.Equal(t, "docs/alarms.md#"+strings.ToLower(r.Alert), r.Annotations["runbook_url"])
	}
}

// docs/alarms.md says of each alarm, and of no other, what it means, what to look
// at and what to do.
func TestEveryAlarmHasARunbook(t *testing.T) {
	t.Parallel()

	sections := map[string]string{}
	for _, s := range strings.Split(read(t, "docs/alarms.md"), "\n### ")[1:] {
		name, body, _ := strings.Cut(s, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		sections[name] = body
	}
	for _, r := range rules(t) {
		for _, part := range []string{"- **Means**: ", "- **Look at**: ", "- **Do**: "} {
			require.Contains(t, sections[r.Alert], part, "the runbook of %s in docs/alarms.md", r.Alert)
		}
		delete(sections, r.Alert)
	}
	require.Empty(t, sections, "in docs/alarms.md and no alarm")
	known := metrics(t)
	for _, file := range []string{"docs/alarms.md", "docs/operations.md"} {
		for _, code := range regexp.MustCompile("`(drover_[a-z_]+_[a-z]+)[`{ ]").FindAllStringSubmatch(read(t, file), -1) {
			if !slices.Contains([]string{"drover_admin", "drover_data", "drover_load", "drover_repl", "drover_capture", "drover_read", "drover_remedy"}, code[1]) {
				require.Contains(t, known, code[1], file)
			}
		}
	}
}

// Every alarm has a test that expects it to fire.
func TestEveryAlarmIsTested(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob(deploy + "/alerts/tests/*.yml")
	require.NoError(t, err)
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f) //nolint:gosec // of this repository
		require.NoError(t, err)
		all.Write(text)
	}
	for _, r := range rules(t) {
		require.Contains(t, all.String(), `labels: '{alertname="`+r.Alert+`"}'`, "no test in deploy/alerts/tests expects %s to fire", r.Alert)
	}
}

// The rules are valid, and fire and clear when their tests say so.
func TestPromtool(t *testing.T) {
	t.Parallel()

	promtool := testkit.Program(t, "promtool", "prometheus")
	run := func(args ...string) {
		t.Helper()
		c := exec.CommandContext(t.Context(), promtool, args...)
		c.Dir = deploy
		out, err := c.CombinedOutput()
		require.NoError(t, err, "promtool %s: %s", strings.Join(args, " "), out)
	}
	run("check", "config", "prometheus.yml")
	files, err := filepath.Glob(deploy + "/alerts/tests/*.yml")
	require.NoError(t, err)
	for i, f := range files {
		files[i] = "alerts/tests/" + filepath.Base(f)
	}
	run(append([]string{"test", "rules"}, files...)...)
}

// Alertmanager takes its configuration, and sends each severity where it belongs.
func TestAmtool(t *testing.T) {
	t.Parallel()

	amtool := testkit.Program(t, "amtool", "prometheus-alertmanager")
	out, err := exec.CommandContext(t.Context(), amtool, "check-config", deploy+"/alertmanager.yml").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for severity, receiver := range map[string]string{"page": "pages", "ticket": "tickets"} {
		c := exec.CommandContext(t.Context(), amtool, "config", "routes", "test", "--config.file="+deploy+"/alertmanager.yml",
			"--verify.receivers="+receiver, "severity="+severity)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// Dashboards name metrics that exist, have a title and what they are of.
func TestDashboards(t *testing.T) {
	t.Parallel()

	known := metrics(t)
	var queries []map[string]string
	for _, name := range []string{"fleet", "move", "switch", "proxy", "remediation"} {
		var d struct {
			UID    string `json:"uid"`
			Title  string `json:"title"`
			Panels []struct {
				Title   string `json:"title"`
				GridPos struct{ H, W, X, Y int }
				Targets []struct {
					Expr   string `json:"expr"`
					Legend string `json:"legendFormat"`
				} `json:"targets"`
			} `json:"panels"`
		}
		require.NoError(t, json.Unmarshal([]byte(read(t, "deploy/grafana/"+name+".json")), &d), name)
		require.Equal(t, "drover-"+name, d.UID)
		require.NotEmpty(t, d.Title)
		require.NotEmpty(t, d.Panels)
		for _, p := range d.Panels {
			require.NotEmpty(t, p.Targets, "%s: %s", name, p.Title)
			require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, "%s: %s", name, p.Title)
			for _, target := range p.Targets {
				shown := requireQuery(t, known, name+": "+p.Title, target.Expr)
				for _, m := range legendLabel.FindAllStringSubmatch(target.Legend, -1) {
					require.Contains(t, shown, m[1], "%s: %s: its legend shows a label that it does not have", name, p.Title)
				}
				queries = append(queries, map[string]string{"record": fmt.Sprintf("query%d", len(queries)), "expr": variables.Replace(target.Expr)})
			}
		}
	}
	requireParsed(t, queries)
}
