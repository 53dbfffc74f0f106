package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is set by the release build.
var Version = "dev" //nolint:gochecknoglobals // the linker sets it

// versionInfo is the version command's JSON.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
}

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{Version: Version, Go: runtime.Version()}
			if bi, ok := debug.ReadBuildInfo(); ok {
				for _, s := range bi.Settings {
					if s.Key == "vcs.revision" {
						v.Revision = s.Value
					}
				}
			}
			return a.print(v, nil, func() [][]string {
				return [][]string{{"version", v.Version}, {"revision", v.Revision}, {"go", v.Go}}
			})
		},
	}
}
