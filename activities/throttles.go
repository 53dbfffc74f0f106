package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/bulkimport"
	"drover/metadata"
	"drover/shard"
)

// throttles are those of the shards that this process's imports read or load.
type throttles struct {
	mu sync.Mutex
	by map[throttled]*bulkimport.Throttle
}

// throttled tells a shard that was registered anew from what it was before, and one that
// is read from a secondary from one that is not.
type throttled struct{ name, uri, member string }

// throttle gives a shard's throttle, nil when there are no bounds. Where another member
// than the primary is read, its answers count too.
func (a *Activities) throttle(set *shard.Set, member string, reader *mongo.Client) *bulkimport.Throttle {
	bounds := a.Settings.ImportBounds
	if bounds == (bulkimport.Bounds{}) {
		return nil
	}
	t := &a.throttles
	t.mu.Lock()
	defer t.mu.Unlock()
	key := throttled{set.Name(), set.Shard().URI, member}
	if t.by == nil {
		t.by = map[throttled]*bulkimport.Throttle{}
	}
	if t.by[key] == nil {
		t.by[key] = &bulkimport.Throttle{Name: set.Name(), Bounds: bounds, Edge: a.AnswerEdge, Metrics: a.Metrics.Import, Look: func(ctx context.Context) (h bulkimport.Health, err error) {
			var members []*mongo.Client
			if member != "" {
				members = append(members, reader)
			}
			now, err := set.Health(ctx, members...)
			if err == nil {
				h.Served, err = answersOf(ctx, a.Store, set.Name())
			}
			h.Answer, h.Dirty, h.Used, h.Lag, h.Behind = now.Answer, now.Dirty, now.Used, now.Lag, now.Behind
			return h, err
		}}
	}
	return t.by[key]
}

// answersOf is what the proxies say of a shard's answers.
func answersOf(ctx context.Context, store *metadata.Store, name string) (bulkimport.Served, error) {
	words, err := store.Answers(ctx, name)
	if err != nil {
		return nil, err
	}
	out := bulkimport.Served{}
	for proxy, raw := range words {
		var word struct {
			Took []int64 `json:"took"`
		}
		if err := json.Unmarshal(raw, &word); err != nil {
			return nil, fmt.Errorf("read what %s says of %s: %w", proxy, name, err)
		}
		out[proxy] = word.Took
	}
	return out, nil
}
