package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"

	"drover/chunk"
	"drover/cli/console"
	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
	"drover/starter"
)

func newConsoleCommand(a *app) *cobra.Command {
	var listen, ui, alarms string
	c := &cobra.Command{
		Use: "console", Short: "Serve a page that shows the fleet, its moves and switches", Args: cobra.NoArgs,
		Long: "Serve a page that shows the fleet: who lives where and how hot it is, alarms, moves and why they wait, switches and how long writes\n" +
			"waited, leases, stragglers. It only reads, and works with a part of the stack down. Nobody logs in to it: keep --listen off public addresses. /fleet.json has the same as JSON.",
		Example: "  drover console --listen 127.0.0.1:8090",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.load(cmd, config.Common); err != nil {
				return err
			}
			if s := a.runningStack(); s != nil && ui == "" {
				ui = s.Temporal.UI
			}
			return a.serveConsole(cmd.Context(), listen, ui, alarms)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8090", "host:port of the page")
	c.Flags().StringVar(&ui, "temporal-ui", "", "address of Temporal's UI, for links; empty: that of the running dev stack")
	c.Flags().StringVar(&alarms, "alertmanager", "", "address of Alertmanager, whose alarms are shown, as http://127.0.0.1:9093; empty: those that the metadata shows by itself")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// serveConsole serves the page until ctx ends.
func (a *app) serveConsole(ctx context.Context, listen, ui, alarms string) error {
	logger, err := a.logger()
	if err != nil {
		return &usageError{err}
	}
	store, err := metadata.OpenLazily(ctx, a.cfg.PostgresDSN)
	if err != nil {
		return err
	}
	defer store.Close()
	ask := &asker{app: a}
	defer ask.close()
	c := &console.Console{
		Fleet: a.fleet(), Read: func(ctx context.Context) (console.Snapshot, error) { return snapshot(ctx, store) }, Ask: ask.status,
		Parts: a.consoleParts(), Log: logger, Now: time.Now,
	}
	if alarms != "" {
		c.Alarms = console.Alertmanager(alarms)
	}
	if ui != "" {
		c.Temporal = func(id string) string {
			return strings.TrimRight(ui, "/") + "/namespaces/" + url.PathEscape(a.cfg.TemporalNamespace) + "/workflows/" + url.PathEscape(id)
		}
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen at %s: %w", listen, err)
	}
	if err := a.told("the console is at http://%s", ln.Addr()); err != nil {
		return err
	}
	srv := &http.Server{Handler: c.Handler(), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// consoleParts are the parts of the stack besides the metadata.
func (a *app) consoleParts() []console.Part {
	dials := func(address string) func(context.Context) error {
		return func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return err
			}
			return conn.Close()
		}
	}
	parts := []console.Part{{
		Name: "Temporal", Address: a.cfg.TemporalAddress, Check: dials(a.cfg.TemporalAddress),
		Without: "moves stand still where they are; open fences are ended by the watchdog",
	}}
	for _, b := range a.cfg.KafkaBrokers {
		parts = append(parts, console.Part{
			Name: "Kafka", Address: b, Check: dials(b), Without: "nothing is captured and nothing applied; moves go on when it is back",
		})
	}
	if u, err := url.Parse(a.cfg.S3Endpoint); err == nil && u.Host != "" {
		host := u.Host
		if u.Port() == "" {
			host = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80"}[u.Scheme]+map[bool]string{true: "443"}[u.Scheme != "http"])
		}
		parts = append(parts, console.Part{Name: "S3", Address: host, Check: dials(host), Without: "no import goes on and nothing is archived"})
	}
	return parts
}

// asker asks the workflows of moves, and connects to Temporal when it can be reached.
type asker struct {
	app *app
	mu  sync.Mutex
	c   client.Client
}

// status asks one move.
func (k *asker) status(ctx context.Context, id chunk.ID) (contract.Status, error) {
	c, err := k.client(ctx)
	if err != nil {
		return contract.Status{}, err
	}
	return starter.New(c).Status(ctx, id)
}

// client is the connection, made when there is none.
func (k *asker) client(ctx context.Context) (client.Client, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.c != nil {
		return k.c, nil
	}
	c, err := starter.Dial(ctx, k.app.cfg.TemporalAddress, k.app.cfg.TemporalNamespace, k.app.quiet())
	if err == nil {
		k.c = c
	}
	return c, err
}

// close ends the connection.
func (k *asker) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.c != nil {
		k.c.Close()
	}
}

const (
	// shownMoves is how many moves the console shows, and shownSwitches how many switches.
	shownMoves, shownSwitches = 40, 25
	// shownRepairs is how long ago repairs may have begun that the console shows.
	shownRepairs = 24 * time.Hour
)

// snapshot reads what the console shows.
func snapshot(ctx context.Context, store *metadata.Store) (s console.Snapshot, err error) {
	s.At = time.Now()
	for _, read := range []func() error{
		func() error { s.Shards, err = store.Shards(ctx); return err },
		func() error { s.Routes, err = store.Routes(ctx, ""); return err },
		func() error { s.Figures, err = store.Figures(ctx); return err },
		func() error { s.Leases, err = store.Leases(ctx); return err },
		func() error { s.Stragglers, err = store.Stragglers(ctx); return err },
		func() error { s.Proxies, err = store.LiveProxies(ctx); return err },
		func() error { s.Runs, err = store.Remediations(ctx, shownRepairs); return err },
		func() error { s.Stop, err = store.RemediationStop(ctx); return err },
		func() error { s.Loads, err = store.Loads(ctx); return err },
		func() error { s.Windows, err = store.Windows(ctx, console.WindowsOf); return err },
		func() error { return shownMovesOf(ctx, store, &s) },
	} {
		if err := read(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// shownMovesOf reads the unfinished moves, the newest others, and their switches.
func shownMovesOf(ctx context.Context, store *metadata.Store, s *console.Snapshot) error {
	open, err := store.Migrations(ctx, metadata.MigrationFilter{Unfinished: true})
	if err != nil {
		return err
	}
	newest, err := store.Migrations(ctx, metadata.MigrationFilter{Limit: shownMoves})
	if err != nil {
		return err
	}
	s.Moves = open
	for _, m := range newest {
		if m.Phase.Final() {
			s.Moves = append(s.Moves, m)
		}
	}
	for _, m := range s.Moves {
		if len(s.Attempts) >= shownSwitches {
			break
		}
		attempts, err := store.Attempts(ctx, m.ID)
		if err != nil {
			return err
		}
		for i := len(attempts) - 1; i >= 0; i-- {
			x := console.Attempt{Attempt: attempts[i]}
			steps, ok, err := store.Steps(ctx, x.ID)
			if err == nil && ok {
				err = json.Unmarshal(steps, &x.Steps)
			}
			if err != nil {
				return err
			}
			s.Attempts = append(s.Attempts, x)
		}
	}
	return nil
}
