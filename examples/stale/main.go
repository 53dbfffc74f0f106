// Command stale lets a proxy that heard nothing of a switch send its requests where
// the chunk was: the shard itself refuses them, and the proxy finds the chunk. A
// client that goes past the proxy with the same password is refused alike. The
// shards are simulated; it needs no server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/bench/fences"
	"drover/bench/figures"
	"drover/chunk"
)

func main() {
	figures.Main(func(ctx context.Context) error {
		_, err := lesson(ctx, os.Stdout)
		return err
	})
}

// writes is how many are made through the stale proxy.
const writes = 3

// told is what the lesson came to.
type told struct {
	direct  int             // code that the old shard gave a client that went past the proxy
	old     fences.Arrivals // since the switch
	target  fences.Arrivals // since the switch
	ran     int64           // writes, by the documents
	from    chunk.Placement // before the switch
	serving chunk.Placement // after it
	errs    []error         // of the application
}

// lesson switches the chunk behind a proxy's back.
func lesson(ctx context.Context, out io.Writer) (t told, err error) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	f, err := fences.New(fences.Settings{Deaf: true, Profiles: []fences.Profile{{Name: "shop", Tries: 1}}})
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	shop := f.Callers[0]
	t.from = f.Serving()
	say("The proxy is deaf: no announcement reaches it. It read once that the chunk is %s on shard %s.", t.from.Database, t.from.Shard)

	if err := f.Switch(); err != nil {
		return t, err
	}
	t.serving = f.Serving()
	say("The chunk is switched to shard %s, as %s. On shard %s the roles of the old copy are dropped. The proxy does not know.\n", t.serving.Shard, t.serving.Database, t.from.Shard)

	t.old, t.target = f.Arrivals(t.from.Shard), f.Arrivals(t.serving.Shard)
	before := f.Counts()
	for n := range writes {
		if err := shop.Once(ctx, fences.Write, fences.DocumentOf(shop.Name, fences.Write, n)); err != nil {
			t.errs = append(t.errs, err)
		}
	}
	for id, n := range f.Counts() {
		t.ran += n - before[id]
	}
	say("The application makes %d writes, each once: %d errors, %d of them ran.", writes, len(t.errs), t.ran)
	say("  shard %s, the old one:  %d arrived, %d refused by the shard itself", t.from.Shard, t.old.Arrived(), t.old.Refused())
	say("  shard %s, the new one:  %d arrived, %d refused", t.serving.Shard, t.target.Arrived(), t.target.Refused())
	say("The first refusal made the proxy look the chunk up; the others went where it is.\n")

	t.direct, err = direct(ctx, f, t.from)
	if err != nil {
		return t, err
	}
	say("A client that goes to shard %s directly, with the password of the proxies: code %d, Unauthorized. The fence is on the shard, in no cache.", t.from.Shard, t.direct)
	return t, nil
}

// direct writes to a placement past the proxy and gives the code of the refusal.
func direct(ctx context.Context, f *fences.Fleet, p chunk.Placement) (code int, err error) {
	c, err := f.Direct(p.Shard)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Disconnect(context.WithoutCancel(ctx))) }()
	_, err = c.Database(p.Database).Collection(fences.Collection).InsertOne(ctx, bson.D{{Key: "_id", Value: "late"}})
	told, ok := errors.AsType[mongo.CommandError](err)
	if !ok {
		return 0, fmt.Errorf("the old shard did not refuse a write: %v", err)
	}
	return int(told.Code), nil
}
