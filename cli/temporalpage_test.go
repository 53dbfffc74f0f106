package cli

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/contract"
)

// TestTemporalPageHasEveryVerb: each command that steers a workflow, each workflow type
// and each update has its line on the page.
func TestTemporalPageHasEveryVerb(t *testing.T) {
	t.Parallel()

	b, err := os.ReadFile("../docs/temporal-cli.md")
	require.NoError(t, err)
	page := string(b)

	tree, err := os.ReadFile("testdata/commands.txt")
	require.NoError(t, err)
	verb := regexp.MustCompile(`^drover ((?:migrate|rebalance|balancer|capacity|remediation|override|fleet) (?:reconcile )?[a-z]+|binpack|chunk (?:split|merge|isolate|clone|clones)|shard (?:drain|upgrade|remediate))(?: |$)`)
	var missing []string
	found := 0
	for line := range strings.Lines(string(tree)) {
		m := verb.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil || m[1] == "fleet reconcile" {
			continue
		}
		found++
		if !regexp.MustCompile("`" + m[1] + "[ `]").MatchString(page) {
			missing = append(missing, m[1])
		}
	}
	require.Greater(t, found, 40)

	wire, err := os.ReadFile("../workers/testdata/wire.txt")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^workflow (\w+)`).FindAllStringSubmatch(string(wire), -1) {
		if want := "--type " + m[1] + " "; !strings.Contains(page, want) && !slices.Contains(missing, want) {
			missing = append(missing, want)
		}
	}
	for _, update := range []string{
		contract.ApproveUpdate, contract.PauseUpdate, contract.ResumeUpdate, contract.AbortUpdate, contract.RollbackUpdate, contract.CompleteUpdate,
		contract.DrillUpdate, contract.StopUpdate, contract.StatusQuery,
	} {
		if want := "--name " + update; !strings.Contains(page, want+"`") && !strings.Contains(page, want+" ") {
			missing = append(missing, want)
		}
	}
	require.Empty(t, missing)
}
