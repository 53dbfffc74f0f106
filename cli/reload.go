package cli

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drover/internal/config"
	"drover/internal/logging"
	"drover/proxy"
)

// filePause is the time between two looks at the configuration file.
const filePause = 5 * time.Second

// followSettings takes over what changes in a proxy's settings: at SIGHUP, and when
// the configuration file was written. What is wrong changes nothing; what can't change
// while the proxy runs is named. Certificates, users and policies need none of this:
// they are looked at all the time.
func (a *app) followSettings(ctx context.Context, cmd *cobra.Command, p *proxy.Proxy, logger *slog.Logger) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	tick := time.NewTicker(filePause)
	defer tick.Stop()
	was, written := cmd.Flags(), modified(a.file)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		case <-tick.C:
			if now := modified(a.file); now.Equal(written) {
				continue
			}
		}
		written = modified(a.file)
		if fs, ok := a.takeOver(ctx, cmd, was, p, logger); ok {
			was = fs
		}
	}
}

// modified is when a file was written, zero when there is none.
func modified(path string) time.Time {
	if path == "" {
		return time.Time{}
	}
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// takeOver reads the settings anew and applies what has changed since was.
func (a *app) takeOver(ctx context.Context, cmd *cobra.Command, was *pflag.FlagSet, p *proxy.Proxy, logger *slog.Logger) (*pflag.FlagSet, bool) {
	cfg, fs, err := a.reread(cmd)
	if err != nil {
		logger.ErrorContext(ctx, "Changed settings are not taken over", slog.Any("error", err))
		return nil, false
	}
	for _, name := range config.Changed(was, fs, config.Proxy) {
		switch {
		case !config.Live(name):
			logger.WarnContext(ctx, "A changed setting needs a restart", slog.String("setting", name))
		default:
			logger.InfoContext(ctx, "A changed setting is taken over", slog.String("setting", name), slog.String("value", fs.Lookup(name).Value.String()))
		}
	}
	if err := logging.SetLevel(&a.level, cfg.LogLevel); err != nil {
		logger.ErrorContext(ctx, "Changed settings are not taken over", slog.Any("error", err))
		return nil, false
	}
	p.Reload(proxy.Live{SwitchWait: cfg.SwitchWait, SlowAfter: cfg.SlowRequest, Linger: a.linger(cmd, &cfg)})
	return fs, true
}

// reread reads a proxy's settings as they are now: what was said on the command line
// stays.
func (a *app) reread(cmd *cobra.Command) (config.Config, *pflag.FlagSet, error) {
	var cfg config.Config
	fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	cfg.Flags(fs, config.Proxy)
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if a.cfg.SourceOf(f.Name) != "flag" || err != nil {
			return
		}
		text := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			text = strings.Join(list.GetSlice(), ",")
		}
		err = fs.Set(f.Name, text)
	})
	if err != nil {
		return cfg, nil, err
	}
	src := config.Source{LookupEnv: a.env.LookupEnv, File: a.file}
	if s := a.runningStack(); s != nil {
		src.DevStack = stackSettings(s)
	}
	if cfg.Sources, err = config.Load(fs, config.Proxy, src); err != nil {
		return cfg, nil, err
	}
	return cfg, fs, cfg.Validate(config.Proxy)
}

// linger is how long a proxy lingers at its end: the child of a demo does not.
func (a *app) linger(cmd *cobra.Command, cfg *config.Config) time.Duration {
	if child, err := cmd.Flags().GetBool("child"); err == nil && child && cfg.SourceOf("linger") == "default" {
		return 0
	}
	return cfg.Linger
}
