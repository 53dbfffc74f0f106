package replication

import (
	"context"
	"errors"
	"regexp"
	"time"

	"drover/internal/failure"
	"drover/internal/mongocode"
)

// maxConflicts is how many broken unique keys one batch is repeated for before
// it is split.
const maxConflicts = 16

// commitAll applies a batch, in several transactions where one is too large.
// An event that stops the lane leaves everything before it applied.
func (l *Lane) commitAll(ctx context.Context, b *batch) error {
	err := l.commit(ctx, b)
	var split *splitError
	var stop *stopError
	switch {
	case isTooLarge(err) && len(b.items) <= 1:
		return failure.New(failure.Invalid, "lane.too_large", "lane %s: one document is more than a transaction of the target can hold: %w", l.id, err).
			WithHint("give the target's server a larger cache, then resume")
	case isTooLarge(err):
		l.shrink(b)
		fallthrough
	case errors.As(err, &split) && len(b.items) > 1:
		half := len(b.items) / 2
		if err := l.commitAll(ctx, b.prefix(half)); err != nil {
			return err
		}
		return l.commitAll(ctx, b.rest(half))
	case errors.As(err, &stop):
		if stop.at > 0 {
			if err := l.commitAll(ctx, b.prefix(stop.at)); err != nil {
				return err
			}
		}
		return l.report(ctx, b.items[stop.at], stop)
	default:
		return err
	}
}

// tooLargeForCache is MongoDB's code of that name.
const tooLargeForCache = 388

// tooLargeText finds that code where it is wrapped: "WriteError { code: 388,
// errmsg: "Transaction is too large and will not fit in the storage engine
// cache", exec: false }" comes with InternalError.
var tooLargeText = regexp.MustCompile(`code: 388\b`)

// isTooLarge reports that a transaction holds more than the target's cache takes.
func isTooLarge(err error) bool {
	return mongocode.Has(err, tooLargeForCache) || err != nil && tooLargeText.MatchString(err.Error())
}

// shrink makes this owner's next batches smaller than b was.
func (l *Lane) shrink(b *batch) {
	const least = 64 << 10
	l.cfg.Limits.Bytes = max(least, min(l.cfg.Limits.Bytes, b.bytes/2))
	l.cfg.Limits.TransactionBytes = max(least, min(l.cfg.Limits.TransactionBytes, b.bytes/2))
}

// report keeps what stops the lane.
func (l *Lane) report(ctx context.Context, it item, stop *stopError) error {
	r := Report{
		Lane: l.lane, Collection: it.event.Collection, ID: it.event.ID(), Seq: it.pos.seq, Offset: it.pos.offset,
		Op: it.event.Op, Code: stop.code, Reason: stop.reason, Event: it.event, At: time.Now(),
	}
	keep := l.cfg.Reports.Diverged
	if stop.poison {
		keep = l.cfg.Reports.Quarantine
		l.cfg.Metrics.poison.Inc()
	} else {
		l.cfg.Metrics.diverged.Inc()
	}
	return errors.Join(stop.failure(l.id, it.event), keep(ctx, r))
}

// commit applies a batch in one transaction.
func (l *Lane) commit(ctx context.Context, b *batch) error {
	docs, err := l.group(b)
	if err != nil {
		return err
	}
	g := goal{pos: b.pos, marker: l.marker, applied: len(b.items)}
	if b.marker != nil {
		g.marker = b.marker.Key()
	}
	started := time.Now()
	err = l.commitDocs(ctx, g, docs, func() error { return resolveAll(docs, l.cfg.Fold) })
	for conflicts := 0; err != nil; conflicts++ {
		var c *conflict
		if !errors.As(err, &c) {
			return err
		}
		if c.stays && c.doc.way != inPlace {
			return failure.New(failure.Invalid, "lane.immovable", "lane %s: the target does not let a document of %s be what it is: %w", l.id, c.doc.collection, c.cause)
		}
		if c.vague {
			c.doc.apart = true
		} else {
			l.giveWay(c, docs)
			l.cfg.Metrics.conflicts.Inc()
		}
		if conflicts >= maxConflicts && len(b.items) > 1 {
			return &splitError{bytes: b.bytes}
		}
		err = l.commitDocs(ctx, g, docs, func() error { return resolveAll(docs, l.cfg.Fold) })
	}
	l.noteParked(docs)
	l.gauge.passed(b, len(docs))
	l.cfg.Metrics.batch(b, docs, time.Since(started))
	if len(docs) > 0 {
		l.released()
	}
	return nil
}

