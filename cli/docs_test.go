package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// documents are the texts for people: what they say of commands must be so.
func documents(t *testing.T) []string {
	t.Helper()

	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*.txt", "deploy/*", "deploy/*/*", "testdata/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", pattern))
		require.NoError(t, err)
		all = append(all, found...)
	}
	all = slices.DeleteFunc(all, func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || info.IsDir()
	})
	require.Greater(t, len(all), 20)
	return all
}

// spoken is a command line that a text shows.
type spoken struct {
	where string
	line  string
	whole bool // it stands alone, to be typed as it is
}

var (
	inline  = regexp.MustCompile("`((?:bin/)?drover [^`]+)`")
	printed = regexp.MustCompile(`^ {4}(?:\$ )?((?:bin/)?drover .*)$`)
	typed   = regexp.MustCompile(`^\$ ((?:bin/)?drover .*)$`)  // in a recorded session
	ended   = regexp.MustCompile(`\s#\s.*$|\s+[&|><].*$|;.*$`) // a comment, or what a shell does with it
	named   = regexp.MustCompile("`(--[a-z][a-z0-9-]*[a-z0-9])(?:[ =][^`]*)?`")
)

// linesOf finds the command lines in a text: between backquotes, and alone on an
// indented line.
func linesOf(path, text string) (all []spoken) {
	for _, m := range inline.FindAllStringSubmatch(text, -1) {
		all = append(all, spoken{path, strings.Join(strings.Fields(m[1]), " "), false})
	}
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		as := map[string]*regexp.Regexp{".md": printed, ".txt": typed}[filepath.Ext(path)]
		if as == nil {
			continue
		}
		if m := as.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			all = append(all, spoken{path, ended.ReplaceAllString(m[1], ""), true})
		}
	}
	return all
}

// Every command and flag that a document, an alarm or a hint of an error names is
// there; a command line that stands alone is one that can be typed.
func TestDocumentsNameCommandsThatExist(t *testing.T) {
	t.Parallel()

	seen := 0
	for _, path := range documents(t) {
		text, err := os.ReadFile(path) //nolint:gosec // a file of ours
		require.NoError(t, err)
		for _, s := range linesOf(path, string(text)) {
			seen++
			s.check(t)
		}
	}
	require.Greater(t, seen, 150)
}

// The hints of errors and the texts of commands name commands too.
func TestHintsNameCommandsThatExist(t *testing.T) {
	t.Parallel()

	seen := 0
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return errorOrSkip(err)
		}
		if d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // a file of ours
		if err != nil {
			return err
		}
		for _, m := range inline.FindAllStringSubmatch(string(text), -1) {
			seen++
			spoken{path, m[1], false}.check(t)
		}
		return nil
	}))
	require.Greater(t, seen, 30)
}

// errorOrSkip leaves out a folder where nothing is wrong.
func errorOrSkip(err error) error {
	if err != nil {
		return err
	}
	return filepath.SkipDir
}

// check looks the command up in the tree.
func (s spoken) check(t *testing.T) {
	t.Helper()

	c, rest := newRoot(&app{}), words(s.line)[1:]
	c.InitDefaultCompletionCmd() // as Main does
	for len(rest) > 0 {
		i := slices.IndexFunc(c.Commands(), func(sub *cobra.Command) bool { return sub.Name() == strings.Trim(rest[0], ".,:;") })
		if i < 0 {
			break
		}
		c, rest = c.Commands()[i], rest[1:]
	}
	assert.True(t, c.HasParent() || strings.HasPrefix(rest[0], "-") || isPlaceholder(rest[0]), "%s: `%s` is no command", s.where, s.line)
	if c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && !isPlaceholder(rest[0]) {
		for verb := range strings.SplitSeq(strings.Trim(rest[0], "()"), "|") {
			known := slices.ContainsFunc(c.Commands(), func(sub *cobra.Command) bool { return sub.Name() == verb })
			assert.True(t, known, "%s: `%s`: %q is no verb of %s", s.where, s.line, verb, c.CommandPath())
		}
		return
	}
	for _, w := range rest {
		name, _, _ := strings.Cut(strings.Trim(w, "[](),.|"), "=")
		switch {
		case strings.HasPrefix(name, "--"):
			assert.NotNil(t, flagOf(c, name[2:]), "%s: `%s`: %s has no flag %s", s.where, s.line, c.CommandPath(), name)
		case len(name) == 2 && name[0] == '-':
			assert.True(t, c.Flags().ShorthandLookup(name[1:]) != nil || c.InheritedFlags().ShorthandLookup(name[1:]) != nil,
				"%s: `%s`: %s has no flag %s", s.where, s.line, c.CommandPath(), name)
		}
	}
	if s.whole && !strings.ContainsAny(s.line, "[|") {
		assert.NoError(t, c.ParseFlags(rest), "%s: %s", s.where, s.line)
		assert.NoError(t, c.Args(c, c.Flags().Args()), "%s: %s", s.where, s.line)
		assert.NoError(t, checkFlags(c), "%s: %s", s.where, s.line)
	}
}

// isPlaceholder reports whether a word stands for several.
func isPlaceholder(word string) bool {
	return word == strings.ToUpper(word) || strings.HasPrefix(word, "...")
}

// flagOf finds a flag that a command takes.
func flagOf(c *cobra.Command, name string) *pflag.Flag {
	c.InitDefaultHelpFlag()
	if f := c.Flags().Lookup(name); f != nil {
		return f
	}
	return c.InheritedFlags().Lookup(name)
}

// A flag that is named by itself is one of some command, or of another program's.
func TestDocumentsNameFlagsThatExist(t *testing.T) {
	t.Parallel()

	known := map[string]bool{"--input": true, "--namespace": true, "--build-arg": true} // of temporal and docker
	root := newRoot(&app{})
	for _, c := range tree(root) {
		c.InitDefaultHelpFlag()
		for _, all := range []*pflag.FlagSet{c.Flags(), c.InheritedFlags()} {
			all.VisitAll(func(f *pflag.Flag) { known["--"+f.Name] = true })
		}
	}
	seen := 0
	for _, path := range documents(t) {
		text, err := os.ReadFile(path) //nolint:gosec // a file of ours
		require.NoError(t, err)
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			seen++
			assert.True(t, known[m[1]], "%s: no command has the flag %s", path, m[1])
		}
	}
	require.Greater(t, seen, 50)
}
