package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"drover/internal/config"
	"drover/metadata"
	"drover/proxy"
	"drover/proxy/admission"
)

func newDBPolicy(a *app) *cobra.Command {
	var p admission.Policy
	c := &cobra.Command{
		Use: "policy [DATABASE]", Short: "Show the policies of logical databases, or replace one when flags are given", Args: cobra.MaximumNArgs(1),
		Long: "Show the policies of logical databases, or replace one when flags are given. Proxies follow within seconds; quotas hold for each proxy.",
		Example: "  drover db policy shop --ops 2000 --bytes 20000000 --priority critical\n" +
			"  drover db policy reports --priority batch --scatter bounded --need-index --max-time 30s",
		RunE: func(cmd *cobra.Command, args []string) error {
			maxTime, err := cmd.Flags().GetDuration("max-time")
			if err != nil {
				return err
			}
			p.DefaultMaxTimeMS = maxTime.Milliseconds()
			if err := p.Validate(); err != nil {
				return &usageError{err}
			}
			changes := false
			for _, name := range []string{"ops", "ops-burst", "bytes", "bytes-burst", "priority", "scatter", "need-index", "max-time"} {
				changes = changes || cmd.Flags().Changed(name)
			}
			if changes && len(args) == 0 {
				return &usageError{fmt.Errorf("whose policy? give the name of a database")}
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				if changes {
					text, err := json.Marshal(p)
					if err != nil {
						return err
					}
					if err := store.SetPolicy(ctx, args[0], text); err != nil {
						return err
					}
				}
				return a.printPolicies(ctx, store, args)
			})
		},
	}
	f := c.Flags()
	f.Float64Var(&p.OpsPerSecond, "ops", 0, "operations per second; 0: no quota")
	f.IntVar(&p.OpsBurst, "ops-burst", 0, "operations at once; 0: one second's")
	f.Float64Var(&p.BytesPerSecond, "bytes", 0, "bytes per second of requests and replies; 0: no quota")
	f.IntVar(&p.BytesBurst, "bytes-burst", 0, "bytes at once; 0: one second's")
	f.StringVar((*string)(&p.Priority), "priority", "normal", "critical, normal or batch: what comes first when there is not room for all")
	f.StringVar((*string)(&p.Scatter), "scatter", "any", "requests on several chunks: any, bounded (only a find with a limit) or none")
	f.BoolVar(&p.NeedIndex, "need-index", false, "refuse filters that name no first field of an index")
	f.Duration("max-time", 0, "maxTimeMS of requests that bring none; 0: none")
	a.cfg.Flags(f, config.Common)
	return c
}

// printPolicies shows the policies of the named database, or of all.
func (a *app) printPolicies(ctx context.Context, store *metadata.Store, only []string) error {
	all, err := store.Policies(ctx)
	if err != nil {
		return err
	}
	shown := map[string]admission.Policy{}
	for name, text := range all {
		if len(only) > 0 && only[0] != name {
			continue
		}
		p, err := admission.ParsePolicy(text)
		if err != nil {
			return fmt.Errorf("policy of %s: %w", name, err)
		}
		shown[name] = p
	}
	return a.print(shown, []string{"DATABASE", "OPS/S", "BYTES/S", "PRIORITY", "SCATTER", "NEED INDEX", "MAX TIME"}, func() (rows [][]string) {
		for _, name := range slices.Sorted(maps.Keys(shown)) {
			p := shown[name]
			rows = append(rows, []string{
				name, strconv.FormatFloat(p.OpsPerSecond, 'f', -1, 64), strconv.FormatFloat(p.BytesPerSecond, 'f', -1, 64),
				string(p.Priority), string(p.Scatter), strconv.FormatBool(p.NeedIndex), (time.Duration(p.DefaultMaxTimeMS) * time.Millisecond).String(),
			})
		}
		return rows
	})
}

func newDBClients(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "clients", Short: "Show how each user's applications behave when they are refused: what a switch may ask of them", Args: cobra.NoArgs,
		Long: "Show what the proxies have learned about each user and application: the share of writes that no driver repeats (without txnNumber), the\n" +
			"shortest deadline, how soon a refused client comes back and for how long it tries. A switch must be shorter than the shortest of them.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.ProxyClients(ctx)
				if err != nil {
					return err
				}
				merged, err := mergeEnvelopes(all)
				if err != nil {
					return err
				}
				return a.print(merged, []string{"USER", "APP", "WRITES", "UNREPEATED", "SHORTEST DEADLINE", "REFUSED", "SOONEST RETURN", "PATIENCE", "GAVE UP"}, func() (rows [][]string) {
					for _, e := range merged {
						rows = append(rows, []string{
							e.User, e.App, strconv.FormatInt(e.Writes, 10), fmt.Sprintf("%.1f%%", 100*float64(e.Unnumbered)/float64(max(1, e.Writes))),
							knownMS(e.ShortestMS), strconv.FormatInt(e.Refused, 10), knownMS(e.SoonestMS), knownMS(e.PatienceMS), strconv.FormatInt(e.GaveUp, 10),
						})
					}
					return rows
				})
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// knownMS writes a number of milliseconds that may not be known.
func knownMS(n int64) string {
	if n == 0 {
		return "-"
	}
	return (time.Duration(n) * time.Millisecond).String()
}

// mergeEnvelopes puts together what several proxies know about one caller.
func mergeEnvelopes(all []metadata.ProxyClient) (out []proxy.Envelope, _ error) {
	lower := func(a, b int64) int64 {
		if a == 0 || b == 0 {
			return a + b
		}
		return min(a, b)
	}
	for _, c := range all { // by user and application
		var e proxy.Envelope
		if err := json.Unmarshal(c.Envelope, &e); err != nil {
			return nil, fmt.Errorf("what %s says about %s: %w", c.Proxy, c.User, err)
		}
		e.User, e.App = c.User, c.App
		if n := len(out); n == 0 || out[n-1].User != e.User || out[n-1].App != e.App {
			out = append(out, e)
			continue
		}
		sum := &out[len(out)-1]
		sum.Requests, sum.Chunks, sum.Scattered = sum.Requests+e.Requests, sum.Chunks+e.Chunks, sum.Scattered+e.Scattered
		sum.Writes, sum.Unnumbered, sum.Deadlines = sum.Writes+e.Writes, sum.Unnumbered+e.Unnumbered, sum.Deadlines+e.Deadlines
		sum.Refused, sum.Returned, sum.GaveUp = sum.Refused+e.Refused, sum.Returned+e.Returned, sum.GaveUp+e.GaveUp
		sum.ShortestMS, sum.SoonestMS = lower(sum.ShortestMS, e.ShortestMS), lower(sum.SoonestMS, e.SoonestMS)
		sum.PatienceMS = max(sum.PatienceMS, e.PatienceMS)
	}
	return out, nil
}
