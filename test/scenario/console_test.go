package scenario_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/cli/console"
	"drover/internal/testkit"
)

// consoleShows starts a console and waits until its page is as wanted.
func (f *fleet) consoleShows(name string, is func(console.Page) bool, args ...string) console.Page {
	f.t.Helper()
	addr := f.startListening(name, append([]string{"console"}, args...)...)
	var page console.Page
	ok := eventually(f.t, func() bool {
		page = console.Page{}
		res, err := http.Get("http://" + addr + "/fleet.json") //nolint:gosec,noctx // loopback
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		return json.NewDecoder(io.LimitReader(res.Body, 10<<20)).Decode(&page) == nil && is(page)
	})
	require.True(f.t, ok, "%s: %+v", name, page)
	if dir := os.Getenv("DROVER_SHOTS"); dir != "" {
		b := testkit.OpenBrowser(f.t, 1280, 900)
		b.Go("http://" + addr)
		require.NoError(f.t, os.WriteFile(filepath.Join(dir, name+".png"), b.Shot(), 0o600))
	}
	return page
}

// consoleWithPartsDown looks at the fleet in burn-in with Temporal out of reach, and
// with the metadata out of reach: each time the part is named, and the rest is shown.
func (f *fleet) consoleWithPartsDown() {
	f.t.Helper()
	source, target := f.hot.Placement.Shard, f.target()
	page := f.consoleShows("console-temporal-down", func(p console.Page) bool { // proxies have said that the application works there
		return p.Known && len(p.Moves) == 1 && slices.ContainsFunc(p.Shards, func(s console.ShardView) bool { return s.Name == target && s.Heat > 0 })
	}, "--temporal-address", "127.0.0.1:1")
	require.Equal(f.t, chunk.BurnIn, page.Moves[0].Phase)
	require.Contains(f.t, page.Moves[0].Waits, "does not answer")
	require.NotEmpty(f.t, page.Windows.Buckets)
	for _, part := range page.Parts {
		require.Equal(f.t, part.Name != "Temporal", part.Up, "%+v", part)
	}
	for _, s := range page.Shards {
		switch s.Name {
		case source:
			require.Equal(f.t, []string{"way back of " + string(f.hot.Chunk.ID)}, s.Depends)
			require.Len(f.t, s.Kept, 1)
		case target:
			require.Len(f.t, s.Chunks, 1)
		}
	}
	page = f.consoleShows("console-metadata-down", func(p console.Page) bool { return p.Problem != "" }, "--postgres-dsn", "postgres://127.0.0.1:1/x")
	require.False(f.t, page.Known)
	for _, part := range page.Parts {
		require.Equal(f.t, part.Name != "metadata (Postgres)", part.Up, "%+v", part)
	}
}
