package proxy

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
