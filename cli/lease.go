package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/workers"
)

func newLeaseCommand(a *app) *cobra.Command {
	return group("lease", "See and take the right to work on a shard",
		newLeaseList(a), newLeaseTake(a), newLeaseRelease(a), newLeaseBreak(a))
}

// leaseJSON is one lease in the JSON output.
type leaseJSON struct {
	Shard     string    `json:"shard"`
	Holder    string    `json:"holder"`
	Mode      string    `json:"mode"`
	State     string    `json:"state"` // held, or waiting
	Epoch     int64     `json:"epoch"`
	Since     time.Time `json:"since"`
	ExpiresAt time.Time `json:"expiresAt"`
	Reason    string    `json:"reason,omitempty"`
}

func (a *app) printLeases(rows []metadata.LeaseRow) error {
	out := make([]leaseJSON, 0, len(rows))
	for _, r := range rows {
		l := leaseJSON{
			Shard: r.Shard, Holder: r.Holder, Mode: string(r.Mode), State: "held", Epoch: r.Epoch,
			Since: r.Since, ExpiresAt: r.ExpiresAt, Reason: r.Reason,
		}
		if r.Waiting {
			l.State = "waiting"
		}
		out = append(out, l)
	}
	return a.print(out, []string{"SHARD", "HOLDER", "MODE", "STATE", "EPOCH", "SINCE", "ENDS IN", "REASON"}, func() (t [][]string) {
		for _, l := range out {
			t = append(t, []string{
				l.Shard, l.Holder, l.Mode, l.State, strconv.FormatInt(l.Epoch, 10), ageText(l.Since) + " ago",
				time.Until(l.ExpiresAt).Round(time.Second).String(), l.Reason,
			})
		}
		return t
	})
}

// leasesOf gives the leases of one shard, of all for an empty name.
func leasesOf(ctx context.Context, store *metadata.Store, shard string) ([]metadata.LeaseRow, error) {
	if shard != "" {
		if _, err := store.Shard(ctx, shard); err != nil {
			return nil, err
		}
	}
	all, err := store.Leases(ctx)
	if err != nil {
		return nil, err
	}
	var rows []metadata.LeaseRow
	for _, l := range all {
		if shard == "" || l.Shard == shard {
			rows = append(rows, l)
		}
	}
	return rows, nil
}

func newLeaseList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list [SHARD]", Short: "List who works on which shard, and who waits for it", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				shard := ""
				if len(args) == 1 {
					shard = args[0]
				}
				rows, err := leasesOf(ctx, store, shard)
				if err != nil {
					return err
				}
				return a.printLeases(rows)
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// operator is how a person is named in leases.
func (a *app) operator() string { return metadata.OperatorHolder(a.user()) }

func newLeaseTake(a *app) *cobra.Command {
	var lasting, wait time.Duration
	var reason string
	c := &cobra.Command{
		Use: "take SHARD --for 2h --reason WHY", Short: "Keep switches and repairs away from a shard while you work on it", Args: cobra.ExactArgs(1),
		Long: "Keep switches and repairs away from a shard while you work on it: an exclusive lease. Replication and imports go on.\n" +
			"Taking it again makes it last anew.",
		Example: `  drover lease take shard-b --for 2h --reason "new disks" --wait 1m`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if lasting <= 0 || wait < 0 {
				return &usageError{fmt.Errorf("--for is %s and --wait is %s; want positive durations", lasting, wait)}
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				r := metadata.LeaseRequest{Shard: args[0], Holder: a.operator(), Mode: metadata.ExclusiveLease, TTL: lasting, Reason: reason}
				l, err := takeLease(ctx, store, r, wait)
				if err != nil {
					return err
				}
				a.raiseLease(ctx, store, l)
				rows, err := leasesOf(ctx, store, args[0])
				if err != nil {
					return err
				}
				return a.printLeases(rows)
			})
		},
	}
	f := c.Flags()
	f.DurationVar(&lasting, "for", 0, "how long it lasts unless it is released before (needed)")
	f.StringVar(&reason, "reason", "", "shown to everybody who is refused (needed)")
	f.DurationVar(&wait, "wait", 0, "wait so long for those who hold it; nobody new gets it meanwhile")
	_ = c.MarkFlagRequired("for")
	_ = c.MarkFlagRequired("reason")
	a.cfg.Flags(f, config.Common)
	return c
}

