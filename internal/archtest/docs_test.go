package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// repository is where the documents are.
var repository = filepath.Join("..", "..")

// documents reads the texts for people, by their path in the repository.
func documents(t *testing.T) map[string]string {
	t.Helper()

	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "devstack/*/*.md", "testdata/*.md"} {
		files, err := filepath.Glob(filepath.Join(repository, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			path, err := filepath.Rel(repository, f)
			require.NoError(t, err)
			all[path] = string(text)
		}
	}
	require.Greater(t, len(all), 20)
	return all
}

// sources reads the code, that of tests or the other.
func sources(t *testing.T, ofTests bool) string {
	t.Helper()

	var all strings.Builder
	require.NoError(t, filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != repository:
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") != ofTests:
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // of this repository
		all.Write(text)
		return err
	}))
	return all.String()
}

// unique gives the first groups of all matches.
func unique(pattern, text string) (all []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestDocumentsNameCodesThatExist: each code of an error that a document names is one
// that the code gives.
func TestDocumentsNameCodesThatExist(t *testing.T) {
	t.Parallel()

	code := sources(t, false)
	given := unique(`"([a-z]+\.[a-z_]+)"`, code)
	areas := unique(`failure\.New\(\s*[\w.]+,\s*"([a-z]+)\.`, code)
	seen := 0
	for path, text := range documents(t) {
		for _, c := range unique("[`|] ?([a-z]+\\.[a-z_]+) ?[`|,]", text) {
			area, reason, _ := strings.Cut(c, ".")
			if !slices.Contains(areas, area) || slices.Contains([]string{"md", "yaml", "json"}, reason) {
				continue
			}
			seen++
			require.Contains(t, given, c, "%s names an error that is never given", path)
		}
	}
	require.Greater(t, seen, 60)
}

// TestSpansAreDocumented: the table of spans in docs/operations.md has the attributes that
// spans get, and no other.
func TestSpansAreDocumented(t *testing.T) {
	t.Parallel()

	_, section, ok := strings.Cut(documents(t)["docs/operations.md"], "\n## Spans\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	require.Equal(t, unique(`attribute\.[A-Z]\w+\("([^"]+)"`, sources(t, false)), unique("`([a-z]+\\.[a-z._]+)`", section))
}

// TestDocumentsNameTestsThatExist: a document tells by which test something was seen.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	t.Parallel()

	there := unique(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`, sources(t, true))
	for path, text := range documents(t) {
		for _, name := range unique("`[^`\n]*?\\b((?:Test|Fuzz)[A-Z]\\w+)", text) {
			require.Contains(t, there, name, path)
		}
	}
}

// TestDocumentsSayWhatCanBeRun: each target of make and each program of `go run` is there.
func TestDocumentsSayWhatCanBeRun(t *testing.T) {
	t.Parallel()

	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	require.NoError(t, err)
	targets := unique(`(?m)^([a-z-]+):`, string(makefile))
	for path, text := range documents(t) {
		for _, target := range unique("(?m)(?:`|^ {4})make ([a-z-]+)", text) {
			require.Contains(t, targets, target, path)
		}
		for _, program := range unique(`go run \./([\w/]+)`, text) {
			if program != "examples/NAME" {
				require.DirExists(t, filepath.Join(repository, filepath.FromSlash(program)), path)
			}
		}
	}
}

// TestLinksLead: each link within the repository leads to a file, and to a heading there.
func TestLinksLead(t *testing.T) {
	t.Parallel()

	all := documents(t)
	headings := func(text string) (anchors []string) {
		for _, h := range unique(`(?m)^#+ (.*)$`, text) {
			h = regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(h), "")
			anchors = append(anchors, strings.ReplaceAll(strings.TrimSpace(h), " ", "-"))
		}
		return anchors
	}
	seen := 0
	for path, text := range all {
		for _, link := range unique(`\]\(([^)\s]+)\)`, text) {
			if strings.Contains(link, "://") {
				continue
			}
			seen++
			file, anchor, _ := strings.Cut(link, "#")
			to := path
			if file != "" {
				to = filepath.Join(filepath.Dir(path), filepath.FromSlash(file))
			}
			_, err := os.Stat(filepath.Join(repository, to))
			require.NoError(t, err, "%s: %s", path, link)
			if anchor != "" {
				require.Contains(t, headings(all[to]), anchor, "%s: %s", path, link)
			}
		}
	}
	require.Greater(t, seen, 40)
}
