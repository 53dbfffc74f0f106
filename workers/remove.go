package workers

import (
	"context"

	"drover/cdc"
	"drover/internal/config"
	"drover/metadata"
	"drover/shard"
)

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