// resolveAll works out every document's new image.
func resolveAll(docs []*document, opts FoldOptions) error {
	var first *stopError
	for _, d := range docs {
		err := d.resolve(opts)
		var stop *stopError
		if errors.As(err, &stop) {
			if first == nil || stop.at < first.at {
				first = stop
			}
			continue
		}
		if err != nil {
			return err
		}
	}
	if first != nil {
		return first
	}
	return nil
}

// giveWay decides what a document does that broke a unique index. That may be
// the one of _id, where the collection's collation takes two _ids for equal
// that are not.
func (l *Lane) giveWay(c *conflict, docs []*document) {
	d := c.doc
	d.holder = c
	if !c.onID && len(c.pattern) > 0 {
		l.unique(c)
	}
	switch {
	case c.stays:
		d.way = anew
	case !d.probe && (c.onID || c.pattern == nil):
		d.probe = true // it was taken to be missing
	case d.way == inPlace && len(c.pattern) > 0 && !c.onID:
		d.way = anew // and with it, see [Lane.handOver], all that change a key of the index
	case d.way == inPlace:
		// Which key it was is not known: all of them are released first.
		for _, o := range docs {
			if o.collection == d.collection && o.way == inPlace {
				o.way = anew
			}
		}
	case d.way == anew && len(c.pattern) > 0 && !c.onID:
		d.way = around
		l.unique(c).rounds = true
	default:
		if d.way == around && len(c.pattern) > 0 {
			l.unique(c).rounds = false // somebody holds the key: it is not the server
		}
		d.way = aside
	}
}

// commitDocs moves the checkpoint to g together with the documents' writes.
// settled works out the new images once the old ones are there. It gives a
// [conflict] when a unique index refuses.
func (l *Lane) commitDocs(ctx context.Context, g goal, docs []*document, settled func() error) error {
	doubt := false
	err := l.patiently(ctx, func(ctx context.Context) error {
		return l.attempt(ctx, &doubt, func(ctx context.Context) error {
			if len(docs) == 0 {
				return l.advanceAlone(ctx, g)
			}
			return l.transact(ctx, func(ctx context.Context) error { return l.change(ctx, g, docs, settled) })
		})
	})
	if err != nil {
		return err
	}
	l.moved(g)
	return nil
}

// change does in a transaction what [Lane.commitDocs] says.
func (l *Lane) change(ctx context.Context, g goal, docs []*document, settled func() error) error {
	if err := l.fetch(ctx, docs); err != nil {
		return err
	}
	if err := l.point(ctx, "lane.read"); err != nil {
		return err
	}
	if err := settled(); err != nil {
		if lost := l.advance(ctx, g, false); lost != nil { // the images may be those that a newer owner wrote
			return lost
		}
		return err
	}
	g.deltas, g.foreign = countForeign(docs)
	return l.write(ctx, g, docs)
}

// advanceAlone moves the checkpoint when nothing else is to be written.
func (l *Lane) advanceAlone(ctx context.Context, g goal) error {
	if err := l.point(ctx, "lane.begun"); err != nil {
		return err
	}
	if err := l.advance(ctx, g, true); err != nil {
		if errors.Is(err, errMoved) {
			return err
		}
		return errors.Join(errDoubt, err)
	}
	return l.point(ctx, "lane.committed")
}
