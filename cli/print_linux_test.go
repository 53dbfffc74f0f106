package cli

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// openTerminal gives a terminal of so many columns, and what is shown on it.
func openTerminal(t *testing.T, columns uint16) (terminal, shown *os.File) {
	t.Helper()

	shown, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = shown.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(shown.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(shown.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = terminal.Close() })
	require.NoError(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	return terminal, shown
}

// linesOn runs a command on a terminal of so many columns, and gives what it shows.
func linesOn(t *testing.T, columns uint16, args ...string) (all []string) {
	t.Helper()

	terminal, shown := openTerminal(t, columns)
	read := make(chan []string, 1)
	go func() {
		var all []string
		for s := bufio.NewScanner(shown); s.Scan(); {
			all = append(all, strings.TrimRight(s.Text(), "\r"))
		}
		read <- all
	}()
	code := Main(t.Context(), Env{
		Args: args, Stdin: strings.NewReader(""), Stdout: terminal, Stderr: terminal,
		LookupEnv: func(name string) (string, bool) { return "/nonexistent/stack.json", name == "DROVER_STACK" },
	})
	require.NoError(t, terminal.Close())
	all = <-read
	require.Equal(t, exitDone, code, all)
	return all
}

// Tables fit the terminal that they are shown on; what goes into a pipe has a line for
// each row.
func TestTablesFitATerminal(t *testing.T) {
	t.Parallel()

	_, piped, _ := run(t, "config", "show")
	rows := strings.Split(strings.TrimSpace(piped), "\n")
	widest := 0
	for _, r := range rows {
		widest = max(widest, utf8.RuneCountInString(r))
	}
	const columns = 50
	require.Greater(t, widest, columns, "else this shows nothing")
	narrow := linesOn(t, columns, "config", "show")
	require.Greater(t, len(narrow), len(rows))
	for _, l := range narrow {
		require.LessOrEqual(t, utf8.RuneCountInString(l), columns, l)
	}
	require.Len(t, linesOn(t, 250, "config", "show"), len(rows))
	json := strings.Join(linesOn(t, columns, "version", "--output", "json"), "\n")
	require.NotContains(t, json, "\x1b")
	require.Contains(t, json, `"version"`)
}
