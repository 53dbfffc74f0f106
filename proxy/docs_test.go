package proxy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/proxy/admission"
)

// The table of docs/proxy.md names every command that is served and no other.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile("../docs/proxy.md")
	require.NoError(t, err)
	name := regexp.MustCompile("`([a-zA-Z]+)`")
	documented := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
			documented[m[1]] = true
		}
		if old := regexp.MustCompile("old names? (.*)").FindStringSubmatch(cells[2]); old != nil {
			for _, m := range name.FindAllStringSubmatch(old[1], -1) {
				documented[m[1]] = true
			}
		}
	}
	for served := range New(Config{}, Ports{}).commands {
		if served != unknownCommand {
			require.True(t, documented[served], "%s is not in docs/proxy.md", served)
			delete(documented, served)
		}
	}
	require.Empty(t, documented, "in docs/proxy.md and not served")
}

// The table of refusals in docs/proxy.md names every reason that is counted and no other.
func TestDocumentedRefusals(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	counted := map[string]bool{admission.RuleOps: true, admission.RuleBytes: true}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`\.refused\("([a-z_]+)"\)`).FindAllStringSubmatch(string(b), -1) {
			counted[m[1]] = true
		}
	}
	text, err := os.ReadFile("../docs/proxy.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "| reason | when | code | labels |")
	require.True(t, ok)
	documented := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 && len(documented) > 0 {
			break // the table is over
		}
		if len(cells) < 2 || strings.Contains(cells[1], "---") {
			continue
		}
		for reason := range strings.SplitSeq(cells[1], ",") {
			documented[strings.TrimSpace(reason)] = true
		}
	}
	require.Equal(t, counted, documented)
}
