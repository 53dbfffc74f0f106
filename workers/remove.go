package workers

import (
	"context"
	"time"

	"drover/cdc"
	"drover/chunk"
	"drover/internal/config"
	"drover/metadata"
	"drover/shard"
)

// Leaving is what goes when a shard is removed.
type Leaving struct {
	shard.Remnants
	Topic      string           `json:"topic"`
	Partitions int              `json:"partitions"`
	Records    int64            `json:"records"` // that Kafka still has
	Objects    []cdc.Held       `json:"objects"` // of the archive
	Rows       map[string]int64 `json:"rows"`    // by table
	Unknown    []string         `json:"unknown,omitempty"`
}

// LeavingOf lists what [RemoveShard] would remove. What does not answer is named.
func LeavingOf(ctx context.Context, store *metadata.Store, cfg *config.Config, sh chunk.Shard) (l Leaving, err error) {
	l.Topic = chunk.Topic(sh.Name)
	unknown := func(what string, err error) {
		if err != nil {
			l.Unknown = append(l.Unknown, what+": "+err.Error())
		}
	}
	clients := shard.NewClients(cfg.Secret, shard.Options{})
	defer func() { _ = clients.Close(context.WithoutCancel(ctx)) }()
	within := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, leavingLook)
		defer cancel()
		return f(ctx)
	}
	unknown("what is on its servers", within(func(ctx context.Context) error {
		l.Remnants, err = clients.Remnants(ctx, sh)
		return err
	}))
	unknown("the topic", within(func(ctx context.Context) error {
		log, err := cdc.NewLog(cfg.KafkaBrokers)
		if err != nil {
			return err
		}
		defer log.Close()
		first, err := log.StartOffsets(ctx, sh.Name)
		if err != nil {
			return err
		}
		ends, err := log.EndOffsets(ctx, sh.Name)
		l.Partitions = len(ends)
		for p, end := range ends {
			l.Records += end - first[p]
		}
		return err
	}))
	unknown("the archive", within(func(ctx context.Context) error {
		l.Objects, err = (&cdc.Objects{Client: S3(cfg), Bucket: cfg.S3Bucket}).Held(ctx, sh.Name)
		return err
	}))
	l.Rows, err = store.RowsOf(ctx, sh.Name)
	return l, err
}

// leavingLook is how long each place that a shard leaves something in is waited for.
const leavingLook = 10 * time.Second

// RemoveShard removes what Drover has of a shard whose removal has begun and whose
// capture has ended: users, roles and Drover's database on its servers, the topic of
// its log, the archive of that, and the rows, in this order. uri has an
// administrator's credentials; without one the servers are taken to be gone. It gives
// the number of archived objects that were deleted. If interrupted: run again.
func RemoveShard(ctx context.Context, store *metadata.Store, cfg *config.Config, name, uri string) (int, error) {
	if uri != "" {
		if err := shard.Unregister(ctx, uri, name); err != nil {
			return 0, err
		}
	}
	log, err := cdc.NewLog(cfg.KafkaBrokers)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	if err := log.DeleteTopic(ctx, name); err != nil {
		return 0, err
	}
	n, err := (&cdc.Objects{Client: S3(cfg), Bucket: cfg.S3Bucket}).Forget(ctx, name)
	if err != nil {
		return n, err
	}
	return n, store.RemoveShard(ctx, name)
}
