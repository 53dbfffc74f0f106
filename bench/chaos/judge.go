package main

import (
	"context"
	"fmt"

	"drover/demo/workload"
)

// compare holds the application still and compares every document.
func (r *rig) compare(ctx context.Context) (workload.Verdict, error) {
	resume := r.work.Pause()
	defer resume()
	var v workload.Verdict
	err := until(ctx, "every document can be read", func() (bool, error) {
		var err error
		v, err = r.work.Check(ctx)
		return err == nil, nil
	})
	return v, err
}

// settle ends the move and looks at what only the end shows.
func (r *rig) settle(ctx context.Context, rep *report) error {
	rep.Acknowledged = r.work.Acknowledged()
	rep.ClientErrors, _ = r.work.Errors()
	stragglers, err := r.store.Stragglers(ctx)
	if err != nil {
		return err
	}
	if rep.Stragglers = len(stragglers); rep.Stragglers > 0 {
		rep.Failed++
		return fmt.Errorf("%d stragglers, the first: %+v", len(stragglers), stragglers[0])
	}
	return nil
}
