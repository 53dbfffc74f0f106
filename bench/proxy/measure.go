package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
)

// keys gives n shard-key values that lie in r's chunk.
func (f *fleet) keys(r chunk.Route, n int) (out []string) {
	for i := 0; len(out) < n; i++ {
		key := "key-" + strconv.Itoa(i)
		typ, data, err := bson.MarshalValue(key)
		if err != nil {
			panic(err)
		}
		if point, err := chunk.Hashed.Point(bson.RawValue{Type: typ, Value: data}); err == nil && r.Chunk.Range.Contains(point) {
			out = append(out, key)
		}
	}
	return out
}

// read finds one document by its key.
func read(ctx context.Context, c *mongo.Collection, key string) error {
	_, err := c.FindOne(ctx, bson.D{{Key: "_id", Value: key}}).Raw()
	return err
}

// write changes one document by its key.
func write(ctx context.Context, c *mongo.Collection, key string) error {
	_, err := c.UpdateByID(ctx, key, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	return err
}

// operation is one of them.
type operation func(ctx context.Context, c *mongo.Collection, key string) error

// percentile gives the p-th (0 to 1) of unsorted values.
func percentile[T cmp.Ordered](values []T, p float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

// rounded keeps n digits after the point.
func rounded(v float64, n int) float64 {
	scale := math.Pow10(n)
	return math.Round(v*scale) / scale
}

// latency compares one client's findOne on every way, turn by turn, so that all
// of them see the same machine.
func (b *bench) latency(ctx context.Context) error {
	key := newFleet(settings{}).keys(newFleet(settings{}).routes[0], 1)[0]
	took := map[string][]float64{}
	before, err := b.mallocs()
	if err != nil {
		return err
	}
	ops := 0
	for end := time.Now().Add(time.Duration(b.rounds) * b.round); time.Now().Before(end); ops++ {
		for _, w := range b.ways {
			start := time.Now()
			if err := read(ctx, w.coll, key); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			took[w.name] = append(took[w.name], float64(time.Since(start).Nanoseconds())/1000)
		}
	}
	after, err := b.mallocs()
	if err != nil {
		return err
	}
	p50 := func(way string) any {
		if len(took[way]) == 0 {
			return nil
		}
		return rounded(percentile(took[way], 0.5), 1)
	}
	b.results["proxy_p50_us"], b.results["forwarder_p50_us"] = p50("proxy"), p50("forwarder")
	b.results["direct_p50_us"], b.results["mongobetween_p50_us"] = p50("direct"), p50("mongobetween")
	b.results["added_over_forwarder_p50_us"] = rounded(percentile(took["proxy"], 0.5)-percentile(took["forwarder"], 0.5), 1)
	b.results["added_over_direct_p50_us"] = rounded(percentile(took["proxy"], 0.5)-percentile(took["direct"], 0.5), 1)
	b.results["allocations_per_find"] = rounded((after-before)/float64(ops), 1)
	return nil
}

// mallocs is the number of allocations of the proxy's process so far.
func (b *bench) mallocs() (float64, error) {
	answer, err := b.proxy.tell("mallocs")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(answer, 64)
}

// clientsAtOnce is the number of clients of the throughput comparison.
const clientsAtOnce = 16

// throughput compares 16 clients' reads and writes, round by round.
func (b *bench) throughput(ctx context.Context) error {
	f := newFleet(settings{})
	keys := f.keys(f.routes[0], documents)
	for _, kind := range []struct {
		name string
		op   operation
	}{{"read", read}, {"write", write}} {
		ratios := map[string][]float64{}
		var own []float64
		for i := range b.rounds + 1 {
			speed := map[string]float64{}
			for j := range b.ways {
				w := b.ways[(i+j)%len(b.ways)]
				ops, _, err := load(ctx, w.coll, keys, clientsAtOnce, b.round, kind.op)
				if err != nil {
					return fmt.Errorf("%s by %s: %w", kind.name, w.name, err)
				}
				speed[w.name] = ops
			}
			if i == 0 {
				continue // connections were opened
			}
			own = append(own, speed["proxy"])
			for name, s := range speed {
				ratios[name] = append(ratios[name], speed["proxy"]/s)
			}
		}
		b.results[kind.name+"_ops_16"] = rounded(percentile(own, 0.5), 0)
		for _, way := range []string{"forwarder", "direct", "mongobetween"} {
			b.results[kind.name+"_vs_"+way+"_16"] = nil
			if r := ratios[way]; len(r) > 0 {
				b.results[kind.name+"_vs_"+way+"_16"] = rounded(percentile(r, 0.5), 3)
			}
		}
	}
	return nil
}

// load runs op with n clients for a while and gives operations per second and
// every operation's time in microseconds.
func load(ctx context.Context, c *mongo.Collection, keys []string, n int, length time.Duration, op operation) (float64, []float64, error) {
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	took := make([][]float64, n)
	start := time.Now()
	for i := range n {
		wg.Go(func() {
			for j := i; time.Since(start) < length && failed.Load() == nil; j += n {
				began := time.Now()
				if err := op(ctx, c, keys[j%len(keys)]); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				took[i] = append(took[i], float64(time.Since(began).Nanoseconds())/1000)
			}
		})
	}
	wg.Wait()
	seconds := time.Since(start).Seconds()
	if err := failed.Load(); err != nil {
		return 0, nil, *err
	}
	all := slices.Concat(took...)
	return float64(len(all)) / seconds, all, nil
}

// Clients of the comparison of neighbours, and for how many seconds it looks at each side.
const (
	quietClients  = 4
	fencedClients = 64
	calmSeconds   = 4
	fencedSeconds = 9 // the proxy holds requests for 10 s
)

// fence compares the p99 of one chunk while another chunk is fenced under 64
// clients, with the time right before and right after. Each side's p99 is the median of
// those of single seconds, and of the rounds the median counts: what else this machine
// does falls into single seconds, and would be a p99 of its own over all of them.
func (b *bench) fence(ctx context.Context) error {
	f := newFleet(settings{})
	fenced, other := f.routes[1], f.routes[2]
	heldKeys, keys := f.keys(fenced, documents), f.keys(other, documents)
	coll := b.ways[0].client.Database(pairDB).Collection(docs)
	crowd, err := b.dial("mongodb://" + b.proxy.address)
	if err != nil {
		return err
	}
	crowdColl := crowd.Database(pairDB).Collection(docs)
	if _, _, err := load(ctx, crowdColl, heldKeys, fencedClients, time.Second, write); err != nil { // connects
		return err
	}
	var ratios50, ratios99, calm99 []float64
	for range max(5, (b.rounds+1)/2) {
		calm, err := eachSecond(ctx, coll, keys, calmSeconds)
		if err != nil {
			return err
		}
		during, err := b.besideFence(ctx, fenced.Chunk.ID, crowdColl, heldKeys, func() (seconds, error) {
			return eachSecond(ctx, coll, keys, fencedSeconds)
		})
		if err != nil {
			return err
		}
		after, err := eachSecond(ctx, coll, keys, calmSeconds)
		if err != nil {
			return err
		}
		calm = append(calm, after...)
		ratios99 = append(ratios99, during.typical(0.99)/calm.typical(0.99))
		ratios50 = append(ratios50, during.typical(0.5)/calm.typical(0.5))
		calm99 = append(calm99, calm.typical(0.99))
	}
	b.results["noisy_neighbour_p99_ratio"] = rounded(percentile(ratios99, 0.5), 3)
	b.results["noisy_neighbour_p99_ratio_least"] = rounded(slices.Min(ratios99), 3)
	b.results["noisy_neighbour_p99_ratio_most"] = rounded(slices.Max(ratios99), 3)
	b.results["noisy_neighbour_p50_ratio"] = rounded(percentile(ratios50, 0.5), 3)
	b.results["neighbour_calm_p99_us"] = rounded(percentile(calm99, 0.5), 0)
	return nil
}

// seconds is the times of operations, second by second.
type seconds [][]float64

// eachSecond writes for n seconds.
func eachSecond(ctx context.Context, coll *mongo.Collection, keys []string, n int) (all seconds, _ error) {
	for range n {
		_, took, err := load(ctx, coll, keys, quietClients, time.Second, write)
		if err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	return all, nil
}

// typical is the median of the p-th percentiles of the seconds.
func (s seconds) typical(p float64) float64 {
	each := make([]float64, len(s))
	for i, took := range s {
		each[i] = percentile(took, p)
	}
	return percentile(each, 0.5)
}

// besideFence measures while a chunk is fenced and 64 clients wait for it.
func (b *bench) besideFence(ctx context.Context, id chunk.ID, crowd *mongo.Collection, keys []string, measure func() (seconds, error)) (seconds, error) {
	if _, err := b.proxy.tell("fence " + string(id)); err != nil {
		return nil, err
	}
	waiting := make(chan error, 1)
	go func() {
		_, _, err := load(ctx, crowd, keys, fencedClients, time.Second, write)
		waiting <- err
	}()
	took, err := measure()
	if err != nil {
		return nil, err
	}
	if _, err := b.proxy.tell("lift " + string(id)); err != nil {
		return nil, err
	}
	return took, <-waiting
}
