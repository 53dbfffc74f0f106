// Package pause waits for a time that a context may end.
package pause

import (
	"context"
	"time"
)

// For returns after d, or before that with ctx's cause.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
