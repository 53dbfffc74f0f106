package bulkimport

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"
	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/internal/failure"
)

// restorers is how many slices are restored at the same time.
const restorers = 2

// Restore loads what an import has stored into another database than the import's,
// slice by slice. Nothing else writes there meanwhile, and there are no unique
// indexes yet. What is there already must be the same, so that it can be repeated.
// done is called after each slice, by one goroutine at a time; nil is allowed.
func (t Target) Restore(ctx context.Context, b Bucket, owner chunk.MigrationID, all []Slice, done func(Slice)) error {
	if _, err := NewWindows(all); err != nil {
		return err
	}
	finished := make(chan Slice)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(restorers + 1)
	group.Go(func() error { // reports one after the other
		for range all {
			select {
			case s := <-finished:
				if done != nil {
					done(s)
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for _, s := range all {
		group.Go(func() error {
			if err := t.restore(ctx, b, owner, s); err != nil {
				return fmt.Errorf("restore %s: %w", s, err)
			}
			select {
			case finished <- s:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}
	return group.Wait()
}

// restore loads one slice.
func (t Target) restore(ctx context.Context, b Bucket, owner chunk.MigrationID, s Slice) error {
	if _, err := loadManifest(ctx, b, s); err != nil {
		return err
	}
	docs, err := b.documents(ctx, s)
	if err != nil {
		return err
	}
	var next batch
	flush := func() error {
		if len(next.docs) == 0 {
			return nil
		}
		var parked Documents
		err := retry(ctx, func(ctx context.Context) (err error) {
			parked, err = t.insert(ctx, owner, s.Collection, next.docs)
			return err
		})
		if err == nil && parked > 0 {
			err = failure.New(failure.Mismatch, "import.restore_conflict", "%d documents of %s meet others with a unique key of theirs", parked, s.Collection)
		}
		next.reset()
		return err
	}
	for _, doc := range docs {
		if !next.takes(doc) {
			if err := flush(); err != nil {
				return err
			}
		}
		next.add(doc)
	}
	return flush()
}

// documents reads a stored slice whole, and checks that it is what was stored.
func (b Bucket) documents(ctx context.Context, s Slice) ([]bson.Raw, error) {
	content, err := b.get(ctx, s.Object.Key)
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		return nil, fmt.Errorf("open a decoder: %w", err)
	}
	defer decoder.Close()
	plain, err := decoder.DecodeAll(content, nil)
	if err != nil {
		return nil, damaged(s.Object.Key, err.Error())
	}
	if sum := sha256.Sum256(plain); Bytes(len(plain)) != s.Object.Bytes || !bytes.Equal(sum[:], s.Object.Hash) {
		return nil, damaged(s.Object.Key, "it does not hold the documents that were recorded")
	}
	var docs []bson.Raw
	for len(plain) > 0 {
		n := 0
		if len(plain) >= 5 {
			n = int(binary.LittleEndian.Uint32(plain))
		}
		if n < 5 || n > len(plain) {
			return nil, damaged(s.Object.Key, "a document in it is cut")
		}
		docs, plain = append(docs, plain[:n:n]), plain[n:]
	}
	if Documents(len(docs)) != s.Object.Documents {
		return nil, damaged(s.Object.Key, fmt.Sprintf("it holds %d documents, %d were recorded", len(docs), s.Object.Documents))
	}
	return docs, nil
}
