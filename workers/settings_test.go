package workers

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/metadata"
	"drover/proxy"
)

// TestHealthOfPlacementsWithoutAnswers: a placement on which a transaction waits for its
// first answer has no histogram yet, wherever it comes in the list.
func TestHealthOfPlacementsWithoutAnswers(t *testing.T) {
	t.Parallel()

	silent := proxy.Traffic{Placement: 1, Transactions: 1}
	served := proxy.Traffic{Placement: 2, Requests: 4, Errors: 1, Latency: []int64{0, 0, 4}}
	for _, all := range [][]proxy.Traffic{{silent, served}, {served, silent}} {
		h := healthOf(all)
		require.Equal(t, int64(4), h.Requests)
		require.Equal(t, int64(1), h.Errors)
		require.InDelta(t, float64(proxy.TrafficEdge(2).Microseconds())/1000, h.P99MS, 0.001)
	}
	require.Zero(t, healthOf([]proxy.Traffic{silent}).P99MS)
}

// oneVersion is a fleet whose settings are always the same version.
type oneVersion struct{}

// SettingsOf implements [liveSettings].
func (oneVersion) SettingsOf(context.Context, string) (metadata.Settings, error) {
	return metadata.Settings{Version: 7, Content: "new"}, nil
}

// TestSettingsThatWereNotTakenOverAreTriedAgain, and are told once: a proxy's own file
// may have been broken at that moment.
func TestSettingsThatWereNotTakenOverAreTriedAgain(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var tries int
		s := &self{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		followSettings(ctx, oneVersion{}, "p", s, ProxyOptions{
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Settings: func(context.Context, string) error {
				if tries++; tries < 4 {
					return errors.New("its own file is broken")
				}
				return nil
			},
		})
		require.Equal(t, 4, tries, "what was taken over is left alone")
		require.Equal(t, int64(7), s.settings.Load())
		require.Equal(t, 1, strings.Count(log.String(), "are not taken over"))
		require.Equal(t, 1, strings.Count(log.String(), "are taken over"))
	})
}
