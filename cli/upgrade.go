package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"drover/contract"
	"drover/fleet"
	"drover/internal/config"
	"drover/metadata"
	"drover/proxy/admission"
)

// upgradeHelp is what both commands say about the way back.
const upgradeHelp = "The old placements are kept current until you say so: drover rebalance rollback ID goes back to them, drover rebalance complete ID drops\n" +
	"them. No further move begins after the first one that fails, or that wants a person: a validation that found a difference, a worse p99."

// addUpgrade makes the flags of an upgrade.
func (p *planFlags) addUpgrade(c *cobra.Command) {
	p.add(c.Flags())
	p.addYes(c.Flags())
	c.Flags().StringVar(&p.in.AfterSwitch, "after-switch", "page", "when a chunk is worse off than before: page, rollback or off")
	complete := c.Flags().Lookup("complete")
	complete.DefValue, complete.Usage = contract.Manual, "manual: the old placements are kept until you say so; or automatic"
	p.in.Complete, p.in.StopAtFirst = contract.Manual, true
}

func newShardUpgrade(a *app) *cobra.Command {
	var p planFlags
	var to string
	c := &cobra.Command{
		Use: "upgrade SHARD --to SHARD", Short: "Move everything on a shard to one that runs a newer MongoDB; without --yes the plan is only shown", Args: cobra.ExactArgs(1),
		Long:    "Move everything on a shard to one that runs a newer MongoDB. Majors may be skipped: documents are moved, not files.\n" + upgradeHelp,
		Example: "  drover shard upgrade shard-a --to shard-a8 --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.carryOut(cmd, &p, contract.UpgradeIntent, args[0], func(_ context.Context, _ *metadata.Store, v fleet.View) (contract.FleetPlan, error) {
				return v.Upgrade(args[0], to)
			})
		},
	}
	p.addUpgrade(c)
	c.Flags().StringVar(&to, "to", "", "the shard that takes its place (needed)")
	_ = c.MarkFlagRequired("to")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newFleetUpgrade(a *app) *cobra.Command {
	var p planFlags
	var version string
	var shards int
	var soak time.Duration
	c := &cobra.Command{
		Use: "upgrade --to VERSION", Short: "Bring all shards to a version of MongoDB, one after the other; without --yes the plan is only shown", Args: cobra.NoArgs,
		Long: "Bring all shards to a version of MongoDB: each moves to an empty shard of its zone that runs it, the least critical ones first (by the\n" +
			"priority of their databases, then by their requests). The next shards begin when those before have served for the soak.\n" + upgradeHelp,
		Example: "  drover fleet upgrade --to 8.0\n  drover fleet upgrade --to 8.0 --shards-at-once 2 --soak 24h --yes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if shards < 1 || soak < 0 {
				return &usageError{fmt.Errorf("--shards-at-once is %d and --soak is %s; want 1 or more, and no negative time", shards, soak)}
			}
			p.in.Soak = contract.Duration(soak)
			return a.carryOut(cmd, &p, contract.UpgradeIntent, version, func(ctx context.Context, store *metadata.Store, v fleet.View) (contract.FleetPlan, error) {
				rank, err := criticality(ctx, store)
				if err != nil {
					return contract.FleetPlan{}, err
				}
				return v.Campaign(version, shards, rank)
			})
		},
	}
	p.addUpgrade(c)
	f := c.Flags()
	f.StringVar(&version, "to", "", "the version that every shard should run at least (needed)")
	f.IntVar(&shards, "shards-at-once", 1, "shards that are upgraded at once: a wave")
	f.DurationVar(&soak, "soak", time.Hour, "how long a wave serves before the next one begins")
	_ = c.MarkFlagRequired("to")
	a.cfg.Flags(f, config.Common)
	return c
}

// criticality ranks databases by the priority of their policies.
func criticality(ctx context.Context, store *metadata.Store) (fleet.Criticality, error) {
	all, err := store.Policies(ctx)
	if err != nil {
		return nil, err
	}
	out := fleet.Criticality{}
	for name, text := range all {
		p, err := admission.ParsePolicy(text)
		if err != nil {
			return nil, fmt.Errorf("policy of %s: %w", name, err)
		}
		out[name] = map[admission.Priority]int{admission.Batch: 0, admission.Critical: 2, admission.Normal: 1, "": 1}[p.Priority]
	}
	return out, nil
}
