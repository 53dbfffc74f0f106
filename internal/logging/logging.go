// Package logging makes the one logger of a process.
package logging

import (
	"fmt"
	"io"
	"log/slog"
)

// NewVar is New with a level that may change: it is put into l.
func NewVar(w io.Writer, l *slog.LevelVar, level string) (*slog.Logger, error) {
	if err := SetLevel(l, level); err != nil {
		return nil, err
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})), nil
}

// SetLevel sets a level by its name.
func SetLevel(l *slog.LevelVar, level string) error {
	var to slog.Level
	if err := to.UnmarshalText([]byte(level)); err != nil {
		return fmt.Errorf("log-level %q: want debug, info, warn or error", level)
	}
	l.Set(to)
	return nil
}

// New writes JSON lines of level and above to w.
func New(w io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log-level %q: want debug, info, warn or error", level)
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l})), nil
}
