// Package figures is what every benchmark does with its figures and its process.
package figures

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
)

// Main runs a benchmark until it ends or is interrupted, and ends the process with
// status 1 where it failed.
func Main(run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Write puts a report into a file, as JSON, and gives the text.
func Write(path string, report any) (text string, err error) {
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return string(b), err
	}
	return string(b), os.WriteFile(path, append(b, '\n'), 0o600)
}

// Quantile of values, by the nearest rank; zero of none.
func Quantile[T cmp.Ordered](values []T, q float64) (v T) {
	if len(values) == 0 {
		return v
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
