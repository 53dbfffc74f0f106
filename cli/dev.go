package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"drover/devstack"
)

// embeddedKafkaCommand is the hidden command that `drover dev up --kafka
// embedded` runs as a process of the stack.
const embeddedKafkaCommand = "embedded-kafka"

// devFlags are the flags that the commands of `drover dev` share.
type devFlags struct {
	dir   string
	parts []string
}

// add gives cmd the shared flags.
func (f *devFlags) add(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&f.dir, "dir", "", "folder of the stack (default: that of the file in DROVER_STACK, else .drover)")
	cmd.Flags().StringSliceVar(&f.parts, "part", nil, "only these parts, by name")
	return cmd
}

// options are the flags as devstack wants them.
func (f *devFlags) options(a *app) (devstack.Options, error) {
	o := devstack.Options{Dir: f.dir, Parts: f.parts}
	if o.Dir == "" {
		dir, err := devstack.DefaultDir(a.env.LookupEnv)
		if err != nil {
			return o, err
		}
		o.Dir = dir
	}
	self, err := os.Executable()
	if err != nil {
		return o, err
	}
	o.Self = []string{self, "dev", embeddedKafkaCommand}
	return o, nil
}

// newDevCommand is the development stack: every server on this machine.
func newDevCommand(a *app) *cobra.Command {
	return group("dev", "Run every server that Drover needs on this machine, for trying it out",
		newDevUp(a), newDevStatus(a), newDevDown(a), newDevReset(a), newEmbeddedKafka())
}

// devProgress prints what happens to the parts. It goes to the error stream:
// the output is the result.
func (a *app) devProgress() devstack.Progress {
	began := time.Now()
	return func(part, message string) {
		_, _ = fmt.Fprintf(a.env.Stderr, "%5.1fs  %-9s %s\n", time.Since(began).Seconds(), part, message)
	}
}

// newDevUp starts the stack.
func newDevUp(a *app) *cobra.Command {
	var (
		flags  devFlags
		kafka  string
		shards []string
	)
	cmd := &cobra.Command{
		Use: "up", Short: "Start what is not running and wait until it is healthy", Args: cobra.NoArgs,
		Long: "Start what is not running and wait until it is healthy. Data, logs and the chosen ports are kept, so a stack that was\n" +
			"stopped or killed comes back as it was. `make setup` installs the servers.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := flags.options(a)
			if err != nil {
				return err
			}
			opts.Kafka, opts.Shards = kafka, shards
			stack, err := devstack.Up(cmd.Context(), opts, a.devProgress())
			if err != nil {
				return err
			}
			if stack.Kafka.Engine == devstack.EngineEmbedded {
				_, _ = fmt.Fprintln(a.env.Stderr, "note: the embedded Kafka keeps everything in memory; what it holds is lost when it stops")
			}
			return a.printStack(cmd.Context(), devstack.Options{Dir: opts.Dir, Parts: opts.Parts, Tools: opts.Tools})
		},
	}
	cmd.Flags().StringVar(&kafka, "kafka", "", "kafka (the real broker, needs Java) or embedded (a stand-in, in memory); default: as before, first kafka")
	cmd.Flags().StringSliceVar(&shards, "shard", nil, "names of the shards (default: as before, first shard-a,shard-b,shard-c)")
	return flags.add(cmd)
}

// newDevStatus shows the stack.
func newDevStatus(a *app) *cobra.Command {
	var flags devFlags
	cmd := &cobra.Command{
		Use: "status", Short: "Show each part, where it listens and whether it answers", Args: cobra.NoArgs,
		Long: "Show each part, where it listens and whether it answers. The exit status is 1 when one does not.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := flags.options(a)
			if err != nil {
				return err
			}
			return a.printStack(cmd.Context(), opts)
		},
	}
	return flags.add(cmd)
}

// stackReport is what status prints as JSON.
type stackReport struct {
	Dir   string                `json:"dir"`
	Parts []devstack.PartStatus `json:"parts"`
	UI    string                `json:"temporalUi"`
}

// printStack shows the parts as they are now; one that is not healthy makes
// the exit status 1.
func (a *app) printStack(ctx context.Context, opts devstack.Options) error {
	stack, parts, err := devstack.Status(ctx, opts)
	if err != nil {
		return err
	}
	healthy := true
	rows := make([][]string, 0, len(parts))
	for _, p := range parts {
		state := "healthy"
		switch {
		case !p.Running:
			state = "stopped"
		case !p.Healthy:
			state = "unhealthy: " + p.Problem
		}
		healthy = healthy && p.Healthy
		pid := "-"
		if p.PID != 0 {
			pid = strconv.Itoa(p.PID)
		}
		rows = append(rows, []string{p.Name, p.Engine, pid, p.Address, state, p.Log})
	}
	report := stackReport{Dir: stack.Dir, Parts: parts, UI: stack.Temporal.UI}
	header := []string{"PART", "ENGINE", "PID", "ADDRESS", "STATE", "LOG"}
	if err := a.print(report, header, func() [][]string { return rows }); err != nil {
		return err
	}
	if !healthy {
		return &exitError{exitFailed}
	}
	return nil
}

// newDevDown ends the stack.
func newDevDown(a *app) *cobra.Command {
	var flags devFlags
	cmd := &cobra.Command{
		Use: "down", Short: "Stop the stack and keep its data", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := flags.options(a)
			if err != nil {
				return err
			}
			if err := devstack.Down(cmd.Context(), opts, a.devProgress()); err != nil {
				return err
			}
			return a.told("the stack is stopped; its data is kept in %s", opts.Dir)
		},
	}
	return flags.add(cmd)
}

// newDevReset ends the stack and removes what it holds.
func newDevReset(a *app) *cobra.Command {
	var flags devFlags
	cmd := &cobra.Command{
		Use: "reset", Short: "Stop the stack and delete its data", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := flags.options(a)
			if err != nil {
				return err
			}
			if err := devstack.Reset(cmd.Context(), opts, a.devProgress()); err != nil {
				return err
			}
			return a.told("the stack is stopped and its data in %s deleted", opts.Dir)
		},
	}
	return flags.add(cmd)
}

// newEmbeddedKafka is a process of the stack, not a command for people.
func newEmbeddedKafka() *cobra.Command {
	return &cobra.Command{
		Use: embeddedKafkaCommand + " PORT", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "Serve Kafka's protocol from memory",
		RunE: func(cmd *cobra.Command, args []string) error {
			port, err := strconv.Atoi(args[0])
			if err != nil {
				return &usageError{fmt.Errorf("port %q: %w", args[0], err)}
			}
			return devstack.RunEmbeddedKafka(cmd.Context(), port)
		},
	}
}
