package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// named is a test in docs/faults.md: `package: TestName` or `package: TestName/part`.
var named = regexp.MustCompile("`([a-z][a-z0-9/]*): (Test[A-Za-z0-9_]+)(?:/([^`]+))?`")

// loose is a test that is named without its package.
var loose = regexp.MustCompile("`Test[A-Za-z0-9_]+")

// TestFaultsNameTestsThatExist: each test that docs/faults.md names is a function
// of its package's tests, and its part is one of the names in them.
func TestFaultsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	require.NoError(t, err)
	sources := map[string]string{}
	of := func(pkg string) string {
		if _, ok := sources[pkg]; !ok {
			files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go"))
			require.NoError(t, err)
			var all strings.Builder
			for _, f := range files {
				b, err := os.ReadFile(f)
				require.NoError(t, err)
				all.Write(b)
			}
			sources[pkg] = all.String()
		}
		return sources[pkg]
	}
	found := named.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		require.Contains(t, of(m[1]), "func "+m[2]+"(", "docs/faults.md names %s", m[0])
		if m[3] != "" {
			require.Contains(t, of(m[1]), m[3], "docs/faults.md names %s", m[0])
		}
	}
	require.Empty(t, loose.FindAllString(string(text), -1), "docs/faults.md names these without their package")
}
