package console_test

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/cli/console"
	"drover/internal/testkit"
)

// shotsEnv names a folder in which the pictures of the page are kept.
const shotsEnv = "DROVER_SHOTS"

// still serves the page without its refreshing itself, which would take away what is looked at.
func still(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		for name, v := range rec.Header() {
			w.Header()[name] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write([]byte(strings.Replace(rec.Body.String(), `http-equiv="refresh"`, "", 1)))
	})
}

// looks is what a browser made of the page.
type looks struct {
	Overflow int       `json:"overflow"`
	Text     string    `json:"text"`
	Down     []string  `json:"down"`  // parts, in the colour of one that is down
	Bars     []float64 `json:"bars"`  // heights of the histogram
	Heat     []float64 `json:"heat"`  // widths of the shards' heat
	Plain    int       `json:"plain"` // chunks without the colour of their database
}

// look asks the browser.
const look = `(() => {
	const all = s => [...document.querySelectorAll(s)], style = e => getComputedStyle(e);
	return {
		overflow: document.documentElement.scrollWidth - window.innerWidth, text: document.body.innerText,
		down: all('.part').filter(e => style(e).backgroundColor === 'rgb(254, 243, 242)').map(e => e.innerText),
		bars: all('.bars b').map(e => e.getBoundingClientRect().height), heat: all('.heat i').map(e => e.getBoundingClientRect().width),
		plain: all('.chunks .chunk:not(.arriving):not(.kept)').filter(e => style(e).backgroundColor === 'rgba(0, 0, 0, 0)').length,
	};
})()`

// The page in a browser: nothing sticks out, heat and histogram are drawn, and what is
// down is seen to be.
func TestInABrowser(t *testing.T) {
	t.Parallel()

	b := testkit.OpenBrowser(t, 1280, 900)
	f := newFixture()
	srv := httptest.NewServer(still(f.c.Handler()))
	defer srv.Close()
	see := func(name string, c *console.Console) (l looks) {
		t.Helper()
		if c != f.c {
			srv.Config.Handler = still(c.Handler())
		}
		f.now = f.now.Add(time.Minute)
		b.Go(srv.URL + "/?" + name)
		b.Eval(look, &l)
		shot := b.Shot()
		picture, err := png.Decode(bytes.NewReader(shot))
		require.NoError(t, err)
		require.Equal(t, 1280, picture.Bounds().Dx())
		require.NotContains(t, l.Text, "ZgotmplZ")
		require.LessOrEqual(t, l.Overflow, 0, "%s: something sticks out", name)
		if dir := os.Getenv(shotsEnv); dir != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "console-"+name+".png"), shot, 0o600))
		}
		return l
	}
	busy := see("busy", f.c)
	require.Empty(t, busy.Down)
	require.Zero(t, busy.Plain, "chunks have the colour of their database")
	require.Len(t, busy.Bars, 3)
	require.Greater(t, busy.Bars[0], 5*busy.Bars[1], "90 against 6: %v", busy.Bars)
	require.Greater(t, busy.Heat[0], 10*busy.Heat[1], "150.5 against 2: %v", busy.Heat)

	f.kafkaDown, f.askDown = true, true
	down := see("workflows-down", f.c)
	require.Len(t, down.Down, 1)
	require.Contains(t, down.Down[0], "Kafka")
	require.Contains(t, down.Text, "its workflow does not answer; this is what the metadata holds")

	f.metaDown = true
	down = see("metadata-down", f.c)
	require.Len(t, down.Down, 2)
	require.Contains(t, down.Down[0], "metadata (Postgres)")
	require.Contains(t, down.Text, "flights/0001", "what was read before is shown")
	require.Contains(t, down.Text, "old. Applications are served on by the proxies.")

	blind := newFixture()
	blind.metaDown = true
	blind.c.Alarms = func(context.Context) ([]console.Alarm, error) { return nil, errors.New("refused") }
	down = see("blind", blind.c)
	require.Contains(t, down.Text, "Nothing of the fleet is known before it does")
	require.Contains(t, strings.Join(down.Down, " "), "Alertmanager")
	require.NotContains(t, down.Text, "Nothing moves", "what is not known is not said")
}
