// Package lessontest compares what the lessons print with what the documents show.
package lessontest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Documented wants docs/lessons.md to show what a lesson printed, to the letter.
// Tests run in the folder of their package, two below the repository.
func Documented(t testing.TB, output string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "lessons.md"))
	require.NoError(t, err)
	var indented strings.Builder
	for line := range strings.Lines(output) {
		if strings.TrimSpace(line) != "" {
			indented.WriteString("    ")
		}
		indented.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	require.Contains(t, string(text), indented.String(), "docs/lessons.md does not show what the lesson prints")
}
