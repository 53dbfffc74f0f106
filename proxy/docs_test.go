package proxy

import (
	"cmp"
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

// homes are the files of commands that share one; any other command is in a file of its
// own name.
var homes = map[string]string{
	"hello": "handshake", "saslStart": "login", "saslContinue": "login", "logout": "login",
	"startSession": "endsessions", "refreshSessions": "endsessions", "dbStats": "stats", "collStats": "stats",
	"getCmdLineOpts": "probes", "getLog": "probes", "hostInfo": "probes",
}

// Each command that is served is in a file whose header says what is honoured and what is
// not.
func TestEachCommandHasItsHeader(t *testing.T) {
	t.Parallel()

	commands := New(Config{}, Ports{}).commands
	for _, c := range commands {
		if c.name == unknownCommand || refusedCommands[c.name] != "" {
			continue
		}
		home := cmp.Or(homes[c.name], strings.ToLower(c.name))
		text, err := os.ReadFile(home + ".go")
		require.NoError(t, err)
		require.Contains(t, string(text), "// Behaviour: ", "%s.go does not say what of %s is honoured", home, c.name)
		require.Contains(t, string(text), "// Not supported: ", "%s.go does not say what of %s is not", home, c.name)
	}
	for name := range homes {
		require.Contains(t, commands, name)
	}
}
