package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// showing are the verbs that show how something is.
var showing = []string{"list", "status", "gate", "clients", "readiness"}

// againEvery is the time between two times that something is shown.
const againEvery = 2 * time.Second

// addWatch gives every command below c that shows how something is the flag --watch.
func (a *app) addWatch(c *cobra.Command) {
	for _, sub := range c.Commands() {
		a.addWatch(sub)
		if sub.HasSubCommands() || !slices.Contains(showing, sub.Name()) {
			continue
		}
		watch := sub.Flags().Bool("watch", false, "show it again every 2 s, until Ctrl-C")
		show := sub.RunE
		sub.RunE = func(cmd *cobra.Command, args []string) error {
			if !*watch {
				return show(cmd, args)
			}
			return a.again(cmd.Context(), func() error { return show(cmd, args) })
		}
	}
}

// again shows something until a person has seen enough. An error is told and does not
// end it: what is down may come back.
func (a *app) again(ctx context.Context, show func() error) error {
	tick := time.NewTicker(againEvery)
	defer tick.Stop()
	terminal, onTerminal := a.env.Stdout.(*os.File)
	onTerminal = onTerminal && a.output == "table" && terminalWidth(terminal) > 0
	for {
		if onTerminal {
			a.env.Stdout = &page{terminal: terminal}
		}
		err := show()
		if _, wrong := errors.AsType[*usageError](err); wrong {
			return err
		}
		if ctx.Err() == nil {
			status(a.env.Stderr, a.output, err)
		}
		select {
		case <-ctx.Done():
			return &exitError{exitFailed} // as of migrate watch
		case <-tick.C:
		}
	}
}

// page is a terminal that is cleared before the first that is written on it.
type page struct {
	terminal *os.File
	begun    bool
}

// Fd tells how wide it is.
func (p *page) Fd() uintptr { return p.terminal.Fd() }

// Write implements [io.Writer].
func (p *page) Write(b []byte) (int, error) {
	if !p.begun {
		p.begun = true
		if _, err := p.terminal.WriteString("\x1b[H\x1b[2J"); err != nil {
			return 0, err
		}
	}
	return p.terminal.Write(b)
}
