package main

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"drover/bench/loads"
	"drover/validation"
)

// measureCompare compares two shards that nobody writes to, and reads them without
// comparing: what the servers give is the most that any comparison can come to.
func measureCompare(ctx context.Context, b *bench) (err error) {
	s, err := loads.Start(ctx, filepath.Join(b.o.dir, "compare"))
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	docs, err := loads.Documents(int(300_000*b.o.scale), loads.Padding)
	if err != nil {
		return err
	}
	sides := make([]*mongo.Database, 2)
	for n, name := range []string{"source", "target"} {
		c, _, err := s.Shard(ctx, name, 1024)
		if err != nil {
			return err
		}
		sides[n] = c.Database(loads.SourceDB)
		if err := loads.Provision(ctx, sides[n], nil); err != nil {
			return err
		}
		if _, err := loads.InsertAll(ctx, sides[n], docs, b.o.limit); err != nil {
			return err
		}
	}
	b.say("%d documents are on both sides", len(docs))
	cuts := cutEvery(docs, comparedSlice)
	plain, err := readBoth(ctx, sides, []bson.D{{}}, len(docs))
	if err != nil {
		return err
	}
	ranged, err := readBoth(ctx, sides, rangesOf(cuts), len(docs))
	if err != nil {
		return err
	}
	b.set("validate_ceiling_docs_per_s", plain)
	b.set("validate_ceiling_in_slices_docs_per_s", ranged)
	v := &validation.Validator{
		Source: &validation.Mongo{Client: sides[0].Client(), Database: loads.SourceDB}, Target: &validation.Mongo{Client: sides[1].Client(), Database: loads.SourceDB},
		Markers: still{}, Log: still{}, Cuts: still{cuts}, Database: loads.SourceDB,
	}
	began := time.Now()
	res, err := v.Run(ctx, []string{loads.Collection})
	if err != nil {
		return err
	}
	if !res.Clean() || res.Documents != int64(len(docs)) {
		return errors.New(res.String())
	}
	rate := float64(res.Documents) / time.Since(began).Seconds()
	b.set("compare_docs_per_s", rate)
	b.ratio("compare_vs_ceiling", rate, ranged)
	return nil
}

// comparedSlice is how many documents the import plans for a slice.
const comparedSlice = 15_000

// cutEvery gives the _id of every n-th document in their order.
func cutEvery(docs []bson.Raw, n int) (cuts []validation.Cut) {
	sorted := slices.SortedFunc(slices.Values(docs), func(x, y bson.Raw) int {
		return strings.Compare(x.Lookup("_id").StringValue(), y.Lookup("_id").StringValue())
	})
	for from := n; from < len(sorted); from += n {
		cuts = append(cuts, validation.Cut{At: sorted[from].Lookup("_id"), Documents: int64(n)})
	}
	return cuts
}

// rangesOf gives the filters of the ranges between cuts.
func rangesOf(cuts []validation.Cut) (filters []bson.D) {
	var last bson.D
	for _, c := range cuts {
		filters = append(filters, bson.D{{Key: "_id", Value: append(slices.Clone(last), bson.E{Key: "$lte", Value: c.At})}})
		last = bson.D{{Key: "$gt", Value: c.At}}
	}
	return append(filters, bson.D{{Key: "_id", Value: last}})
}

// readBoth finds on both sides at once what filters find, and gives the documents
// of one side per second.
func readBoth(ctx context.Context, sides []*mongo.Database, filters []bson.D, want int) (float64, error) {
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for _, db := range sides {
		g.Go(func() error {
			seen := 0
			for _, f := range filters {
				cur, err := db.RunCommandCursor(ctx, bson.D{
					{Key: "find", Value: loads.Collection}, {Key: "filter", Value: f}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "batchSize", Value: 20_000},
				})
				if err != nil {
					return err
				}
				for cur.Next(ctx) {
					seen++
				}
				if err := errors.Join(cur.Err(), cur.Close(ctx)); err != nil {
					return err
				}
			}
			if seen != want {
				return errors.New("a plain read did not find every document once")
			}
			return nil
		})
	}
	err := g.Wait()
	return float64(want) / time.Since(began).Seconds(), err
}

// still is a source that nobody writes to.
type still struct{ cuts []validation.Cut }

// Write implements [validation.Markers].
func (still) Write(context.Context) (validation.Mark, error) { return validation.Mark{}, nil }

// Passed implements [validation.Markers].
func (still) Passed(context.Context, validation.Mark) error { return nil }

// Touched implements [validation.Log].
func (still) Touched(context.Context, validation.Mark, validation.Mark, *validation.Touched) error {
	return nil
}

// Cuts implements [validation.Cuts].
func (s still) Cuts(context.Context, string) ([]validation.Cut, error) { return s.cuts, nil }
