package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// seen ends a context when a text has come a second time.
type seen struct {
	bytes.Buffer
	text string
	end  context.CancelFunc
}

// Write implements [io.Writer].
func (s *seen) Write(b []byte) (int, error) {
	n, err := s.Buffer.Write(b)
	if strings.Count(s.String(), s.text) > 1 {
		s.end()
	}
	return n, err
}

// What shows how something is shows it again with --watch, until a person has seen
// enough; an error does not end it. Into a pipe goes nothing but text.
func TestWatch(t *testing.T) {
	t.Parallel()

	home := t.TempDir()
	watch := func(text string, args ...string) (status int, shown string) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := &seen{text: text, end: cancel}
		status = Main(ctx, Env{Args: append(args, "--watch"), Stdin: strings.NewReader(""), Stdout: out, Stderr: out, LookupEnv: func(name string) (string, bool) {
			return home, name == "HOME"
		}})
		return status, out.String()
	}
	for _, c := range []struct{ text, line string }{
		{"FLEET", "context list"},
		{"[]", "context list -o json"},
		{"drover: ", "chunk list --secret a-secret-of-the-tests --postgres-dsn postgres://127.0.0.1:1/x"},
	} {
		t.Run(c.line, func(t *testing.T) {
			t.Parallel()

			status, shown := watch(c.text, strings.Fields(c.line)...)
			require.Equal(t, exitFailed, status, shown)
			require.Equal(t, 2, strings.Count(shown, c.text), shown)
			require.NotContains(t, shown, "\x1b")
		})
	}
	status, shown := watch("", "migrate", "list", "--unfinished=perhaps")
	require.Equal(t, exitMisused, status, shown)
	for _, c := range tree(newRoot(&app{})) {
		if !c.HasSubCommands() && (c.Name() == "list" || c.Name() == "status") {
			require.NotNil(t, c.Flags().Lookup("watch"), c.CommandPath())
		}
	}
}
