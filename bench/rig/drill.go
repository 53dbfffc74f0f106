package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Components are what is killed or paused. Source and target are of the switch
// under way; a paused one is a zombie when it wakes.
var Components = []string{"worker", "temporal", "postgres", "kafka", "s3", "source", "target", "proxy", PausedWorker, PausedProxy} //nolint:gochecknoglobals // a constant

// What is stopped in its tracks, and wakes when others have done its work.
const (
	PausedWorker = "worker-paused"
	PausedProxy  = "proxy-paused"
)

// Points of a move: one in its import, one in its lanes, the steps of a switch, the
// way back from a fence, and one in the clean-up.
const (
	ImportPoint   = "import.stored"
	LanePoint     = "lane.written"
	AbortingPoint = "switch.aborting"
	CleanupPoint  = "drop.grants"
	fencedPoint   = "switch.fenced"
)

// SwitchPoints are the steps of a switch, in their order.
var SwitchPoints = []string{ //nolint:gochecknoglobals // a constant
	"switch.prepared", "switch.fence-written", fencedPoint, "switch.drained", "switch.closed", "switch.ready",
	"switch.before-publish", "switch.published", "switch.granted",
}

// arm lets the next worker that passes a point hold there.
func (r *Rig) arm(point string) error {
	if err := r.disarm(point); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.drillDir(), point), nil, 0o600)
}

// disarm removes what is left of a drill.
func (r *Rig) disarm(point string) error {
	left, err := filepath.Glob(filepath.Join(r.drillDir(), point+"*"))
	for _, f := range left {
		if e := os.Remove(f); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// standing is a worker that holds at a point.
type standing struct {
	worker *process
	file   string
}

// goOn lets it go on.
func (s standing) goOn() error { return os.WriteFile(s.file+".go", nil, 0o600) }

// left reports whether it has gone on.
func (s standing) left() bool {
	_, err := os.Stat(s.file)
	return err != nil
}

// held waits until a worker holds at a point.
func (r *Rig) held(ctx context.Context, point string) (s standing, err error) {
	err = until(ctx, "a worker comes to "+point, func() (bool, error) {
		found, err := filepath.Glob(filepath.Join(r.drillDir(), point+".[0-9]*"))
		if err != nil || len(found) == 0 {
			return false, err
		}
		pid, err := strconv.Atoi(found[0][strings.LastIndexByte(found[0], '.')+1:])
		if err != nil {
			return false, err
		}
		s.file = found[0]
		s.worker, err = r.worker(pid)
		return err == nil, err
	})
	if err != nil {
		err = fmt.Errorf("%w (%s)", err, r.standsAt(ctx))
	}
	return s, err
}

// strike waits until a worker holds at the cell's point, kills or pauses the
// component, lets the others go on and starts again what was killed. wake brings
// back what was paused.
func (r *Rig) strike(ctx context.Context, c *Cell, source, target string) (wake func(context.Context) error, err error) {
	wake = func(context.Context) error { return nil }
	at, err := r.held(ctx, c.Point)
	if err != nil {
		return wake, err
	}
	switch c.Component {
	case "worker":
		at.worker.kill()
		return wake, r.revive()
	case "proxy":
		r.proxies[0].kill()
		return wake, errors.Join(at.goOn(), r.revive())
	case PausedWorker:
		return func(ctx context.Context) error { return r.wake(ctx, at.worker, &at) }, at.worker.pause()
	case PausedProxy:
		p := r.proxies[0]
		return func(ctx context.Context) error { return r.wake(ctx, p, nil) }, errors.Join(p.pause(), at.goOn())
	case "source":
		err = r.killPart(ctx, source)
	case "target":
		err = r.killPart(ctx, target)
	default:
		err = r.killPart(ctx, c.Component)
	}
	if err != nil {
		return wake, err
	}
	err = errors.Join(at.goOn(), r.heal(ctx))
	c.returned = time.Now()
	return wake, err
}

// wake lets a zombie go on, and waits until it and the application have done so.
func (r *Rig) wake(ctx context.Context, p *process, at *standing) error {
	if at != nil {
		if err := at.goOn(); err != nil {
			return err
		}
	}
	if err := p.resume(); err != nil {
		return err
	}
	before := r.work.Acknowledged()
	return until(ctx, "the woken one goes on", func() (bool, error) {
		return (at == nil || at.left()) && r.work.Acknowledged() > before+int64(2*r.o.Rate), nil
	})
}

// patience bounds every wait; it is no expectation.
const patience = 2 * time.Minute

var errImpatient = errors.New("it did not come within " + patience.String())

// until waits for a condition.
func until(ctx context.Context, what string, is func() (bool, error)) error {
	return untilEvery(ctx, 20*time.Millisecond, what, is)
}

// untilEvery waits for a condition that costs something to look at.
func untilEvery(ctx context.Context, every time.Duration, what string, is func() (bool, error)) error {
	deadline := time.After(patience)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ok, err := is()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("%s: %w", what, errImpatient)
		case <-tick.C:
		}
	}
}
