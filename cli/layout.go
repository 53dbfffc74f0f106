package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/remediation"
	"drover/workers"
)

// layoutFile is a layout as people write it.
type layoutFile struct {
	Shard    string        `yaml:"shard,omitempty" json:"shard,omitempty"` // if given, it must be the command's
	Name     string        `yaml:"name" json:"name"`
	Domain   string        `yaml:"domain" json:"domain"`
	Slots    []slotFile    `yaml:"slots" json:"slots"`
	Machines []machineFile `yaml:"machines" json:"machines"`
}

type slotFile struct {
	Zone     string        `yaml:"zone" json:"zone"`
	Instance string        `yaml:"instance" json:"instance,omitempty"`
	Votes    *int          `yaml:"votes" json:"votes,omitempty"` // 1 unless given
	Priority *float64      `yaml:"priority" json:"priority,omitempty"`
	Hidden   bool          `yaml:"hidden" json:"hidden,omitempty"`
	Delay    time.Duration `yaml:"delay" json:"delay,omitempty"`
	Arbiter  bool          `yaml:"arbiter" json:"arbiter,omitempty"`
	OplogMB  int           `yaml:"oplog_mb" json:"oplog_mb,omitempty"`
}

type machineFile struct {
	Host     string `yaml:"host" json:"host"`
	Zone     string `yaml:"zone" json:"zone"`
	Instance string `yaml:"instance" json:"instance,omitempty"`
	Gone     bool   `yaml:"gone" json:"gone,omitempty"`
}

// layoutInvalid refuses a file, naming field and reason.
func layoutInvalid(field, format string, args ...any) error {
	return failure.New(failure.Invalid, "layout.invalid", "%s: %s", field, fmt.Sprintf(format, args...)).
		WithHint("docs/remediation.md has an example; nothing was changed")
}

// readLayout reads one layout of a file, and refuses a second one.
func readLayout(path, shard string) (layoutFile, error) {
	b, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return layoutFile{}, fmt.Errorf("read layout: %w", err)
	}
	return parseLayout(b, shard)
}

func parseLayout(b []byte, shard string) (layoutFile, error) {
	var f, second layoutFile
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil {
		return f, layoutInvalid("file", "%v", err)
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return f, layoutInvalid("file", "two layouts for shard %s: a shard has one", shard)
	}
	if f.Shard != "" && f.Shard != shard {
		return f, layoutInvalid("shard", "the file is for shard %s, not for %s", f.Shard, shard)
	}
	return f, nil
}

// layout is what the planner works with; every problem is told at once.
func (f *layoutFile) layout() (remediation.Layout, []remediation.Machine, error) {
	l := remediation.Layout{Name: f.Name}
	for _, s := range f.Slots {
		slot := remediation.Slot{
			Zone: s.Zone, Instance: s.Instance, Votes: 1, Hidden: s.Hidden, Delay: s.Delay, Arbiter: s.Arbiter, OplogMB: s.OplogMB,
		}
		if s.Votes != nil {
			slot.Votes = *s.Votes
		}
		switch {
		case s.Priority != nil:
			slot.Priority = *s.Priority
		case slot.Votes == 1 && !s.Hidden && s.Delay == 0 && !s.Arbiter:
			slot.Priority = 1
		}
		l.Slots = append(l.Slots, slot)
	}
	var machines []remediation.Machine
	seen := map[string]bool{}
	for i, m := range f.Machines {
		if m.Host == "" || m.Zone == "" || seen[m.Host] {
			return l, nil, layoutInvalid(fmt.Sprintf("machines[%d]", i), "host and zone must be given, and each host once; this is %q in %q", m.Host, m.Zone)
		}
		if _, port, err := net.SplitHostPort(m.Host); err != nil || port == "" {
			return l, nil, layoutInvalid(fmt.Sprintf("machines[%d].host", i), "is %q; want host:port, as the set's configuration names the member", m.Host)
		}
		seen[m.Host] = true
		machines = append(machines, remediation.Machine{Host: m.Host, Zone: m.Zone, Instance: m.Instance, Gone: m.Gone})
	}
	err := l.Validate()
	if err == nil {
		err = l.MetBy(machines)
	}
	if err != nil {
		return l, nil, failure.New(failure.Invalid, "layout.invalid", "%w", err).WithHint("docs/remediation.md has an example; nothing was changed")
	}
	return l, machines, nil
}

func newLayoutCommand(a *app) *cobra.Command {
	return group("layout", "Say how a shard is wanted to be", newLayoutSet(a), newLayoutShow(a))
}

func newLayoutSet(a *app) *cobra.Command {
	var file string
	var replace bool
	c := &cobra.Command{
		Use: "set SHARD -f FILE", Short: "Declare a shard's layout and its machines", Args: cobra.ExactArgs(1),
		Long: "Declare a shard's layout and its machines. Nothing is changed on the shard: `drover shard remediate` shows what would be.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := readLayout(file, args[0])
			if err != nil {
				return err
			}
			l, machines, err := f.layout()
			if err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				if err := workers.CheckMachines(ctx, store, a.cfg.Secret, args[0], machines); err != nil {
					return err
				}
				d := metadata.Declared{Shard: args[0], Domain: f.Domain, SetBy: a.user()}
				if d.Layout, err = json.Marshal(l); err != nil {
					return err
				}
				if d.Machines, err = json.Marshal(machines); err != nil {
					return err
				}
				if err := store.DeclareLayout(ctx, d, replace); err != nil {
					return err
				}
				return a.printLayout(ctx, store, args[0])
			})
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "YAML file with name, domain, slots and machines (needed)")
	c.Flags().BoolVar(&replace, "replace", false, "in the place of the layout that the shard has")
	_ = c.MarkFlagRequired("file")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newLayoutShow(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "show SHARD", Short: "Show a shard's layout", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				return a.printLayout(ctx, store, args[0])
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func (a *app) printLayout(ctx context.Context, store *metadata.Store, shard string) error {
	d, err := store.DeclaredLayout(ctx, shard)
	if err != nil {
		return err
	}
	var l remediation.Layout
	var machines []remediation.Machine
	if err := errors.Join(json.Unmarshal(d.Layout, &l), json.Unmarshal(d.Machines, &machines)); err != nil {
		return err
	}
	return a.print(d, []string{"ZONE", "INSTANCE", "VOTES", "PRIORITY", "HIDDEN", "DELAY", "ARBITER", "OPLOG MB"}, func() (rows [][]string) {
		for _, s := range l.Slots {
			rows = append(rows, []string{
				s.Zone, s.Instance, fmt.Sprint(s.Votes), fmt.Sprint(s.Priority), fmt.Sprint(s.Hidden), s.Delay.String(), fmt.Sprint(s.Arbiter), fmt.Sprint(s.OplogMB),
			})
		}
		for _, m := range machines {
			rows = append(rows, []string{"machine " + m.Host, m.Zone, m.Instance, map[bool]string{true: "gone"}[m.Gone]})
		}
		return append(rows, []string{"domain " + d.Domain, "set by " + d.SetBy, ageText(d.SetAt) + " ago"})
	})
}
