package cli

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/contract"
)

// temporalPage is docs/temporal-cli.md.
func temporalPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/temporal-cli.md")
	require.NoError(t, err)
	return string(b)
}

// fieldNames are the names of a struct's fields as they are typed.
func fieldNames[T any]() (names []string) {
	for field := range reflect.TypeFor[T]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// TestTemporalPageHasEveryField: each field that a move is started with, each word that
// can be its value, and each field of an update.
func TestTemporalPageHasEveryField(t *testing.T) {
	t.Parallel()
	_, fields, ok := strings.Cut(temporalPage(t), "The fields of the input of `MigrateChunk`")
	require.True(t, ok)
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| (`.*?) \\|(.*)$").FindAllStringSubmatch(fields, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			rows[strings.Trim(name, "`")] = m[2]
		}
	}
	for _, name := range fieldNames[contract.MigrateInput]() {
		require.NotEmpty(t, rows[name], name)
	}
	for _, name := range fieldNames[contract.Reshape]() {
		require.Contains(t, rows["reshape"], "`"+name+"`")
	}
	for _, name := range fieldNames[contract.UpdateInput]() {
		require.Contains(t, fields, "`"+name+"`")
	}
	for name, words := range map[string][]string{
		"approval":    {contract.Automatic, contract.Manual},
		"complete":    {contract.Automatic, contract.Manual},
		"kind":        {contract.MoveKind, contract.UpgradeKind, contract.BinPackKind},
		"onDDL":       {contract.StopOnDDL, contract.FollowOnDDL},
		"onMismatch":  {contract.BlockOnMismatch, contract.RepairOnMismatch, contract.RestartOnMismatch, contract.PageOnMismatch},
		"afterSwitch": {contract.AfterSwitchPage, contract.AfterSwitchRollback, contract.AfterSwitchOff},
	} {
		for _, word := range words {
			require.Contains(t, rows[name], "`"+word+"`", name)
		}
	}
}

// TestInputsOfTheTemporalPageAreUnderstood: Temporal takes any JSON, and a worker
// ignores a field that it does not know.
func TestInputsOfTheTemporalPageAreUnderstood(t *testing.T) {
	t.Parallel()
	inputs := map[string]any{
		contract.MigrateChunkWorkflow:   &contract.MigrateInput{},
		contract.CaptureShardWorkflow:   &contract.CaptureInput{},
		contract.CloneChunkWorkflow:     &contract.CloneInput{},
		contract.DropCloneWorkflow:      &contract.CloneEnd{},
		contract.SeasonWorkflow:         &contract.SeasonInput{},
		contract.ReconcileWorkflow:      &contract.ReconcileInput{},
		contract.RebalanceWorkflow:      &contract.RebalanceInput{},
		contract.BalanceRoundWorkflow:   &contract.RoundInput{},
		contract.RemediateShardWorkflow: &contract.RemediateInput{},
	}
	seen := map[string]bool{}
	example := regexp.MustCompile(`--(type|name) (\w+) [^` + "`" + `]*--input '([^']*)'`)
	for _, m := range example.FindAllStringSubmatch(temporalPage(t), -1) {
		var into any = &contract.UpdateInput{}
		if m[1] == "type" {
			require.Contains(t, inputs, m[2], m[0])
			into, seen[m[2]] = inputs[m[2]], true
		}
		d := json.NewDecoder(strings.NewReader(strings.ReplaceAll(m[3], `"NOW"`, `"2026-11-30T03:15:00Z"`)))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(into), m[0])
	}
	require.Len(t, seen, len(inputs))
}

// TestTemporalPageHasEveryVerb: each command that steers a workflow, each workflow type
// and each update has its line on the page.
func TestTemporalPageHasEveryVerb(t *testing.T) {
	t.Parallel()

	page := temporalPage(t)

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
