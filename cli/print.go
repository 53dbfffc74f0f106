package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// print writes v as JSON, or the rows of the table that it makes.
func (a *app) print(v any, header []string, rows func() [][]string) error {
	if a.output == "json" {
		return writeJSON(a.env.Stdout, v)
	}
	return writeTable(a.env.Stdout, header, rows())
}

// printText writes v as JSON, or the text that it stands for as it is.
func (a *app) printText(v any, text string) error {
	if a.output == "json" {
		return writeJSON(a.env.Stdout, v)
	}
	_, err := io.WriteString(a.env.Stdout, text)
	return err
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// columnGap is the space between two columns of a table.
const columnGap = 2

// writeTable writes columns that are aligned. On a terminal cells go on below, so that
// rows are not wider than it is; elsewhere each row is one line.
func writeTable(w io.Writer, header []string, rows [][]string) error {
	if len(header) > 0 {
		rows = append([][]string{header}, rows...)
	}
	if width := terminalWidth(w); width > 0 {
		rows = fit(rows, width)
	}
	t := tabwriter.NewWriter(w, 0, 4, columnGap, ' ', 0)
	for _, r := range rows {
		_, _ = fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// terminalWidth is how many characters a line of the terminal w has; 0: w is none.
func terminalWidth(w io.Writer) int {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ) //nolint:gosec // a file's number is an int
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// fit breaks cells over several rows where a row is wider than a line.
func fit(rows [][]string, width int) (out [][]string) {
	var columns []int
	for _, r := range rows {
		for i, cell := range r {
			if i == len(columns) {
				columns = append(columns, 0)
			}
			columns[i] = max(columns[i], utf8.RuneCountInString(cell))
		}
	}
	room := width - columnGap*(len(columns)-1)
	most := narrowed(columns, room)
	for _, r := range rows {
		lines := make([][]string, len(r))
		high := 1
		for i, cell := range r {
			lines[i] = broken(cell, min(columns[i], most))
			high = max(high, len(lines[i]))
		}
		for at := range high {
			row := make([]string, len(r))
			for i := range r {
				if at < len(lines[i]) {
					row[i] = lines[i][at]
				}
			}
			out = append(out, row)
		}
	}
	return out
}

// narrowed is the width above which columns are cut so that all have room, the widest
// ones first.
func narrowed(columns []int, room int) int {
	const least = 8 // below that nothing can be read: rows stick out of so small a terminal
	most := slices.Max(append(columns, least))
	for ; most > least; most-- {
		sum := 0
		for _, c := range columns {
			sum += min(c, most)
		}
		if sum <= room {
			break
		}
	}
	return most
}

// broken breaks a text into lines of so many characters, at spaces where there are some.
func broken(text string, width int) (lines []string) {
	line := []rune(text)
	for len(line) > width {
		at := width
		for at > 0 && line[at] != ' ' {
			at--
		}
		if at == 0 { // one word
			lines, line = append(lines, string(line[:width])), line[width:]
			continue
		}
		lines, line = append(lines, string(line[:at])), line[at+1:]
	}
	return append(lines, string(line))
}

// bytesText writes a number of bytes for people.
func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := int64(unit), 0
	for m := n / unit; m >= unit; m /= unit {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}

func ageText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return time.Since(t).Round(time.Second).String()
}
