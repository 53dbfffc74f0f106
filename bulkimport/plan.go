package bulkimport

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// size is what a collection's statistics say; it only serves estimates.
type size struct {
	documents Documents
	bytes     Bytes
	indexes   map[string]Bytes // by name, where the server says
}

// size asks for a collection's size.
func (s Source) size(ctx context.Context, c collection) (size, error) {
	cursor, err := s.Client.Database(s.Database).Collection(c.name).Aggregate(ctx, []bson.D{
		{{Key: "$collStats", Value: bson.D{{Key: "storageStats", Value: bson.D{}}}}},
		{{Key: "$project", Value: bson.D{
			{Key: "count", Value: "$storageStats.count"}, {Key: "size", Value: "$storageStats.size"}, {Key: "indexes", Value: "$storageStats.indexSizes"},
		}}},
	})
	if err != nil {
		return size{}, fmt.Errorf("size of %s.%s: %w", s.Database, c.name, err)
	}
	var stats []struct {
		Count int64 `bson:"count"`
		Size  int64 `bson:"size"`

		Indexes map[string]int64 `bson:"indexes"`
	}
	if err := cursor.All(ctx, &stats); err != nil {
		return size{}, fmt.Errorf("size of %s.%s: %w", s.Database, c.name, err)
	}
	total := size{indexes: map[string]Bytes{}}
	for _, one := range stats {
		total.documents += Documents(one.Count)
		total.bytes += Bytes(one.Size)
		for name, n := range one.Indexes {
			total.indexes[name] += Bytes(n)
		}
	}
	return total, nil
}

// perSlice gives the number of documents that a slice is planned with: a quarter
// less than what it may hold, so that few have to be cut while they are read.
func (l Limits) perSlice(of size) Documents {
	n := l.Documents
	if of.documents > 0 && of.bytes > 0 {
		average := max(1, of.bytes/Bytes(of.documents))
		n = min(n, Documents(l.Bytes/average))
	}
	return max(1, n*3/4)
}

// plan cuts a collection: it walks the _id index and takes every n-th _id as a
// boundary. The first slice and the last one are open, so that all slices
// together hold every _id there can be.
func (s Source) plan(ctx context.Context, turns turns, c collection, base Slice, n Documents) ([]Slice, error) {
	cmd, _ := c.find(nil, nil)
	cmd = append(cmd, bson.E{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}})
	cursor, err := turns.open(func() (*mongo.Cursor, error) {
		return s.Client.Database(s.Database).RunCommandCursor(ctx, turns.first(cmd, idsTurn), options.RunCmd().SetReadPreference(s.preference()))
	})
	if err != nil {
		return nil, fmt.Errorf("walk _id of %s.%s: %w", s.Database, c.name, err)
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()

	var boundaries []bson.Raw
	for seen := Documents(1); turns.next(ctx, cursor, idsTurn); seen++ {
		id := cursor.Current.Lookup("_id")
		if seen <= n || !c.divides(id) {
			continue
		}
		seen = 1
		at, err := boundOf(id)
		if err != nil {
			return nil, err
		}
		boundaries = append(boundaries, at)
	}
	if err := cutOff(ctx, cursor); err != nil {
		return nil, fmt.Errorf("walk _id of %s.%s: %w", s.Database, c.name, err)
	}
	return slicesAt(base, boundaries), nil
}

// slicesAt gives the slices between boundaries.
func slicesAt(base Slice, boundaries []bson.Raw) []Slice {
	base.State = Planned
	planned := []Slice{base}
	for _, at := range boundaries {
		next := base
		next.Number, next.Lo = len(planned), at
		planned[len(planned)-1].Hi = at
		planned = append(planned, next)
	}
	return planned
}
