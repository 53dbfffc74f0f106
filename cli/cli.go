// Package cli turns command lines into calls. It keeps no global state.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"drover/internal/failure"
)

// Env is everything a command may touch of the process it runs in.
type Env struct {
	Args           []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
}

// The exit statuses.
const (
	exitDone    = 0
	exitFailed  = 1
	exitMisused = 2
	exitWaits   = 3 // for a person
)

// usageError is a command line that cannot be right.
type usageError struct{ error }

// Unwrap gives what cannot be right.
func (e *usageError) Unwrap() error { return e.error }

// exitError ends with a status after everything has been said.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// Main runs one command and returns the exit status: 0 done, 1 failed, 2
// misused, 3 waits for a person.
func Main(ctx context.Context, env Env) int {
	a := &app{env: env}
	root := newRoot(a)
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.InitDefaultCompletionCmd()
	wrapArgs(root)
	return status(env.Stderr, a.output, root.ExecuteContext(ctx))
}

// problem is an error as JSON.
type problem struct {
	Error  string `json:"error"`
	Code   string `json:"code,omitempty"`
	Hint   string `json:"hint,omitempty"`
	Status int    `json:"exitStatus"`
}

// status says what went wrong, once, with what to do about it.
func status(stderr io.Writer, output string, err error) int {
	if err == nil {
		return exitDone
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	p := problem{Error: err.Error(), Status: exitFailed}
	if e, ok := errors.AsType[*failure.Error](err); ok {
		p.Code, p.Hint = e.Code, e.Hint
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		p.Status = exitMisused
	}
	if output == "json" {
		_ = writeJSON(stderr, p)
		return p.Status
	}
	_, _ = fmt.Fprintln(stderr, "drover:", p.Error)
	if p.Hint != "" {
		_, _ = fmt.Fprintln(stderr, "hint:", p.Hint)
	}
	return p.Status
}

// newRoot is the whole command tree.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "drover",
		Short:         "Move chunks of data between MongoDB shards while they are in use",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          subcommand,
		RunE:          showHelp,
	}
	root.SetFlagErrorFunc(misused)
	pf := root.PersistentFlags()
	pf.StringVarP(&a.output, "output", "o", "table", "output format: table or json")
	pf.StringVar(&a.file, "config", "", "YAML file with settings, by flag name")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if a.output != "table" && a.output != "json" {
			return &usageError{fmt.Errorf("--output %q: want table or json", a.output)}
		}
		if err := checkFlags(cmd); err != nil {
			return err
		}
		return a.followContext(cmd)
	}
	root.AddCommand(
		newContextCommand(a),
		newDevCommand(a), newDemoCommand(a), newWorkerCommand(a), newProxyCommand(a),
		newShardCommand(a), newDBCommand(a), newChunkCommand(a), newMigrateCommand(a), newValidateCommand(a), newLogCommand(a),
		newLeaseCommand(a), newUserCommand(a),
		newConfigCommand(a), newVersionCommand(a), newSimCommand(a), newRemediationCommand(a),
		newRebalanceCommand(a), newBinPack(a), newApplyCommand(a), newDiffCommand(a), newPlacementCommand(a), newFleetCommand(a), newBalancerCommand(a),
		newCapacityCommand(a), newOverrideCommand(a),
		newConsoleCommand(a), newReadinessCommand(a),
	)
	addExamples(root)
	a.addWatch(root)
	a.addCompletions(root)
	complete(root, "output", cobra.FixedCompletions(flagWords["output"], cobra.ShellCompDirectiveNoFileComp))
	return root
}

// wrapArgs makes wrong arguments a misuse, for every command.
func wrapArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return misused(cmd, err)
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

// group is a command that only holds others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: subcommand, RunE: showHelp}
	c.AddCommand(subs...)
	return c
}

// showHelp is what a command does that only holds others.
func showHelp(cmd *cobra.Command, _ []string) error {
	_ = cmd.Help()
	return &exitError{exitMisused}
}
