package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drover/internal/failure"
)

// misused is a command line that the command cannot take, with where to read on.
func misused(cmd *cobra.Command, err error) error {
	if _, ok := errors.AsType[*usageError](err); ok {
		return err
	}
	return &usageError{fmt.Errorf("%s: %w; see %s --help", cmd.CommandPath(), err, cmd.CommandPath())}
}

// subcommand refuses a word that is no command of a group, and names one that
// looks like it.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("there is no command %q", args[0])
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, ", "))
	}
	return err
}

// checkFlags finds what cobra would find later, where it could not be told from a failure.
func checkFlags(cmd *cobra.Command) error {
	if err := cmd.ValidateRequiredFlags(); err != nil {
		var missing []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Annotations[cobra.BashCompOneRequiredFlag] != nil && !f.Changed {
				missing = append(missing, "--"+f.Name)
			}
		})
		return misused(cmd, fmt.Errorf("%s must be given", strings.Join(missing, " and ")))
	}
	if err := cmd.ValidateFlagGroups(); err != nil {
		return misused(cmd, err)
	}
	return nil
}

// told is what a command that gives nothing back prints as JSON.
type told struct {
	Done string `json:"done"`
}

// told says that something was done.
func (a *app) told(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if a.output == "json" {
		return writeJSON(a.env.Stdout, told{text})
	}
	_, err := fmt.Fprintln(a.env.Stdout, text)
	return err
}

// fleet names the fleet that a command acts on: as its person does, and where its
// metadata is.
func (a *app) fleet() string {
	c, err := pgx.ParseConfig(a.cfg.PostgresDSN)
	if err != nil {
		return "?"
	}
	where := fmt.Sprintf("%s:%d/%s", c.Host, c.Port, c.Database)
	if a.context != "" {
		return a.context + " (" + where + ")"
	}
	return where
}

// yesFlag gives a command that destroys something the flag that answers for a person.
func yesFlag(c *cobra.Command, yes *bool) {
	c.Flags().BoolVar(yes, "yes", false, "do not ask; needed where nobody can be asked")
}

// confirm asks a person who is about to destroy something: the answer is name.
// Where there is no terminal --yes must have been given.
func (a *app) confirm(yes bool, what, name string) error {
	if yes {
		return nil
	}
	question := fmt.Sprintf("This %s, in the fleet %s.", what, a.fleet())
	if !a.asksPerson() {
		return &usageError{failure.New(failure.Invalid, "cli.not_confirmed", "%s Nothing was changed", question).WithHint("say --yes to do it without being asked")}
	}
	_, _ = fmt.Fprintf(a.env.Stderr, "%s Type %s to go on: ", question, name)
	line, _ := bufio.NewReader(a.env.Stdin).ReadString('\n') //nolint:errcheck // what was not typed is no consent
	if strings.TrimSpace(line) != name {
		return failure.New(failure.Invalid, "cli.not_confirmed", "%q was not typed: nothing was changed", name)
	}
	return nil
}

// asksPerson says whether a person sits at the standard input.
func (a *app) asksPerson() bool {
	f, ok := a.env.Stdin.(*os.File)
	if !ok {
		return false
	}
	s, err := f.Stat()
	return err == nil && s.Mode()&os.ModeCharDevice != 0
}
