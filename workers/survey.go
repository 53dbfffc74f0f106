package workers

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/cdc"
	"drover/chunk"
	"drover/internal/config"
	"drover/metadata"
	"drover/shard"
)

const (
	// surveyFor bounds what a survey asks of one shard.
	surveyFor = 10 * time.Second
	// surveyedAtOnce is how many shards a survey asks at once.
	surveyedAtOnce = 8
)

// Surveyed is what a survey found about one shard.
type Surveyed struct {
	Shard     string
	Beside    shard.Beside
	BesideErr error // why the shard was not asked
	Kafka     cdc.Kept
	KafkaErr  error         // why Kafka was not asked
	OwnLog    time.Duration // how far the shard's own log goes back; 0: the server does not say
}

// Survey asks every shard who has a hand in it beside Drover, and how long its logs are
// kept. What cannot be reached is said in the answer. It only reads.
func Survey(ctx context.Context, cfg *config.Config, store *metadata.Store) ([]Surveyed, error) {
	all, err := store.Shards(ctx)
	if err != nil {
		return nil, err
	}
	routes, err := store.Routes(ctx, "")
	if err != nil {
		return nil, err
	}
	own := map[string][]string{} // databases that were adopted, by shard
	for _, r := range routes {
		if _, ok := chunk.PlacementOf(r.Placement.Database); !ok {
			own[r.Placement.Shard] = append(own[r.Placement.Shard], r.Placement.Database)
		}
	}
	log, err := cdc.NewLog(cfg.KafkaBrokers)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	clients := shard.NewClients(cfg.Secret, shard.Options{})
	defer func() { _ = clients.Close(context.WithoutCancel(ctx)) }()
	out := make([]Surveyed, len(all))
	var g errgroup.Group
	g.SetLimit(surveyedAtOnce)
	for i, sh := range all {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, surveyFor)
			defer cancel()
			out[i] = surveyed(ctx, clients, log, sh, own[sh.Name])
			return nil
		})
	}
	return out, g.Wait()
}

// surveyed asks one shard, and Kafka about it.
func surveyed(ctx context.Context, clients *shard.Clients, log *cdc.Log, sh chunk.Shard, own []string) Surveyed {
	out := Surveyed{Shard: sh.Name}
	out.Kafka, out.KafkaErr = log.Kept(ctx, sh.Name)
	set, err := clients.Set(sh)
	if err == nil {
		out.Beside, err = set.WhoBeside(ctx, own...)
	}
	if out.BesideErr = err; err != nil {
		return out
	}
	if c, err := set.Client(chunk.CaptureUser); err == nil {
		if oldest, ok, err := cdc.OldestChange(ctx, c, sh.Name); err == nil && ok {
			out.OwnLog = time.Since(oldest)
		}
	}
	return out
}
