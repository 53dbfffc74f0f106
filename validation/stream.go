package validation

import (
	"context"
	"fmt"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
)

// readAhead bounds what a stream has read and not handed out: some batches of
// about this many bytes.
const (
	readAhead      = 1 << 20
	readAheadBatch = 1000
)

// stream reads one side ahead of the comparison and checks its order.
type stream struct {
	name    string
	limit   int
	batches chan readBatch
	done    chan struct{} // closed when the reader has ended
	cancel  context.CancelFunc

	batch []bson.Raw
	doc   bson.Raw // the head; nil at the end
	id    bson.RawValue
	key   chunk.Key // of the head, or of the last one; what the read began behind at first
	count int
	bytes int64
}

// readBatch is some documents, or the error that ended the read.
type readBatch struct {
	docs []bson.Raw
	err  error
}

// newStream starts to read; close it. A read of at most limit documents that
// gives as many may have left some.
func newStream(ctx context.Context, name string, docs iter.Seq2[bson.Raw, error], after chunk.Key, limit int, cancel context.CancelFunc) *stream {
	s := &stream{name: name, key: after, limit: limit, batches: make(chan readBatch, 1), done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(s.done)
		defer close(s.batches)
		send := func(b readBatch) bool {
			select {
			case s.batches <- b:
				return true
			case <-ctx.Done():
				return false
			}
		}
		var b readBatch
		size := 0
		for doc, err := range docs {
			if err != nil {
				b.err = err
				break
			}
			b.docs = append(b.docs, doc)
			if size += len(doc); size < readAhead && len(b.docs) < readAheadBatch {
				continue
			}
			if !send(b) {
				return
			}
			b, size = readBatch{}, 0
		}
		send(b)
	}()
	return s
}

// close ends the read and waits for it.
func (s *stream) close() {
	s.cancel()
	<-s.done
}

// full reports that the stream ended at its limit: there may be more behind it.
func (s *stream) full() bool { return s.doc == nil && s.count >= s.limit }

// next makes the next document the head. The order of _id is checked here, once
// for both sides: a merge of two streams that are not in one order finds
// differences everywhere, or none.
func (s *stream) next(ctx context.Context) error {
	for len(s.batch) == 0 {
		b, open := <-s.batches
		if !open {
			s.doc = nil
			return context.Cause(ctx)
		}
		if b.err != nil {
			return fmt.Errorf("read the %s: %w", s.name, b.err)
		}
		s.batch = b.docs
	}
	doc := s.batch[0]
	s.batch = s.batch[1:]
	id, err := doc.LookupErr("_id")
	if err != nil {
		return fmt.Errorf("read the %s: document without _id: %w", s.name, err)
	}
	key, err := chunk.EncodeValue(id)
	if err != nil {
		return fmt.Errorf("read the %s: _id: %w", s.name, err)
	}
	if key <= s.key {
		return failure.New(failure.Invalid, "validation.unordered", "the %s does not return %v in MongoDB's order of _id", s.name, id).
			WithHint("_id values of these types cannot be compared on this server")
	}
	s.doc, s.id, s.key = doc, id, key
	s.count++
	s.bytes += int64(len(doc))
	return nil
}
