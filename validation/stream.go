package validation

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"sync"

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

// codeUnordered is the code of a read that gives documents out of order.
const codeUnordered = "validation.unordered"

// errCutOff is a read without an order that ended at its limit.
var errCutOff = failure.New(failure.Invalid, codeUnordered, "a read without an order ended at its limit")

// stream reads one side ahead of the comparison and checks its order.
type stream struct {
	name    string
	limit   int
	batches chan *readBatch
	done    chan struct{} // closed when the reader has ended
	cancel  context.CancelFunc

	batch *readBatch
	at    int           // of the next document in batch
	doc   bson.Raw      // the head, until the next one is; nil at the end
	id    bson.RawValue // of the head, or of the last one; what the read began behind at first
	count int
}

// readBatch is some documents side by side, or the error that ended the read.
type readBatch struct {
	bytes []byte
	ends  []int // of the documents
	err   error
}

// usedBatches are batches to be filled again.
var usedBatches = sync.Pool{New: func() any { return &readBatch{} }}

// emptyBatch gives a batch to be filled.
func emptyBatch() *readBatch {
	b := usedBatches.Get().(*readBatch) //nolint:forcetypeassert // nothing else is put there
	b.bytes, b.ends = b.bytes[:0], b.ends[:0]
	return b
}

// newStream starts to read; close it. A read of at most limit documents that
// gives as many may have left some.
func newStream(ctx context.Context, name string, docs iter.Seq2[bson.Raw, error], after bson.RawValue, limit int, cancel context.CancelFunc) *stream {
	s := &stream{name: name, id: after, limit: limit, batch: emptyBatch(), batches: make(chan *readBatch, 1), done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(s.done)
		defer close(s.batches)
		s.read(ctx, docs)
	}()
	return s
}

// read hands all documents on, in batches.
func (s *stream) read(ctx context.Context, docs iter.Seq2[bson.Raw, error]) {
	send := func(b *readBatch) bool {
		select {
		case s.batches <- b:
			return true
		case <-ctx.Done():
			return false
		}
	}
	b := emptyBatch()
	for doc, err := range docs {
		if err != nil {
			send(&readBatch{err: err})
			return
		}
		b.bytes = append(b.bytes, doc...)
		b.ends = append(b.ends, len(b.bytes))
		if len(b.bytes) < readAhead && len(b.ends) < readAheadBatch {
			continue
		}
		if !send(b) {
			return
		}
		b = emptyBatch()
	}
	send(b)
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
	for s.at == len(s.batch.ends) {
		s.doc, s.id = nil, own(s.id)
		b, open := <-s.batches
		if !open {
			return context.Cause(ctx)
		}
		if b.err != nil {
			return fmt.Errorf("read the %s: %w", s.name, b.err)
		}
		usedBatches.Put(s.batch)
		s.batch, s.at = b, 0
	}
	doc := s.batch.document(s.at)
	id, err := doc.LookupErr("_id")
	if err != nil {
		return fmt.Errorf("read the %s: document without _id: %w", s.name, err)
	}
	order := -1
	if s.id.Type != 0 {
		if order, err = chunk.CompareValues(s.id, id); err != nil {
			return fmt.Errorf("read the %s: _id: %w", s.name, err)
		}
	}
	if order >= 0 {
		return failure.New(failure.Invalid, codeUnordered, "the %s does not return %v in MongoDB's order of _id", s.name, id).
			WithHint("_id values of these types cannot be compared on this server")
	}
	s.doc, s.id, s.at = doc, id, s.at+1
	s.count++
	return nil
}

// rest looks at what nobody asked for any more, unless it was sorted: it may be what comes
// before the head, which the comparison then took for missing. What ended at its limit says
// nothing without an order: a low one may be among what was left out.
func (s *stream) rest(ctx context.Context, sorted bool) error {
	for s.doc != nil && !sorted {
		if err := s.next(ctx); err != nil {
			return err
		}
	}
	if !sorted && s.full() {
		return errCutOff
	}
	return nil
}

// document gives a document of the batch.
func (b *readBatch) document(n int) bson.Raw {
	from := 0
	if n > 0 {
		from = b.ends[n-1]
	}
	return bson.Raw(b.bytes[from:b.ends[n]:b.ends[n]])
}

// own gives a value that is no part of what was read beside it.
func own(v bson.RawValue) bson.RawValue {
	return bson.RawValue{Type: v.Type, Value: bytes.Clone(v.Value)}
}
