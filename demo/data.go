package demo

import (
	"compress/gzip"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/demo/workload"
	"drover/metadata"
	"drover/workers"
)

// chunks is how many chunks the demonstration's database has.
const chunks = 8

// flight is one row of the real data.
type flight struct {
	ID          int32     `bson:"_id"`
	Date        time.Time `bson:"date"`
	Delay       int32     `bson:"delay_min"`
	Distance    int32     `bson:"distance_mi"`
	Origin      string    `bson:"origin"`
	Destination string    `bson:"destination"`
}

// index makes an index specification.
func index(name string, unique bool, fields ...string) bson.Raw {
	key := bson.D{}
	for _, f := range fields {
		key = append(key, bson.E{Key: f, Value: int32(1)})
	}
	d := bson.D{{Key: "key", Value: key}, {Key: "name", Value: name}}
	if unique {
		d = append(d, bson.E{Key: "unique", Value: true})
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err) // only strings and a bool
	}
	return raw
}

// createDatabase spreads eight chunks over two of the three shards.
func (d *demo) createDatabase(ctx context.Context) error {
	db := chunk.Database{Name: database, KeySpace: chunk.Hashed, Collections: []chunk.Collection{
		{Name: rows, ShardKey: "origin", Indexes: []bson.Raw{index("origin_date", false, "origin", "date"), index("date", false, "date")}},
		{Name: workload.Collection, ShardKey: "origin", Indexes: []bson.Raw{index("origin_ref", true, "origin", "ref"), index("v", false, "v")}},
	}}
	var parts []metadata.NewChunk
	for i, r := range chunk.Hashed.Split(chunks) {
		parts = append(parts, metadata.NewChunk{Range: r, Shard: []string{"shard-a", "shard-b"}[i%2]})
	}
	routes, err := workers.CreateDatabase(ctx, d.store, d.stack.Secret, db, parts)
	if err != nil {
		return err
	}
	for _, r := range routes {
		hot, err := inChunk(r, hotKey)
		if err != nil {
			return err
		}
		if hot {
			d.report.Chunk, d.report.From = r.Chunk.ID, r.Placement.Shard
			d.hot = r
		}
	}
	return nil
}

// inChunk reports whether an origin's documents live in a chunk.
func inChunk(r chunk.Route, origin string) (bool, error) {
	raw, err := bson.Marshal(bson.D{{Key: "origin", Value: origin}})
	if err != nil {
		return false, err
	}
	p, err := chunk.Hashed.DocumentPoint(raw, "origin")
	return err == nil && r.Chunk.Range.Contains(p), err
}

// readRows calls fn with each row of the real data.
func (d *demo) readRows(fn func(flight) error) error {
	f, err := os.Open(filepath.Join(d.o.Data, "flights.csv.gz"))
	if err != nil {
		return fmt.Errorf("open the flights: %w", err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("read the flights: %w", err)
	}
	r := csv.NewReader(z)
	r.ReuseRecord = true
	if _, err := r.Read(); err != nil {
		return fmt.Errorf("read the flights: %w", err)
	}
	for id := int32(1); d.o.Rows == 0 || int(id) <= d.o.Rows; id++ {
		rec, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the flights: %w", err)
		}
		row, err := parseRow(id, rec)
		if err != nil {
			return fmt.Errorf("row %d of the flights: %w", id, err)
		}
		if err := fn(row); err != nil {
			return err
		}
	}
	return nil
}

func parseRow(id int32, rec []string) (flight, error) {
	at, err := time.Parse("2006-01-02T15:04", rec[0])
	if err != nil {
		return flight{}, err
	}
	delay, err := strconv.ParseInt(rec[1], 10, 32)
	if err != nil {
		return flight{}, err
	}
	distance, err := strconv.ParseInt(rec[2], 10, 32)
	if err != nil {
		return flight{}, err
	}
	return flight{
		ID: id, Date: at, Delay: int32(delay), Distance: int32(distance),
		Origin: string([]byte(rec[3])), Destination: string([]byte(rec[4])),
	}, nil
}

// loadRows inserts the real data through the proxies.
func (d *demo) loadRows(ctx context.Context) error {
	began := time.Now()
	client, err := workload.Connect(d.uri())
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	coll := client.Database(database).Collection(rows)
	var loaded atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	origins := map[string]int{}
	batch := make([]any, 0, 1000)
	flush := func() {
		docs := batch
		batch = make([]any, 0, 1000)
		g.Go(func() error {
			_, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
			loaded.Add(int64(len(docs)))
			return err
		})
	}
	err = d.readRows(func(f flight) error {
		origins[f.Origin]++
		if batch = append(batch, f); len(batch) == cap(batch) {
			flush()
		}
		return ctx.Err()
	})
	if len(batch) > 0 {
		flush()
	}
	if err = errors.Join(err, g.Wait()); err != nil {
		return fmt.Errorf("load the flights: %w", err)
	}
	d.report.Rows = loaded.Load()
	for o := range origins {
		hot, err := inChunk(d.hot, o)
		if err != nil {
			return err
		}
		if hot {
			d.hotOrigins = append(d.hotOrigins, o)
		} else {
			d.origins = append(d.origins, o)
		}
	}
	d.say("%d flights loaded through the proxies in %.1f s; the chunk of %s is %s on %s", d.report.Rows, time.Since(began).Seconds(), hotKey, d.report.Chunk, d.report.From)
	return nil
}

// uri is the seed list of the proxies.
func (d *demo) uri() string {
	hosts := d.proxies
	out := "mongodb://"
	for i, h := range hosts {
		if i > 0 {
			out += ","
		}
		out += h
	}
	return out + "/"
}

// checkRows reads the real data back and compares every row: the application
// never touched it, so it must be as it was loaded.
func (d *demo) checkRows(ctx context.Context, v *workload.Verdict) error {
	client, err := workload.Connect(d.uri())
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	cur, err := client.Database(database).Collection(rows).Find(ctx, bson.D{}, options.Find().SetBatchSize(5000))
	if err != nil {
		return fmt.Errorf("read the flights back: %w", err)
	}
	found := map[int32]flight{}
	for cur.Next(ctx) {
		var f flight
		if err := cur.Decode(&f); err != nil {
			return fmt.Errorf("read the flights back: %w", err)
		}
		if _, twice := found[f.ID]; twice {
			v.Duplicated++
		}
		f.Date = f.Date.UTC()
		found[f.ID] = f
	}
	if err := cur.Err(); err != nil {
		return fmt.Errorf("read the flights back: %w", err)
	}
	err = d.readRows(func(want flight) error {
		v.Documents++
		if got, ok := found[want.ID]; !ok || got != want {
			v.Lost++
		}
		delete(found, want.ID)
		return nil
	})
	v.Duplicated += int64(len(found))
	return err
}
