package replication

import (
	"context"
	"sync"
	"time"
)

// Lanes is all lanes of one direction, one for each partition that can hold events of its source.
type Lanes struct {
	cfg   Config
	lanes []*Lane
	hold  *hold
}

// NewLanes makes the lanes of a direction; nothing is read or written.
func NewLanes(cfg Config) (*Lanes, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	ls := &Lanes{cfg: cfg, hold: newHold()}
	partitions, err := cfg.Direction.partitions()
	if err != nil {
		return nil, err
	}
	for _, p := range partitions {
		l, err := NewLane(cfg, p)
		if err != nil {
			return nil, err
		}
		l.hold = ls.hold
		l.released = func() { ls.wake(l) }
		ls.lanes = append(ls.lanes, l)
	}
	return ls, nil
}

// wake tells the other lanes that l may have released a key that one of them
// waits for.
func (ls *Lanes) wake(l *Lane) {
	for _, o := range ls.lanes {
		if o != l && o.parked.count.Load() > 0 {
			signal(o.kick)
		}
	}
}

// Run takes every lane and applies until ctx ends or one of them stops; then
// the others are stopped, and that lane's error is returned. It is
// failure.Lost lane.closed after [CloseLanes], lane.lost when somebody else has
// taken a lane.
//
// If interrupted: run it again, here or elsewhere. Each lane goes on where its
// checkpoint stands.
func (ls *Lanes) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	var once sync.Once
	var first error
	for _, l := range ls.lanes {
		group.Go(func() {
			err := l.Take(ctx)
			if err == nil {
				err = l.Run(ctx)
			}
			once.Do(func() {
				first = err
				stop(errStopped)
			})
		})
	}
	group.Wait()
	return first
}

// Pause lets every lane finish its batch and then wait; markers wait too.
func (ls *Lanes) Pause() { ls.hold.set(true) }

// Resume ends a pause.
func (ls *Lanes) Resume() { ls.hold.set(false) }

// Paused reports whether the lanes wait.
func (ls *Lanes) Paused() bool { return ls.hold.held() }

// Status tells how each lane stands.
func (ls *Lanes) Status() []Status {
	all := make([]Status, len(ls.lanes))
	for i, l := range ls.lanes {
		all[i] = l.Status()
	}
	return all
}

// Rates sums up the lanes over the last minute; a gate looks at its latency.
func (ls *Lanes) Rates() Rates {
	windows := make([]*window, len(ls.lanes))
	for i, l := range ls.lanes {
		windows[i] = &l.gauge.window
	}
	return rates(time.Now(), windows...)
}

// ParkedCount counts the documents of the migration that wait for a unique key,
// read with majority.
func (ls *Lanes) ParkedCount(ctx context.Context) (int64, error) {
	return ParkedCount(ctx, ls.cfg.Target, ls.cfg.Direction.Migration)
}
