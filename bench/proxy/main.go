// Command proxy measures Drover's proxy against a forwarder that only copies
// bytes, and for information against the shard itself and mongobetween, all in
// one run on one machine: only the ratios say something. It writes a flat JSON
// object.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/bench/figures"
	"drover/devstack"
)

func main() { figures.Main(run) }

// run is main with errors.
func run(ctx context.Context) error {
	if role := os.Getenv(roleVariable); role != "" {
		return runRole(ctx, role)
	}
	out := flag.String("out", "bench/out/proxy.json", "file to write")
	rounds := flag.Int("rounds", 9, "rounds of each comparison; the median counts")
	length := flag.Duration("round", time.Second, "length of a round")
	only := flag.String("only", "", "parts to run, separated by commas: latency, throughput, memory, fence; empty: all")
	profile := flag.String("cpuprofile", "", "file for a processor profile of the proxy")
	flag.Parse()
	b := &bench{rounds: *rounds, round: *length, profile: *profile, results: map[string]any{}}
	defer b.stop()
	if err := b.start(ctx); err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{"latency", b.latency}, {"throughput", b.throughput}, {"memory", b.memory}, {"fence", b.fence}} {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return b.write(*out)
}

// bench is one run.
type bench struct {
	rounds  int
	round   time.Duration
	profile string
	results map[string]any

	dir     string
	shard   *devstack.ShardServer
	proxy   *part
	forward *part
	between *exec.Cmd // nil: mongobetween is not there
	ways    []*way
	clients []*mongo.Client
}

// way is one way to the same documents.
type way struct {
	name   string
	client *mongo.Client
	coll   *mongo.Collection
}

// start runs the shard, the proxy, the forwarder and mongobetween.
func (b *bench) start(ctx context.Context) error {
	tools, err := devstack.NewTools()
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "drover-bench"); err != nil {
		return err
	}
	if b.shard, err = devstack.NewShard(b.dir, "bench", tools); err != nil {
		return err
	}
	if err := b.shard.Start(ctx); err != nil {
		return err
	}
	access := b.shard.Access()
	set := settings{URI: access.URI, User: access.User, Password: access.Password, Profile: b.profile}
	layout := newFleet(set)
	host := strings.TrimSuffix(strings.TrimPrefix(access.URI, "mongodb://"), "/?directConnection=true")
	if b.forward, err = startPart(ctx, "forward", []byte(host)); err != nil {
		return err
	}
	line, err := json.Marshal(set)
	if err != nil {
		return err
	}
	if b.proxy, err = startPart(ctx, "proxy", line); err != nil {
		return err
	}
	physical := layout.routes[0].Placement.Database
	for _, w := range []struct{ name, uri, db string }{
		{"proxy", "mongodb://" + b.proxy.address, speedDB},
		{"forwarder", strings.Replace(access.AdminURI, host, b.forward.address, 1), physical},
		{"direct", access.AdminURI, physical},
		{"mongobetween", b.startBetween(ctx, access.AdminURI), physical},
	} {
		if w.uri == "" {
			continue
		}
		c, err := b.dial(w.uri)
		if err != nil {
			return err
		}
		b.ways = append(b.ways, &way{w.name, c, c.Database(w.db).Collection(docs)})
	}
	return b.fill(ctx, layout)
}

// dial makes a driver's client.
func (b *bench) dial(uri string) (*mongo.Client, error) {
	c, err := mongo.Connect(options.Client().ApplyURI(uri).SetMaxPoolSize(200))
	if err == nil {
		b.clients = append(b.clients, c)
	}
	return c, err
}

// documents is the number of documents in a chunk.
const documents = 1000

// fill stores the documents, straight on the shard.
func (b *bench) fill(ctx context.Context, f *fleet) error {
	c, err := b.dial(b.shard.Access().AdminURI)
	if err != nil {
		return err
	}
	for _, r := range f.routes {
		var all []any
		for _, key := range f.keys(r, documents) {
			all = append(all, bson.D{{Key: "_id", Value: key}, {Key: "n", Value: 0}, {Key: "pad", Value: strings.Repeat("x", 400)}})
		}
		if _, err := c.Database(r.Placement.Database).Collection(docs).InsertMany(ctx, all); err != nil {
			return fmt.Errorf("fill %s: %w", r.Placement.Database, err)
		}
	}
	return nil
}

// startBetween runs mongobetween where it is installed and gives its URI.
func (b *bench) startBetween(ctx context.Context, shard string) string {
	path, err := exec.LookPath("mongobetween")
	if err != nil {
		return ""
	}
	const address = "127.0.0.1:27916"
	b.between = exec.CommandContext(ctx, path, "-loglevel", "error", address+"="+shard) //nolint:gosec // named by the one who runs it
	if err := b.between.Start(); err != nil {
		b.between = nil
		return ""
	}
	return "mongodb://" + address + "/?directConnection=true"
}

// stop ends everything that start began.
func (b *bench) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, c := range b.clients {
		_ = c.Disconnect(ctx)
	}
	for _, p := range []*part{b.proxy, b.forward} {
		if p != nil {
			p.stop()
		}
	}
	if b.between != nil {
		_ = b.between.Process.Kill()
		_ = b.between.Wait()
	}
	if b.shard != nil {
		_ = b.shard.Stop(ctx)
	}
	_ = os.RemoveAll(b.dir)
}

// write prints the results and puts them into a file.
func (b *bench) write(path string) error {
	for _, k := range slices.Sorted(maps.Keys(b.results)) {
		fmt.Printf("%-34s %v\n", k, b.results[k])
	}
	_, err := figures.Write(path, b.results)
	return err
}
