package cdc

import (
	"context"
	"errors"
	"time"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
)

// Replay reads captured logs from the archive and from Kafka as one.
type Replay struct {
	Log     *Log
	Objects *Objects
}

// Read is [Log.Read] for any offset that was ever archived: what Kafka has comes
// from Kafka, what it no longer has from the archive, without hole or repetition.
func (r *Replay) Read(ctx context.Context, shard string, partition int32, from int64, fn func(offset int64, e *event.Event) error) error {
	next := from
	follow := func(offset int64, e *event.Event) error {
		if err := fn(offset, e); err != nil {
			return stopRead{err}
		}
		if e != nil {
			next = offset + 1
		}
		return nil
	}
	for {
		err := r.Log.Read(ctx, shard, partition, next, follow)
		var own stopRead
		if errors.As(err, &own) {
			return ended(own.error)
		}
		if !failure.HasCode(err, "log.offset_out_of_range") {
			return err
		}
		was := next
		if aerr := r.archived(ctx, shard, partition, next, follow); aerr != nil {
			if errors.As(aerr, &own) {
				return ended(own.error)
			}
			return aerr
		}
		if next == was { // the archive does not have it either
			return err
		}
	}
}

// FindMarker is [Log.FindMarker] for a marker that was written at a time or later: what
// Kafka no longer has is looked for in the archive.
func (r *Replay) FindMarker(ctx context.Context, shard, key string, since time.Time) ([]Seam, error) {
	return r.Log.find(ctx, shard, key, nil, func(ctx context.Context, partition int32, first int64) (found Seam, err error) {
		topic := chunk.Topic(shard)
		id, err := r.Log.topicID(ctx, topic)
		if err != nil {
			return found, err
		}
		from, ok, err := r.Objects.seek(ctx, topic, id, partition, since.Add(-seekSlack))
		if err != nil || !ok || from >= first {
			return found, err
		}
		err = r.Read(ctx, shard, partition, from, func(offset int64, e *event.Event) error {
			if marks(e, key) {
				found = Seam{Offset: offset, Seq: e.Seq, Time: e.ClusterTime}
			}
			if found.Seq != 0 || offset >= first-1 {
				return ErrStop
			}
			return nil
		})
		return found, err
	})
}

// stopRead is an error of the callback, which must not be taken for the log's.
type stopRead struct{ error }

// archived reads one archived segment from offset on; nothing happens when none
// holds it.
func (r *Replay) archived(ctx context.Context, shard string, partition int32, offset int64, fn func(int64, *event.Event) error) error {
	topic := chunk.Topic(shard)
	id, err := r.Log.topicID(ctx, topic)
	if err != nil {
		return err
	}
	m, ok, err := r.Objects.find(ctx, topic, id, partition, offset)
	if err != nil || !ok {
		return err
	}
	if err := r.Objects.read(ctx, m, offset, fn); err != nil {
		return err
	}
	return fn(m.Last+1, nil)
}
