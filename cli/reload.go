package cli

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
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

// follower takes over what changes in a running proxy's settings: at SIGHUP, when the
// configuration file was written, and when what is kept for the whole fleet changes. What
// is wrong changes nothing; what can't change while the proxy runs is named.
// Certificates, users and policies need none of this: they are looked at all the time.
type follower struct {
	a      *app
	cmd    *cobra.Command
	proxy  *proxy.Proxy
	logger *slog.Logger
	mu     sync.Mutex
	was    *pflag.FlagSet    // what is in force
	fleet  map[string]string // kept for the whole fleet
}

// newFollower begins with the settings that the command was started with.
func (a *app) newFollower(cmd *cobra.Command, p *proxy.Proxy, logger *slog.Logger) *follower {
	return &follower{a: a, cmd: cmd, proxy: p, logger: logger, was: cmd.Flags()}
}

// run follows signals and the file until ctx ends.
func (f *follower) run(ctx context.Context) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	tick := time.NewTicker(filePause)
	defer tick.Stop()
	written := modified(f.a.file)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		case <-tick.C:
			if now := modified(f.a.file); now.Equal(written) {
				continue
			}
		}
		written = modified(f.a.file)
		f.mu.Lock()
		if err := f.takeOver(ctx); err != nil {
			f.logger.ErrorContext(ctx, "Changed settings are not taken over", slog.Any("error", err))
		}
		f.mu.Unlock()
	}
}

// ofFleet takes over what is kept for the whole fleet; see [workers.ProxyOptions].
func (f *follower) ofFleet(ctx context.Context, content string) error {
	s, err := parseSettings([]byte(content))
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.fleet
	f.fleet = s.proxy
	if err := f.takeOver(ctx); err != nil {
		f.fleet = before
		return err
	}
	return nil
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

// takeOver reads the settings anew and applies what has changed.
func (f *follower) takeOver(ctx context.Context) error {
	cfg, fs, err := f.a.reread(f.cmd, f.fleet)
	if err != nil {
		return err
	}
	for _, name := range config.Changed(f.was, fs, config.Proxy) {
		switch {
		case !config.Live(name):
			f.logger.WarnContext(ctx, "A changed setting needs a restart", slog.String("setting", name))
		default:
			f.logger.InfoContext(ctx, "A changed setting is taken over", slog.String("setting", name), slog.String("value", fs.Lookup(name).Value.String()))
		}
	}
	if err := logging.SetLevel(&f.a.level, cfg.LogLevel); err != nil {
		return err
	}
	f.proxy.Reload(proxy.Live{SwitchWait: cfg.SwitchWait, SlowAfter: cfg.SlowRequest, Linger: f.a.linger(f.cmd, &cfg)})
	f.was = fs
	return nil
}

// reread reads a proxy's settings as they are now: what was said on the command line
// stays. What is kept for the whole fleet gives way to what was said to this proxy.
func (a *app) reread(cmd *cobra.Command, fleet map[string]string) (config.Config, *pflag.FlagSet, error) {
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
	src := config.Source{LookupEnv: a.env.LookupEnv, File: a.file, Fleet: fleet}
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
