package testkit

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browserPatience bounds all that a browser is asked.
const browserPatience = 3 * time.Minute

// Browser is a headless Chromium with one page.
type Browser struct {
	t       testing.TB
	ctx     context.Context //nolint:containedctx // the life of the browser
	to      *os.File
	from    *bufio.Reader
	last    int
	session string
}

// message is one of DevTools' protocol.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// OpenBrowser starts Chromium, which ends with the test. Nothing but tests of how pages
// look needs one: where there is none, and `make setup` cannot install it, the test is
// skipped.
func OpenBrowser(t testing.TB, wide, high int) *Browser {
	t.Helper()
	SkipShort(t)
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("there is no Chromium on this machine: how the page looks is not tested")
	}
	ctx, cancel := context.WithTimeout(context.Background(), browserPatience)
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "browser") // the test's own would be gone too soon, see removed
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", //nolint:gosec // found above
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
		"--user-data-dir="+filepath.Join(home, "profile"), "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home)
	cmd.ExtraFiles = []*os.File{theirs, answers}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	_, _ = theirs.Close(), answers.Close()
	b := &Browser{t: t, ctx: ctx, to: to, from: bufio.NewReader(from)}
	stop := context.AfterFunc(ctx, func() { _ = from.Close() }) // whoever waits for an answer
	t.Cleanup(func() {
		stop()
		cancel()
		_ = to.Close()
		_ = cmd.Wait() // it was killed
		_ = from.Close()
		removed(t, home)
	})
	b.attach(wide, high)
	return b
}

// removed takes a browser's files away. Its helpers may write for a moment after it was
// killed.
func removed(t testing.TB, home string) {
	t.Helper()
	require.Eventually(t, func() bool { return os.RemoveAll(home) == nil }, time.Minute, 10*time.Millisecond, "remove the browser's files")
}

// attach makes the page.
func (b *Browser) attach(wide, high int) {
	b.t.Helper()
	var made struct {
		ID string `json:"targetId"`
	}
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	var attached struct {
		Session string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", map[string]any{"targetId": made.ID, "flatten": true}, &attached)
	b.session = attached.Session
	b.call("Page.enable", nil, nil)
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Go opens an address and waits until the page is loaded.
func (b *Browser) Go(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	for b.read().Method != "Page.loadEventFired" {
	}
}

// Eval runs JavaScript on the page, whose value is read into out as JSON.
func (b *Browser) Eval(script string, out any) {
	b.t.Helper()
	var got struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Failed json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true}, &got)
	if got.Failed != nil {
		b.t.Fatalf("on the page: %s", got.Failed)
	}
	if err := json.Unmarshal(got.Result.Value, out); err != nil {
		b.t.Fatalf("read %s: %v", got.Result.Value, err)
	}
}

// Shot gives a picture of the whole page, as PNG.
func (b *Browser) Shot() []byte {
	b.t.Helper()
	var got struct {
		Data string `json:"data"`
	}
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &got)
	png, err := base64.StdEncoding.DecodeString(got.Data)
	if err != nil {
		b.t.Fatalf("read the picture: %v", err)
	}
	return png
}

// call sends a command and reads on until its answer comes.
func (b *Browser) call(method string, params, out any) {
	b.t.Helper()
	b.last++
	id := b.last
	text, err := json.Marshal(message{ID: id, Session: b.session, Method: method, Params: params})
	if err == nil {
		_, err = b.to.Write(append(text, 0))
	}
	if err != nil {
		b.t.Fatalf("ask the browser for %s: %v", method, err)
	}
	for {
		m := b.read()
		if m.ID != id {
			continue
		}
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error)
		}
		if out != nil {
			if err := json.Unmarshal(m.Result, out); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
		return
	}
}

// read takes the next message.
func (b *Browser) read() (m message) {
	b.t.Helper()
	text, err := b.from.ReadBytes(0)
	if err == nil {
		err = json.Unmarshal(text[:len(text)-1], &m)
	}
	if err != nil {
		b.t.Fatal(fmt.Errorf("read what the browser says: %w (%w)", err, context.Cause(b.ctx)))
	}
	return m
}
