package metadata

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"drover/chunk"
)

// ackSQL announces an ack.
const ackSQL = `select pg_notify('drover_acks', $1)`

// What a proxy may say in a [chunk.Ack], and Silent for one that says nothing.
const (
	AckClean   = "clean"   // none of its requests of this kind runs on the source
	AckRunning = "running" // one runs: another word follows
	AckUnknown = "unknown" // it cannot tell
	AckSilent  = "silent"
)

// The kinds of an ack.
const (
	AckWrites = "writes"
	AckReads  = "reads"
)

// Ack gives a proxy's word to whoever waits for it. It is not kept.
func (s *Store) Ack(ctx context.Context, a chunk.Ack) error {
	b, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode ack: %w", err)
	}
	_, err = s.pool.Exec(ctx, ackSQL, string(b))
	return decode(err, "announce ack of attempt %d", a.Attempt)
}

// ackKey is what one word is about.
type ackKey struct {
	attempt chunk.AttemptID
	kind    string
	proxy   string
	run     string // empty: of a proxy that does not say
}

// AckWaiter collects the words of proxies from its making on: made before the
// fence is announced, it misses none. Close it.
type AckWaiter struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	words map[ackKey]string
	news  chan struct{} // closed and made anew at each word
	err   error         // why it no longer hears
}

// NewAckWaiter begins to listen; when it returns, the listening has begun.
func (s *Store) NewAckWaiter(ctx context.Context) (*AckWaiter, error) {
	conn, err := s.listenOn(ctx, acksChannel)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &AckWaiter{cancel: cancel, done: make(chan struct{}), words: map[ackKey]string{}, news: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer closeConn(run, conn)
		for {
			n, err := nextNotification(run, conn)
			if err != nil {
				w.deaf(err)
				return
			}
			var a chunk.Ack
			if json.Unmarshal([]byte(n.Payload), &a) == nil { // what is no ack is no word of a proxy's
				w.hear(a)
			}
		}
	}()
	return w, nil
}

// Close ends the listening and waits until it has ended.
func (w *AckWaiter) Close() {
	w.cancel()
	<-w.done
}

// hear keeps a word. Clean is the last one: a proxy holds what comes after it.
func (w *AckWaiter) hear(a chunk.Ack) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := ackKey{a.Attempt, a.Kind, a.Proxy, a.Run}
	if w.words[k] != AckClean {
		w.words[k] = a.State
	}
	close(w.news)
	w.news = make(chan struct{})
}

// deaf records that nothing more will be heard.
func (w *AckWaiter) deaf(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	close(w.news)
	w.news = make(chan struct{})
}

// AckResult is what was heard of each proxy asked about.
type AckResult struct {
	Words map[string]string // proxy -> AckClean, AckRunning, AckUnknown or AckSilent
	Clean bool              // every proxy is clean
}

// Wait waits until every proxy named has said that it is clean; the word of another
// run under its name does not count. Past grace it no
// longer waits for those that are unknown, nor, unless must, for those that are
// silent, only for those that said something runs; these it awaits until ctx ends,
// which is no error: the result says what is missing. The error is that of a listener that went deaf.
func (w *AckWaiter) Wait(ctx context.Context, attempt chunk.AttemptID, kind string, proxies []Proxy, grace time.Duration, must bool) (AckResult, error) {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	patient := true
	for {
		r, news, err := w.look(attempt, kind, proxies)
		if r.Clean || !patient && !r.Has(AckRunning) && !(must && r.Has(AckSilent)) {
			return r, nil
		}
		if err != nil {
			return r, fmt.Errorf("listen for acks: %w", err)
		}
		select {
		case <-news:
		case <-timer.C:
			patient = false
		case <-ctx.Done():
			return r, nil
		}
	}
}

// Has reports whether a proxy's word is this one.
func (r AckResult) Has(word string) bool {
	for _, w := range r.Words {
		if w == word {
			return true
		}
	}
	return false
}

// look reads the words heard so far, and gives the channel that tells of the next.
func (w *AckWaiter) look(attempt chunk.AttemptID, kind string, proxies []Proxy) (r AckResult, news <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r = AckResult{Words: make(map[string]string, len(proxies)), Clean: true}
	for _, p := range proxies {
		word, ok := w.words[ackKey{attempt, kind, p.ID, p.Run}]
		if !ok { // one of an older release
			word = cmp.Or(w.words[ackKey{attempt, kind, p.ID, ""}], AckSilent)
		}
		r.Words[p.ID] = word
		r.Clean = r.Clean && word == AckClean
	}
	return r, w.news, w.err
}
