package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// Cells are broken at spaces, the widest columns first; nothing of them is lost.
func TestFit(t *testing.T) {
	t.Parallel()

	rows := [][]string{
		{"QUESTION", "VERDICT", "MEASURED", "WHAT TO DO"},
		{"other controllers", "look", "shard-a: ops (may reconfigure the set), shard-b: ops (may reconfigure the set)", "stop it, or hold drover lease take while it works"},
		{"ä key", "good", "mongodb://ann@a1.example.org:27017,a2.example.org:27017/?replicaSet=a", ""},
	}
	for _, width := range []int{60, 80, 120} {
		got := fit(rows, width)
		var before, after strings.Builder
		columns := make([]int, 4)
		for _, r := range got {
			for i, cell := range r {
				columns[i] = max(columns[i], utf8.RuneCountInString(cell))
			}
		}
		require.LessOrEqual(t, columns[0]+columns[1]+columns[2]+columns[3]+3*columnGap, width)
		require.Equal(t, len("VERDICT"), columns[1], "what is narrow stays as it is")
		for i := range 4 {
			for _, r := range rows {
				before.WriteString(r[i])
			}
			for _, r := range got {
				after.WriteString(r[i])
			}
		}
		squeezed := func(s string) string { return strings.ReplaceAll(s, " ", "") }
		require.Equal(t, squeezed(before.String()), squeezed(after.String()))
	}
	require.Equal(t, rows, fit(rows, 250))
	require.Equal(t, [][]string{{"one", "two three"}, {"", "four"}}, fit([][]string{{"one", "two three four"}}, 14))
	require.NotEmpty(t, fit(rows, 5), "there is no such terminal")
}
