package cli

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"drover/demo"
)

// sabotages are the deliberate faults that prove the checker can fail.
var sabotages = []string{"", "lose-write", "double-write", "stale-read"} //nolint:gochecknoglobals // a constant list

func newDemoCommand(a *app) *cobra.Command {
	o := demo.Options{}
	c := &cobra.Command{
		Use: "demo", Short: "Move a live chunk of real data on a stack of its own, and report what happened", Args: cobra.NoArgs,
		Long: "Start a stack, load 300,000 real rows, run an application against two proxies, move its busiest chunk, roll back, move forth\n" +
			"again, complete, and compare every document. Exit status 1 when anything was lost, doubled, stale, or seen as an error.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(sabotages, o.Sabotage) {
				return &usageError{fmt.Errorf("--sabotage %q: want lose-write, double-write or stale-read", o.Sabotage)}
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			o.Self, o.Out, o.LookupEnv = self, a.env.Stdout, a.env.LookupEnv
			return demo.Run(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Dir, "dir", ".drover/demo", "folder of the demonstration's stack; it is made anew")
	f.StringVar(&o.Data, "data", "testdata", "folder with flights.csv.gz")
	f.StringVar(&o.Report, "report", "demo-report.json", "where the JSON report goes")
	f.BoolVar(&o.Keep, "keep", false, "leave the stack up")
	f.BoolVar(&o.DeafProxy, "deaf-proxy", false, "cut one proxy off from every notification")
	f.StringVar(&o.Sabotage, "sabotage", "", "make a fault in the data path: lose-write, double-write or stale-read; the report must count it")
	f.IntVar(&o.Rate, "rate", 1100, "operations per second")
	f.IntVar(&o.Clients, "clients", 64, "clients of the application")
	f.IntVar(&o.Rows, "rows", 0, "load only so many flights; 0 for all")
	return c
}
