package workers

import (
	"context"

	"drover/activities"
	"drover/chunk"
	"drover/fleet"
	"drover/metadata"
	"drover/shard"
)

// newBalancer wires intents and the balancer's rounds.
func newBalancer(store *metadata.Store, clients *shard.Clients) *activities.Balancer {
	return &activities.Balancer{Ledger: store, Sizes: Sizes(clients), Counting: Counting(clients)}
}

// Sizes reads the sizes of databases through clients.
func Sizes(clients *shard.Clients) fleet.Sizes {
	return func(ctx context.Context, s chunk.Shard, database string) (int64, error) {
		set, err := clients.Set(s)
		if err != nil {
			return 0, err
		}
		return set.Size(ctx, database)
	}
}

// Counting reads what shards count through clients.
func Counting(clients *shard.Clients) fleet.Counting {
	return func(ctx context.Context, s chunk.Shard, before chunk.Counters) (chunk.Counters, error) {
		set, err := clients.Set(s)
		if err != nil {
			return chunk.Counters{}, err
		}
		return set.Counters(ctx, before)
	}
}
