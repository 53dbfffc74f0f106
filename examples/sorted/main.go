// Command sorted copies a collection into a server in the order that the import
// chooses, and inserts the same documents into another one in the order of their
// random _id. It shows how many pages of each index a batch touches either way, and
// how fast the servers took them. It starts servers of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bench/figures"
	"drover/bench/loads"
	"drover/bulkimport"
)

func main() { figures.Main(func(ctx context.Context) error { return run(ctx, os.Stdout) }) }

// run is main with errors.
func run(ctx context.Context, out io.Writer) error {
	s := size{}
	flag.IntVar(&s.documents, "documents", 150_000, "documents to load")
	flag.IntVar(&s.cacheMB, "cache-mb", 32, "cache of the servers that are loaded")
	flag.Parse()
	if s.documents < perBatch || s.cacheMB < 1 {
		return fmt.Errorf("documents is %d, cache-mb %d; want %d and 1 at least", s.documents, s.cacheMB, perBatch)
	}
	dir, err := filepath.Abs(filepath.Join(".drover", "lesson-sorted"))
	if err != nil {
		return err
	}
	_, err = lesson(ctx, out, dir, s)
	return err
}

// size of the lesson.
type size struct{ documents, cacheMB int }

// How pages are counted: a batch of the import, and keys that a leaf page of an
// index holds, about.
const (
	perBatch = 1000
	perPage  = 200
)

// told is what the lesson came to.
type told struct {
	order          bulkimport.Order
	sorted, random []float64 // pages of each index that a batch touches, on average
	copied, there  int64     // documents on the two servers
}

// limit ends each side of the comparison; it is no expectation.
const limit = 5 * time.Minute

// lesson loads the documents in both orders.
func lesson(ctx context.Context, out io.Writer, dir string, s size) (t told, err error) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	indexes := loads.Prefixed(3)
	docs, err := loads.Documents(s.documents, loads.Padding)
	if err != nil {
		return t, err
	}
	servers, err := loads.Start(ctx, dir)
	defer func() { err = errors.Join(err, servers.Stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return t, err
	}
	from, _, err := servers.Shard(ctx, "source", 256)
	if err != nil {
		return t, err
	}
	if err := loads.Provision(ctx, from.Database(loads.SourceDB), indexes); err != nil {
		return t, err
	}
	if _, err := loads.InsertAll(ctx, from.Database(loads.SourceDB), docs, limit); err != nil {
		return t, err
	}
	say("%d documents of about 400 bytes, _id at random; indexes a, (a, b), (a, c). Servers with %d MB of cache.\n", s.documents, s.cacheMB)

	to, access, err := servers.Shard(ctx, "sorted", s.cacheMB)
	if err != nil {
		return t, err
	}
	db := to.Database(loads.TargetDB(1))
	if err := loads.Provision(ctx, db, indexes); err != nil {
		return t, err
	}
	r, err := loads.ImportOnce(ctx, servers.Bucket, 1, from, to, indexes, limit)
	if err != nil {
		return t, err
	}
	if t.copied, err = db.Collection(loads.Collection).CountDocuments(ctx, bson.D{}); err != nil {
		return t, err
	}
	if err := servers.StopShard(ctx, access.Name); err != nil { // the other one has the machine for itself
		return t, err
	}
	t.order = r.Order
	other, _, err := servers.Shard(ctx, "random", s.cacheMB)
	if err != nil {
		return t, err
	}
	db = other.Database(loads.TargetDB(1))
	if err := loads.Provision(ctx, db, indexes); err != nil {
		return t, err
	}
	random, err := loads.InsertAll(ctx, db, docs, limit)
	if err != nil {
		return t, err
	}
	if t.there, err = db.Collection(loads.Collection).CountDocuments(ctx, bson.D{}); err != nil {
		return t, err
	}
	if err := t.count(docs, indexes); err != nil {
		return t, err
	}
	say("The import sorts %s.\n", t.order.Why)
	say("pages that a batch of %d touches      sorted   random", perBatch)
	for i, key := range append(indexes, bson.D{{Key: "_id", Value: 1}}) {
		say("  index (%-6s                     %8.1f %8.1f", names(key)+")", t.sorted[i], t.random[i])
	}
	say("\nSorted, the server took %.0f documents a second, at random %.0f.", r.Load.Over(), random.Over())
	return t, nil
}

// names are the fields of an index.
func names(key bson.D) string {
	var all []string
	for _, e := range key {
		all = append(all, e.Key)
	}
	return strings.Join(all, ", ")
}
