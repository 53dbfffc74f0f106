package workers

import (
	"context"
	"log/slog"

	"drover/activities"
	"drover/cdc"
	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
	"drover/shard"
)

// PlanMove says what a move would meet and how long it would take, in this process
// and without a worker. Nothing is written, not even the metadata's schema.
func PlanMove(ctx context.Context, cfg *config.Config, store *metadata.Store, l *slog.Logger, in contract.MigrateInput) (contract.MovePlan, error) {
	log, err := cdc.NewLog(cfg.KafkaBrokers)
	if err != nil {
		return contract.MovePlan{}, err
	}
	defer log.Close()
	clients := shard.NewClients(cfg.Secret, shard.Options{})
	defer func() { _ = clients.Close(context.WithoutCancel(ctx)) }()
	sides := activities.NewSides(store, clients, cfg.KafkaPartitions)
	defer sides.Close(context.WithoutCancel(ctx))
	a := &activities.Activities{
		Store: store, Shards: clients, Secret: cfg.Secret, Log: log, Brokers: cfg.KafkaBrokers, S3: S3(cfg), Bucket: cfg.S3Bucket, Sides: sides, Logger: l,
		Settings: activities.Settings{Gate: gateLimits(cfg), Partitions: cfg.KafkaPartitions, ArchiveRetention: cfg.ArchiveRetention},
	}
	return a.PlanMove(ctx, in)
}
