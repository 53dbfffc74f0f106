package cli

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
)

// completionPatience bounds what a shell waits for names.
const completionPatience = 2 * time.Second

// The words that usage texts have for names which the metadata or this machine knows.
const (
	aChunk    = "CHUNK"
	aShard    = "SHARD"
	aDatabase = "DATABASE"
	aContext  = "FLEET"
)

// flagWords are the values of flags that have only so many.
var flagWords = map[string][]string{
	"output":       {"table", "json"},
	"approval":     {contract.Automatic, contract.Manual},
	"complete":     {contract.Automatic, contract.Manual},
	"kind":         {contract.MoveKind, contract.UpgradeKind, contract.BinPackKind},
	"after-switch": {contract.AfterSwitchPage, contract.AfterSwitchRollback, contract.AfterSwitchOff},
	"on-mismatch":  {contract.BlockOnMismatch, contract.RepairOnMismatch, contract.RestartOnMismatch, contract.PageOnMismatch},
	"on-ddl":       {contract.StopOnDDL, contract.FollowOnDDL},
	"log-level":    {"debug", "info", "warn", "error"},
	"import-pace":  {config.PaceGentle, config.PaceFull},
}

// flagNames are the flags that take a name.
var flagNames = map[string]string{"shards": aShard, "db": aDatabase}

// addCompletions lets shells complete the values of flags, and the names that the usage
// texts of the commands below c ask for.
func (a *app) addCompletions(c *cobra.Command) {
	for _, sub := range c.Commands() {
		a.addCompletions(sub)
		if !sub.HasSubCommands() {
			sub.ValidArgsFunction = a.names(placeholders(sub))
		}
		for flag, words := range flagWords {
			complete(sub, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		}
		for flag, kind := range flagNames {
			complete(sub, flag, a.names([]string{kind, "..."}))
		}
		if strings.Contains(sub.Use, "--to SHARD") {
			complete(sub, "to", a.names([]string{aShard, "..."}))
		}
	}
}

// complete completes a flag of a command, where it has it.
func complete(c *cobra.Command, flag string, how cobra.CompletionFunc) {
	if c.LocalNonPersistentFlags().Lookup(flag) != nil || c.PersistentFlags().Lookup(flag) != nil {
		_ = c.RegisterFlagCompletionFunc(flag, how) // each flag is met once
	}
}

// placeholders are the words for a command's arguments, in their order; "..." says that
// the last one may come again.
func placeholders(c *cobra.Command) (all []string) {
	for _, w := range strings.Fields(c.Use)[1:] {
		name := strings.Trim(w, "[].")
		if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			break
		}
		all = append(all, name)
		if strings.HasSuffix(w, "...") {
			all = append(all, "...")
		}
	}
	return all
}

// names completes arguments by what their placeholders stand for.
func (a *app) names(of []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		at := len(args)
		if repeated := slices.Index(of, "..."); repeated > 0 && at >= repeated {
			at = repeated - 1
		}
		switch {
		case at >= len(of):
			return nil, cobra.ShellCompDirectiveNoFileComp
		case of[at] == "FILE":
			return nil, cobra.ShellCompDirectiveDefault
		default:
			return a.known(cmd, of[at]), cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// known lists the names of a kind. Where they cannot be read there are none: a shell has
// no place for an error.
func (a *app) known(cmd *cobra.Command, kind string) (all []string) {
	if kind == aContext {
		files, _ := filepath.Glob(filepath.Join(a.contextDir(), "*.yaml"))
		for _, f := range files {
			all = append(all, strings.TrimSuffix(filepath.Base(f), ".yaml"))
		}
		return all
	}
	if !slices.Contains([]string{aChunk, aShard, aDatabase}, kind) || cmd.Flags().Lookup("postgres-dsn") == nil ||
		a.followContext(cmd) != nil || a.load(cmd, config.Common) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	store, err := metadata.Open(ctx, a.cfg.PostgresDSN)
	if err != nil {
		return nil
	}
	defer store.Close()
	return namesIn(ctx, store, kind)
}

// namesIn lists those that the metadata has.
func namesIn(ctx context.Context, store *metadata.Store, kind string) (all []string) {
	switch kind {
	case aChunk:
		routes, _ := store.Routes(ctx, "")
		for _, r := range routes {
			all = append(all, string(r.Chunk.ID))
		}
	case aShard:
		shards, _ := store.Shards(ctx)
		for _, s := range shards {
			all = append(all, s.Name)
		}
	default:
		databases, _ := store.Databases(ctx)
		for _, d := range databases {
			all = append(all, d.Name)
		}
	}
	return all
}
