package proxy

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// stats answers dbStats and collStats with the sums over the chunks.
//
// Behaviour: counts and sizes are added, scaled as asked; averages are made anew.
//
// Not supported: what a sum says nothing about, such as wiredTiger.
func stats(ctx context.Context, p *Proxy, q *request) error {
	database := strings.EqualFold(string(q.cmd.Name), "dbStats")
	db, err := p.routing.database(ctx, q.cmd.DB)
	if err != nil {
		return err
	}
	if !database {
		var coll *collection
		if db, coll, err = p.place(ctx, q); err != nil {
			return err
		}
		if coll == nil {
			db = nil
		}
	}
	var answers []answer
	if db != nil && len(db.entries) > 0 {
		answers, err = p.gather(ctx, q, db.entries, edit{})
		if err != nil {
			return err
		}
	}
	q.build(func(dst []byte) []byte {
		if database {
			dst = bsoncore.AppendStringElement(dst, "db", string(q.cmd.DB))
		} else {
			dst = bsoncore.AppendStringElement(dst, "ns", string(q.cmd.DB)+"."+string(q.cmd.Collection()))
		}
		return appendSums(dst, answers)
	})
	return nil
}

// summed are the numbers of stats that add up; those that every chunk has alike
// are not among them.
var summed = []string{"views", "objects", "count", "size", "dataSize", "storageSize", "totalIndexSize", "indexSize", "totalSize", "numOrphanDocs"}

// alike are the numbers of stats that every chunk has the same.
var alike = []string{"collections", "nindexes", "indexes", "scaleFactor"}

// appendSums appends what some chunks' stats come to.
func appendSums(dst []byte, answers []answer) []byte {
	sums := map[string]int64{}
	for _, name := range summed {
		known := false
		for i := range answers {
			if e, ok := wire.Find(answers[i].raw, name); ok {
				n, _ := e.Number()
				sums[name] += n
				known = true
			}
		}
		if known || len(answers) == 0 {
			dst = appendCount(dst, name, sums[name])
		}
	}
	for _, name := range alike {
		for i := range answers {
			if e, ok := wire.Find(answers[i].raw, name); ok {
				dst = append(dst, e.Raw...)
				break
			}
		}
	}
	objects, bytes := max(sums["objects"], sums["count"]), max(sums["size"], sums["dataSize"])
	average := 0.0
	if objects > 0 {
		average = float64(bytes) / float64(objects)
	}
	return bsoncore.AppendDoubleElement(dst, "avgObjSize", average)
}
