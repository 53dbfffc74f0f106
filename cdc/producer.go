package cdc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"drover/chunk"
	"drover/internal/failure"
)

// partingTime bounds what a capture still does when it is asked to end.
const partingTime = 2 * time.Second

// producer sends records and knows how many of each partition are acknowledged.
// The first error makes it useless: records may be missing in front of others.
type producer struct {
	client  *kgo.Client
	topic   string
	ctx     context.Context //nolint:containedctx // the life of its records, longer than the session's by partingTime
	cancel  context.CancelFunc
	stop    func() bool
	fail    context.CancelCauseFunc
	sent    []int64 // by partition; only the follower touches it
	mu      sync.Mutex
	acked   []int64
	changed chan struct{}
}

// newProducer makes a producer of r's topic. fail is called with its first error.
func newProducer(ctx context.Context, r *run, fail context.CancelCauseFunc) (*producer, error) {
	opts := append(r.kafka(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.StopProducerOnDataLossDetected(),
		kgo.ProducerLinger(r.set.Linger), // a request for each change would cost the broker more than it saves
		kgo.ProducerBatchMaxBytes(maxRecordBytes),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()),
		kgo.MaxBufferedRecords(20_000),
		kgo.MaxBufferedBytes(128<<20),
		kgo.UnknownTopicRetries(-1),
	)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, failure.New(failure.Invalid, "log.bad_settings", "connect to Kafka: %w", err)
	}
	p := &producer{
		client: client, topic: chunk.Topic(r.Shard), fail: fail,
		sent: make([]int64, r.Topic.Partitions), acked: make([]int64, r.Topic.Partitions),
		changed: make(chan struct{}, 1),
	}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.stop = context.AfterFunc(ctx, func() { time.AfterFunc(partingTime, p.cancel) })
	return p, nil
}

// send hands a record to Kafka. It waits while too much is under way.
func (p *producer) send(rec record) {
	p.sent[rec.partition]++
	p.client.Produce(p.ctx, &kgo.Record{Topic: p.topic, Partition: rec.partition, Value: rec.value},
		func(r *kgo.Record, err error) {
			if err != nil {
				p.fail(fmt.Errorf("produce to %s/%d: %w", p.topic, r.Partition, err))
				return
			}
			p.mu.Lock()
			p.acked[r.Partition]++
			p.mu.Unlock()
			select {
			case p.changed <- struct{}{}:
			default:
			}
		})
}

// hurry sends what was handed over now: nothing of it waits for company.
func (p *producer) hurry() {
	past, cancel := context.WithCancel(p.ctx)
	cancel()
	_ = p.client.Flush(past) // it ends the waiting of records, and waits for none itself
}

// wait returns when of each partition as many records as sent says are
// acknowledged. Only one may wait.
func (p *producer) wait(ctx context.Context, sent []int64) error {
	for !p.reached(sent) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.changed:
		}
	}
	return nil
}

// reached reports whether what sent says is acknowledged. Acknowledgements of
// one partition come in order.
func (p *producer) reached(sent []int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range sent {
		if p.acked[i] < n {
			return false
		}
	}
	return true
}

// flush waits until all that was sent is acknowledged.
func (p *producer) flush(ctx context.Context) error { return p.wait(ctx, slices.Clone(p.sent)) }

// close drops what is not sent yet.
func (p *producer) close() {
	p.stop()
	p.cancel()
	p.client.Close()
}

// saver saves positions beside the follower, so that neither Kafka's nor the
// store's answer delays the next change. It holds one at a time.
type saver struct {
	busy     atomic.Bool
	requests chan candidate
	done     chan struct{}
}

// candidate is a position and what must be acknowledged before it may be saved.
type candidate struct {
	position Position
	sent     []int64
}

// newSaver starts a saver that lives until ctx ends. Whatever keeps it from
// saving for good goes to fail.
func newSaver(ctx context.Context, r *run, p *producer, fail context.CancelCauseFunc) *saver {
	s := &saver{requests: make(chan candidate, 1), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for {
			select {
			case <-ctx.Done():
				return
			case c := <-s.requests:
				if err := s.save(ctx, r, p, c); err != nil {
					fail(err)
					return
				}
				s.busy.Store(false)
			}
		}
	}()
	return s
}

// wait returns when the saver has ended, which it does when its context ends.
func (s *saver) wait() { <-s.done }

// offer gives position to the saver unless it is at work.
func (s *saver) offer(position *Position, p *producer) bool {
	if !s.busy.CompareAndSwap(false, true) {
		return false
	}
	s.requests <- candidate{position: position.clone(), sent: slices.Clone(p.sent)}
	return true
}

// save waits for Kafka, then saves. A store that does not answer is asked again:
// meanwhile capture goes on, and a restart would repeat more.
func (s *saver) save(ctx context.Context, r *run, p *producer, c candidate) error {
	if err := p.wait(ctx, c.sent); err != nil {
		return err
	}
	if err := r.at(ctx, "capture.acknowledged"); err != nil {
		return err
	}
	for pause := r.set.RetryEvery; ; pause = min(2*pause, 20*r.set.RetryEvery) {
		err := r.save(ctx, c.position)
		switch {
		case err == nil:
			r.Metrics.saved(r.Shard)
			return r.at(ctx, "capture.saved")
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case final(err):
			return err
		}
		r.log.WarnContext(ctx, "position was not saved", "error", err)
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}
