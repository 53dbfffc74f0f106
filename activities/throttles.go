package activities

import (
	"context"
	"sync"

	"drover/bulkimport"
	"drover/shard"
)

// throttles are those of the shards that this process's imports read or load.
type throttles struct {
	mu sync.Mutex
	by map[throttled]*bulkimport.Throttle
}

// throttled tells a shard that was registered anew from what it was before.
type throttled struct{ name, uri string }

// of gives a shard's throttle, nil when there are no bounds.
func (t *throttles) of(bounds bulkimport.Bounds, set *shard.Set) *bulkimport.Throttle {
	if bounds == (bulkimport.Bounds{}) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := throttled{set.Name(), set.Shard().URI}
	if t.by == nil {
		t.by = map[throttled]*bulkimport.Throttle{}
	}
	if t.by[key] == nil {
		t.by[key] = &bulkimport.Throttle{Name: set.Name(), Bounds: bounds, Look: func(ctx context.Context) (bulkimport.Health, error) {
			h, err := set.Health(ctx)
			return bulkimport.Health(h), err
		}}
	}
	return t.by[key]
}
