package shard

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
)

// Health is how a set bears its load.
type Health struct {
	Answer      time.Duration // to the slowest but one of a few reads of one document
	Dirty, Used float64       // shares of the primary's cache; 0 where it does not say
	Lag         time.Duration // of the secondary that is furthest behind, delayed ones left out
	Behind      string        // its host
}

// healthReads is how many reads measure the answer.
const healthReads = 8

// Health measures how the set is now: its primary, and members that clients of
// [chunk.ReaderUser] are connected to. What a server does not say counts as good; the
// time of its answers always says something.
func (s *Set) Health(ctx context.Context, members ...*mongo.Client) (h Health, err error) {
	if h.Answer, err = s.ReadTime(ctx); err != nil {
		return h, err
	}
	for _, m := range members {
		took, err := s.readTime(ctx, m.Database(chunk.SystemDatabase).Collection(chunk.FencesCollection))
		if err != nil {
			return h, err
		}
		h.Answer = max(h.Answer, took)
	}
	if r, err := s.adminRun(ctx, bson.D{{Key: "serverStatus", Value: 1}}); err == nil {
		h.Dirty, h.Used = cacheShares(r)
	} else if ctx.Err() != nil {
		return h, err
	}
	st, err := s.Status(ctx)
	if err != nil {
		return h, err
	}
	for _, m := range st.Members {
		if m.State == "SECONDARY" && m.Healthy && !m.Delayed && m.Lag > h.Lag {
			h.Lag, h.Behind = m.Lag, m.Host
		}
	}
	return h, nil
}

// ReadTime measures how long the primary takes to read one document, as an
// application would: the slowest but one of a few.
func (s *Set) ReadTime(ctx context.Context) (time.Duration, error) {
	return s.readTime(ctx, s.fences())
}

// readTime measures it wherever a collection is.
func (s *Set) readTime(ctx context.Context, c *mongo.Collection) (time.Duration, error) {
	var took []time.Duration
	for range healthReads {
		began := time.Now()
		err := c.FindOne(ctx, bson.D{{Key: "_id", Value: 0}}).Err()
		if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
			return 0, s.wrap(err, "read a document")
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)-2], nil
}

// cacheShares reads how full WiredTiger's cache is, and how much of it is dirty.
func cacheShares(status bson.Raw) (dirty, used float64) {
	number := func(name string) float64 {
		n, _ := status.Lookup("wiredTiger", "cache", name).AsFloat64OK()
		return n
	}
	most := number("maximum bytes configured")
	if most <= 0 {
		return 0, 0
	}
	return number("tracked dirty bytes in the cache") / most, number("bytes currently in the cache") / most
}
