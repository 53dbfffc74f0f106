package validation

import (
	"cmp"
	"context"
	"fmt"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ask is one question of a scan.
type ask struct {
	filter bson.D
	after  bson.RawValue // what lies behind this one is asked for; zero where all of something is
	// ordered says that what answers has its documents in order: SecantusDB sorts them once
	// more when it is told to.
	ordered bool
}

// asks gives the questions of a scan, in the order of what they find.
func (m *Mongo) asks(ctx context.Context, r Read, after bson.RawValue) ([]ask, error) {
	var asks []ask
	for _, cut := range r.Cuts {
		more, err := isBehind(cut, after)
		if err != nil {
			return nil, fmt.Errorf("a cut of %s: %w", r.Collection, err)
		}
		plain, err := m.isPlain(ctx, r, cut)
		if err != nil {
			return nil, err
		}
		if !plain || !more && after.Type != 0 {
			continue
		}
		some, err := m.behind(ctx, r, after, cut)
		if err != nil {
			return nil, err
		}
		asks, after = append(asks, some...), cut
	}
	rest, err := m.behind(ctx, r, after, r.Until)
	return append(asks, rest...), err
}

// Scan implements [Side].
func (m *Mongo) Scan(ctx context.Context, r Read, after bson.RawValue, limit int) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		asks, err := m.asks(ctx, r, after)
		if err != nil {
			yield(nil, err)
			return
		}
		left, size := limit, 0
		defer func() { m.learn(r.Collection, limit-left, size) }()
		for _, a := range asks {
			// One more than is wanted: for some types SecantusDB's $gt also finds
			// the value itself, which must not take the place of another one.
			for doc, err := range m.find(ctx, r, a, left+1) {
				if err == nil && a.after.Type != 0 {
					seen := doc.Lookup("_id").Equal(a.after)
					a.after = bson.RawValue{} // nothing else comes before it
					if seen {
						continue
					}
				}
				if !yield(doc, err) || err != nil {
					return
				}
				size += len(doc)
				if left--; left == 0 {
					return
				}
			}
		}
	}
}

// What a server may answer at once: about so many bytes, or so many documents where it is
// not known how large they are.
const (
	batchBytes     = 2 << 20
	batchDocuments = 1000
)

// learn remembers how many documents of a collection are a batch.
func (m *Mongo) learn(collection string, documents, bytes int) {
	if documents == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.batches == nil {
		m.batches = map[string]int32{}
	}
	m.batches[collection] = int32(batchBytes*documents/bytes) + 1 //nolint:gosec // no document has less than five bytes
}

// batchOf gives how many documents of a collection are a batch.
func (m *Mongo) batchOf(collection string) int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(m.batches[collection], batchDocuments)
}
