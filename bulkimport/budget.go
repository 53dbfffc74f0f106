package bulkimport

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Budget bounds what all imports of a process hold in memory together, however
// many there are: a piece of work waits until there is room for it. A nil budget
// has room for everything.
type Budget struct {
	room  *semaphore.Weighted
	total Bytes
}

// NewBudget makes a budget. It is never smaller than what one slice needs.
func NewBudget(total Bytes) *Budget {
	total = max(total, storeFactor*Limits{}.withDefaults().Bytes)
	return &Budget{semaphore.NewWeighted(int64(total)), total}
}

// What work holds, in terms of the documents that it is about: a slice its
// documents, their keys, and the object that is made of them; a merge frames that
// are being fetched and batches that are being sent.
const (
	storeFactor = 3
	loadFactor  = 2
)

// take waits for room and gives it back when the result is called. What is more
// than the whole budget waits for all of it.
func (b *Budget) take(ctx context.Context, need Bytes) (release func(), err error) {
	if b == nil {
		return func() {}, nil
	}
	n := int64(min(max(need, 1), b.total))
	if err := b.room.Acquire(ctx, n); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { b.room.Release(n) }, nil
}
