package activities

import (
	"context"
	"errors"
	"sync"
	"time"

	"drover/internal/failure"
	"drover/internal/pause"
)

// renewEvery is how often work that waits out every trouble looks whether its files were
// renewed: soon enough for certificates that hold for minutes, and long before a former client ends.
const renewEvery = 10 * time.Second

// renewable is a shard as it was when some work began.
type renewable interface {
	Name() string
	// Renewed reports whether the clients that the work has were made from former files.
	Renewed() bool
}

// renewing runs work that waits out every trouble of its shards, with the clients that it
// has. It ends when the files of one were renewed, so as to begin anew with others: the
// clients that it has get no new connection once their certificates have expired, and
// those that it does not use for a while are taken away.
func renewing(ctx context.Context, work func(context.Context) error, shards ...renewable) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for pause.For(ctx, renewEvery) == nil {
			for _, s := range shards {
				if s.Renewed() {
					cancel(failure.New(failure.Transient, "shard.renewed", "the certificates for shard %s were renewed; the work goes on with new connections", s.Name()))
				}
			}
		}
	})
	err := work(ctx)
	cause := context.Cause(ctx)
	cancel(nil)
	watch.Wait()
	if endedBy(err) && failure.HasCode(cause, "shard.renewed") {
		return cause
	}
	return err
}

// endedBy reports whether an error may come of work being told to end: what is for good is the work's own.
func endedBy(err error) bool {
	return errors.Is(err, context.Canceled) || failure.Is(err, failure.Transient)
}