// Times of waiting for a lease: who waits and dies stands in nobody's way for long.
const (
	leaseAskEvery = 500 * time.Millisecond
	leaseWaitTTL  = 10 * time.Second
)

// takeLease asks until the lease is given or wait is over, and then leaves no wait
// behind.
func takeLease(ctx context.Context, store *metadata.Store, r metadata.LeaseRequest, wait time.Duration) (metadata.Lease, error) {
	over := time.After(wait)
	tick := time.NewTicker(leaseAskEvery)
	defer tick.Stop()
	lasting := r.TTL
	for {
		r.TTL = min(lasting, leaseWaitTTL)
		l, err := store.TakeLease(ctx, r)
		if err == nil {
			return store.RenewLease(ctx, l, lasting)
		}
		if !failure.Is(err, failure.Transient) {
			return l, err
		}
		select {
		case <-ctx.Done():
		case <-over:
		case <-tick.C:
			continue
		}
		return l, errors.Join(err, store.StopWaiting(context.WithoutCancel(ctx), r.Shard, r.Holder))
	}
}

// raiseWithin is for a shard to take the word about a lease; one that is broken may
// be why a person takes it.
const raiseWithin = 3 * time.Second

// raiseLease lets the shard itself refuse switches that still believe in an older
// lease. Where it cannot be told, a person who goes on must know.
func (a *app) raiseLease(ctx context.Context, store *metadata.Store, l metadata.Lease) {
	ctx, cancel := context.WithTimeout(ctx, raiseWithin)
	defer cancel()
	if err := workers.RaiseLease(ctx, store, a.cfg.Secret, l); err != nil {
		_, _ = fmt.Fprintf(a.env.Stderr, "The lease is yours, but shard %s could not be told, so that it would refuse a switch with an older one: %v\n"+
			"If its primary comes back while you work, take the lease again.\n", l.Shard, err)
	}
}

func newLeaseRelease(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "release SHARD", Short: "Give back the lease that you took", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				rows, err := leasesOf(ctx, store, args[0])
				if err != nil {
					return err
				}
				for _, l := range rows {
					if l.Holder == a.operator() {
						return store.ReleaseLease(ctx, l.Lease)
					}
				}
				return failure.New(failure.Invalid, "lease.not_yours", "%s holds no lease of shard %s", a.operator(), args[0]).
					WithHint("`drover lease list %s` shows who does; `drover lease break %s` takes it from them", args[0], args[0])
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newLeaseBreak(a *app) *cobra.Command {
	var holder string
	var execute bool
	c := &cobra.Command{
		Use: "break SHARD [--holder NAME] [--execute]", Short: "Take leases from holders that are gone", Args: cobra.ExactArgs(1),
		Long: "Take leases from holders that are gone. Without --execute it only shows which.\n" +
			"A switch whose lease is broken cannot publish and goes back; a repair stops before its next step.\n" +
			"Leases end by themselves when their holder dies: look there first.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				return a.breakLeases(ctx, store, args[0], holder, execute)
			})
		},
	}
	c.Flags().StringVar(&holder, "holder", "", "only of this holder")
	c.Flags().BoolVar(&execute, "execute", false, "really do it")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// breakLeases shows the leases that it breaks, or would.
func (a *app) breakLeases(ctx context.Context, store *metadata.Store, shard, holder string, execute bool) error {
	all, err := leasesOf(ctx, store, shard)
	if err != nil {
		return err
	}
	var rows []metadata.LeaseRow
	for _, l := range all {
		if holder == "" || l.Holder == holder {
			rows = append(rows, l)
		}
	}
	if len(rows) == 0 {
		return failure.New(failure.Invalid, "lease.none", "nobody of that name holds a lease of shard %s", shard).
			WithHint("`drover lease list %s` shows who does", shard)
	}
	if err := a.printLeases(rows); err != nil {
		return err
	}
	if !execute {
		_, err := fmt.Fprintln(a.env.Stderr, "Nothing was changed; --execute breaks these leases.")
		return err
	}
	for _, l := range rows {
		if err := store.BreakLease(ctx, l.Lease); err != nil {
			return err
		}
	}
	return nil
}
