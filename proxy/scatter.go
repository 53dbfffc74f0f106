package proxy

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

const (
	// maxParallel bounds what one request does at once.
	maxParallel = 32
	// maxPerShard bounds what one request does at once on one shard, however many
	// placements the shard holds: others need its connections too.
	maxPerShard = 4
)

// parallel calls fn for the place of each entry, some at once. A panic of one goes
// on in the caller, whose connection it may cost.
func (p *Proxy) parallel(entries []*entry, fn func(i int)) {
	if len(entries) <= 1 {
		for i := range entries {
			fn(i)
		}
		return
	}
	byShard := map[string][]int{}
	for i, e := range entries {
		shard := e.route.Load().Placement.Shard
		byShard[shard] = append(byShard[shard], i)
	}
	slots := make(chan struct{}, maxParallel)
	var wg sync.WaitGroup
	var failed atomic.Pointer[any]
	for _, queue := range byShard {
		var next atomic.Int64
		for range min(maxPerShard, len(queue)) {
			wg.Go(func() {
				defer func() {
					if r := recover(); r != nil {
						failed.Store(&r)
						<-slots
					}
				}()
				for {
					at := int(next.Add(1)) - 1
					if at >= len(queue) {
						return
					}
					slots <- struct{}{}
					fn(queue[at])
					<-slots
				}
			})
		}
	}
	wg.Wait()
	if r := failed.Load(); r != nil {
		panic(*r)
	}
}

// gather sends a read to some chunks at once. The answers are good ones, and hold no
// connection: those that are waited for must not be waiting for one of the others.
func (p *Proxy) gather(ctx context.Context, q *request, entries []*entry, e edit) ([]answer, error) {
	answers := make([]answer, len(entries))
	errs := make([]error, len(entries))
	p.parallel(entries, func(i int) {
		a, err := p.dispatch(ctx, q, &leg{entry: entries[i], access: reads, edit: e})
		if err != nil {
			errs[i] = err
			return
		}
		defer a.release()
		if !a.ok {
			errs[i] = a.asError()
			return
		}
		answers[i] = answer{raw: slices.Clone(a.raw), route: a.route}
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// document builds one document.
func document(fn func(dst []byte) []byte) []byte {
	at, dst := bsoncore.AppendDocumentStart(nil)
	dst, _ = bsoncore.AppendDocumentEnd(fn(dst), at)
	return dst
}
