package main

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bench/loads"
	"drover/bulkimport"
)

// count finds how many pages of each index, and of the one on _id, a batch touches
// in either order.
func (t *told) count(docs []bson.Raw, indexes []bson.D) error {
	sorted, err := loads.SortedAs(docs, t.order)
	if err != nil {
		return err
	}
	for _, key := range append(slices.Clone(indexes), nil) {
		o := bulkimport.Order{} // by _id alone
		for _, e := range key {
			o.Fields = append(o.Fields, bulkimport.OrderField{Path: e.Key})
		}
		pages, err := pagesOf(docs, o)
		if err != nil {
			return fmt.Errorf("index %s: %w", o, err)
		}
		t.sorted, t.random = append(t.sorted, touched(sorted, pages)), append(t.random, touched(docs, pages))
	}
	return nil
}

// pagesOf tells on which page of an index each document's key is when all are there,
// by _id.
func pagesOf(docs []bson.Raw, o bulkimport.Order) (map[string]int, error) {
	all, err := loads.SortedAs(docs, o)
	if err != nil {
		return nil, err
	}
	pages := make(map[string]int, len(all))
	for i, d := range all {
		pages[d.Lookup("_id").StringValue()] = i / perPage
	}
	return pages, nil
}

// touched is how many pages a batch of documents in an order touches, on average.
func touched(docs []bson.Raw, pages map[string]int) float64 {
	sum, batches := 0, 0
	for batch := range slices.Chunk(docs, perBatch) {
		seen := map[int]bool{}
		for _, d := range batch {
			seen[pages[d.Lookup("_id").StringValue()]] = true
		}
		sum, batches = sum+len(seen), batches+1
	}
	return float64(sum) / float64(batches)
}
