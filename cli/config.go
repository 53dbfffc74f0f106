package cli

import (
	"github.com/spf13/cobra"

	"drover/internal/config"
)

func newConfigCommand(a *app) *cobra.Command {
	var role string
	show := &cobra.Command{
		Use: "show", Short: "Print the settings that are in force, and where each comes from; secrets are hidden", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			src := config.Source{LookupEnv: a.env.LookupEnv, File: a.file}
			if s := a.runningStack(); s != nil {
				src.DevStack = stackSettings(s)
			}
			r := config.Worker
			if role == "proxy" {
				r = config.Proxy
			}
			var cfg config.Config
			fs := cmd.Flags()
			cfg.Flags(fs, r)
			from, err := config.Load(fs, r, src)
			if err != nil {
				return &usageError{err}
			}
			type value struct {
				Name  string `json:"name"`
				Value string `json:"value"`
				From  string `json:"from"`
			}
			var out []value
			for _, d := range config.Docs() {
				name := d.Flag[2:]
				f := fs.Lookup(name)
				if f == nil || from[name] == "" {
					continue
				}
				v := f.Value.String()
				if config.IsSecret(name) && v != "" {
					v = "(hidden)"
				}
				out = append(out, value{name, v, from[name]})
			}
			return a.print(out, []string{"SETTING", "VALUE", "FROM"}, func() (rows [][]string) {
				for _, v := range out {
					rows = append(rows, []string{v.Name, v.Value, v.From})
				}
				return rows
			})
		},
	}
	show.Flags().StringVar(&role, "role", "worker", "whose settings: worker or proxy")
	return group("config", "Look at settings, and keep those of proxies and balancer for the whole fleet",
		show, newConfigDiff(a), newConfigApply(a), newConfigHistory(a), newConfigRollback(a), newConfigStatus(a))
}
