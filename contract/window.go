package contract

import (
	"fmt"
	"strings"
	"time"
)

// Window is a part of every day, in UTC. One that ends before it begins goes
// over midnight.
type Window struct{ from, to time.Duration } // since midnight

// ParseWindow reads "22:00-04:00".
func ParseWindow(s string) (Window, error) {
	from, to, ok := strings.Cut(s, "-")
	var w Window
	var err error
	if ok {
		if w.from, err = clockTime(from); err == nil {
			w.to, err = clockTime(to)
		}
	}
	switch {
	case !ok || err != nil:
		return w, fmt.Errorf(`%q is no window; want two times of day in UTC, as "22:00-04:00"`, s)
	case w.from == w.to:
		return w, fmt.Errorf(`%q is no window: it is empty or the whole day; want two different times, or none for any time`, s)
	}
	return w, nil
}

// clockTime reads "22:00".
func clockTime(s string) (time.Duration, error) {
	t, err := time.Parse("15:04", strings.TrimSpace(s))
	if err != nil {
		return 0, err
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, nil
}

// Until tells how long it is from t to the window; 0 within it.
func (w Window) Until(t time.Time) time.Duration {
	if w.Left(t) > 0 {
		return 0
	}
	return after(w.from, t)
}

// Left tells how long the window is open from t on; 0 outside of it.
func (w Window) Left(t time.Time) time.Duration {
	left := after(w.to, t)
	if length := after(w.to, time.Time{}.Add(w.from)); left > length {
		return 0
	}
	return left
}

// after tells how long it is from t to a time of day, more than nothing.
func after(of time.Duration, t time.Time) time.Duration {
	t = t.UTC()
	now := t.Sub(time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC))
	if of > now {
		return of - now
	}
	return of + 24*time.Hour - now
}
