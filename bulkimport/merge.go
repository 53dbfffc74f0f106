package bulkimport

import (
	"container/heap"
	"context"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"drover/chunk"
)

// stored is a stored slice with its manifest.
type stored struct {
	slice    Slice
	manifest Manifest
}

// reader fetches frames for all merges of an importer.
type reader struct {
	bucket  Bucket
	decoder *zstd.Decoder
	slots   chan struct{} // bounds the requests under way
	pace    pace
}

// pace lets others go first who may share a machine or the network with what works on no
// shard. Without others there is none.
type pace struct {
	others func() bool
	gently func(ctx context.Context, work func(context.Context) error) error
}

// do does a piece of work.
func (p pace) do(ctx context.Context, work func(context.Context) error) error {
	if !p.others() {
		return work(ctx)
	}
	return p.gently(ctx, work)
}

// newReader makes a reader; close it.
func newReader(b Bucket, requests int, pace pace) (*reader, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, fmt.Errorf("make decoder: %w", err)
	}
	return &reader{bucket: b, decoder: decoder, slots: make(chan struct{}, requests), pace: pace}, nil
}

// close frees the decoder.
func (r *reader) close() { r.decoder.Close() }

// fetched is the answer to one request for some frames.
type fetched struct {
	entries []entry
	err     error
}

// cursor walks the part of one slice's run that lies in a stretch, one request
// ahead of its user.
type cursor struct {
	from    *reader
	object  string
	order   Order
	within  chunk.Range
	frames  []Frame // still to be requested
	group   Bytes   // of frames in one request, before compression
	pending chan fetched
	entries []entry
}

// framesWithin gives the frames that may hold keys of r.
func (m Manifest) framesWithin(r chunk.Range) []Frame {
	var found []Frame
	for i, f := range m.Frames {
		last := chunk.KeyMax
		if i+1 < len(m.Frames) {
			last = chunk.Key(m.Frames[i+1].First)
		}
		if chunk.Key(f.First) < r.Hi && last > r.Lo {
			found = append(found, f)
		}
	}
	return found
}

// request starts the next request if there is something left.
func (c *cursor) request(ctx context.Context) {
	c.pending = nil
	if len(c.frames) == 0 {
		return
	}
	n, size := 1, c.frames[0].Bytes
	for n < len(c.frames) && size+c.frames[n].Bytes <= c.group && !c.from.pace.others() {
		size += c.frames[n].Bytes
		n++
	}
	frames := c.frames[:n]
	c.frames = c.frames[n:]
	answer := make(chan fetched, 1)
	c.pending = answer
	go func() {
		entries, err := c.from.get(ctx, c.object, c.order, frames)
		answer <- fetched{entries, err}
	}()
}

// get fetches when it may. It waits for other requests before it takes a place from others
// who use the shard.
func (r *reader) get(ctx context.Context, object string, order Order, frames []Frame) (entries []entry, err error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	err = r.pace.do(ctx, func(ctx context.Context) (err error) {
		entries, err = r.fetch(ctx, object, order, frames)
		return err
	})
	return entries, err
}

// fetch gets adjacent frames of an object and takes them apart.
func (r *reader) fetch(ctx context.Context, object string, order Order, frames []Frame) ([]entry, error) {
	offset := frames[0].Offset
	last := frames[len(frames)-1]
	content, err := r.bucket.getRange(ctx, object, offset, last.Offset+last.Length-offset)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, f := range frames {
		part := content[f.Offset-offset:]
		more, err := f.open(r.decoder, object, order, part[:f.Length:f.Length])
		if err != nil {
			return nil, err
		}
		entries = append(entries, more...)
	}
	return entries, nil
}

// next gives the next entry of the stretch; ok is false at its end.
func (c *cursor) next(ctx context.Context) (e entry, ok bool, err error) {
	for {
		for len(c.entries) > 0 {
			e, c.entries = c.entries[0], c.entries[1:]
			if c.within.Contains(e.key) {
				return e, true, nil
			}
		}
		if c.pending == nil {
			return entry{}, false, nil
		}
		answer := <-c.pending
		if answer.err != nil {
			c.pending = nil
			return entry{}, false, answer.err
		}
		c.entries = answer.entries
		c.request(ctx)
	}
}

// finish waits for a request that is still under way.
func (c *cursor) finish() {
	if c.pending != nil {
		<-c.pending
	}
}

// merge gives the documents of many sorted runs in one order.
type merge struct{ heads heads }

// head is the next entry of a cursor.
type head struct {
	entry  entry
	cursor *cursor
}

// heads is a heap by key.
type heads []head

// Len implements [heap.Interface].
func (h heads) Len() int { return len(h) }

// Less implements [heap.Interface].
func (h heads) Less(i, j int) bool { return h[i].entry.key < h[j].entry.key }

// Swap implements [heap.Interface].
func (h heads) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *heads) Push(x any) { *h = append(*h, x.(head)) } //nolint:forcetypeassert // only heap calls it, with what merge gives

// Pop implements [heap.Interface].
func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// newMerge opens a stretch over all runs. close it, also after an error, with
// ctx cancelled.
func newMerge(ctx context.Context, from *reader, runs []stored, within chunk.Range, group Bytes) (*merge, []*cursor, error) {
	var cursors []*cursor
	for _, r := range runs {
		frames := r.manifest.framesWithin(within)
		if len(frames) == 0 {
			continue
		}
		c := &cursor{
			from: from, object: r.slice.Object.Key, order: r.manifest.Order, within: within, frames: frames, group: group,
		}
		c.request(ctx)
		cursors = append(cursors, c)
	}
	m := &merge{}
	for _, c := range cursors {
		e, ok, err := c.next(ctx)
		if err != nil {
			return nil, cursors, err
		}
		if ok {
			m.heads = append(m.heads, head{e, c})
		}
	}
	heap.Init(&m.heads)
	return m, cursors, nil
}

// next gives the next entry of the order; ok is false at the end.
func (m *merge) next(ctx context.Context) (e entry, ok bool, err error) {
	if len(m.heads) == 0 {
		return entry{}, false, nil
	}
	e = m.heads[0].entry
	following, ok, err := m.heads[0].cursor.next(ctx)
	if err != nil {
		return entry{}, false, err
	}
	if ok {
		m.heads[0].entry = following
		heap.Fix(&m.heads, 0)
	} else {
		heap.Pop(&m.heads)
	}
	return e, true, nil
}
