package validation

import (
	"context"
	"fmt"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
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

// Scan implements [Side]. While what one question finds is looked at, the server
// works on the next one.
func (m *Mongo) Scan(ctx context.Context, r Read, after bson.RawValue, limit int) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		asks, err := m.asks(ctx, r, after)
		if err != nil {
			yield(nil, err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		var next *answer
		defer func() {
			cancel()
			next.drop(ctx)
		}()
		left := limit
		for n, a := range asks {
			if n == 0 {
				next = m.begin(ctx, r, a, left)
			}
			<-next.came
			cursor, err := next.cursor, next.err
			next = nil
			if err != nil {
				yield(nil, err)
				return
			}
			if n+1 < len(asks) {
				next = m.begin(ctx, r, asks[n+1], left)
			}
			for doc, err := range m.documents(ctx, r, cursor) {
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
				if left--; left == 0 {
					return
				}
			}
		}
	}
}

// answer is what a server says to one question; came is closed when it has.
type answer struct {
	came   chan struct{}
	cursor *mongo.Cursor
	err    error
}

// begin asks a question of a scan. One document more than is wanted is asked for: for
// some types SecantusDB's $gt also finds the value itself, which must not take
// the place of another one.
func (m *Mongo) begin(ctx context.Context, r Read, a ask, most int) *answer {
	b := &answer{came: make(chan struct{})}
	go func() {
		defer close(b.came)
		b.cursor, b.err = m.find(ctx, r, a, most+1)
	}()
	return b
}

// drop waits for an answer that nobody wants any more, if there is one.
func (b *answer) drop(ctx context.Context) {
	if b == nil {
		return
	}
	if <-b.came; b.err == nil {
		_ = b.cursor.Close(context.WithoutCancel(ctx))
	}
}
