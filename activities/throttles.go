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
				h.Heard, err = answersOf(ctx, a.Store, set.Name())
			}
			h.Answer, h.Dirty, h.Used, h.Lag, h.Behind = now.Answer, now.Dirty, now.Used, now.Lag, now.Behind
			return h, err
		}}
	}
	return t.by[key]
}

// answersOf is what the proxies say of a shard's answers.
func answersOf(ctx context.Context, store *metadata.Store, name string) (bulkimport.Heard, error) {
	words, err := store.Answers(ctx, name)
	if err != nil {
		return bulkimport.Heard{}, err
	}
	return heardBy(words, name)
}

// heardBy reads what proxies say.
func heardBy(words []metadata.Answer, name string) (bulkimport.Heard, error) {
	out := bulkimport.Heard{Served: bulkimport.Served{}, Before: map[string][][]int64{}}
	for _, w := range words {
		if w.Word == nil {
			out.Silent = true
			continue
		}
		var word struct {
			Took []int64 `json:"took"`
		}
		if err := json.Unmarshal(w.Word, &word); err != nil {
			return out, fmt.Errorf("read what %s says of %s: %w", w.Proxy, name, err)
		}
		out.Served[w.Proxy] = word.Took
		if w.Before == nil {
			continue
		}
		var before [][]int64
		if err := json.Unmarshal(w.Before, &before); err != nil {
			return out, fmt.Errorf("read what %s said of %s: %w", w.Proxy, name, err)
		}
		out.Before[w.Proxy] = before
	}
	return out, nil
}
