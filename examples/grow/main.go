// Command grow shows how many keys change their shard when 8 shards become 12: by
// a hash modulo the number of shards, by consistent hashing, and by a plan over
// chunks, which is Drover's way. It needs no server.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"drover/balancer"
	"drover/bench/figures"
)

func main() { figures.Main(func(context.Context) error { return run(os.Stdout) }) }

// run is main with errors.
func run(out io.Writer) error {
	var from, to, keys, chunks int
	flag.IntVar(&from, "from", 8, "shards before")
	flag.IntVar(&to, "to", 12, "shards after")
	flag.IntVar(&keys, "keys", 1_000_000, "keys that are placed")
	flag.IntVar(&chunks, "chunks", 240, "chunks of the key space")
	flag.Parse()
	_, err := lesson(out, from, to, keys, chunks)
	return err
}

// pointsOfAShard is how many points a shard has on the ring of consistent hashing.
const pointsOfAShard = 200

// lesson places the keys before and after, and counts those that moved.
func lesson(out io.Writer, from, to, keys, chunks int) (balancer.Growth, error) {
	g, err := balancer.Grow(from, to, keys, chunks, pointsOfAShard)
	if err != nil {
		return g, err
	}
	_, _ = fmt.Fprintf(out, "%d keys on %d shards, %d shards wanted: who has to move?\n\n", keys, from, to)
	for _, way := range []struct {
		name  string
		share float64
		why   string
	}{
		{"hash modulo shards", g.Modulo, "the divisor changed, and nearly every remainder with it"},
		{fmt.Sprintf("ring of %d points a shard", g.Nodes), g.Ring, "only towards the new shards, but the ring decides how many"},
		{fmt.Sprintf("plan over %d chunks", g.Chunks), g.Plan, "whole chunks, to the new shards only, until all are alike"},
		{"least possible", g.Bound, "what the new shards must hold in the end"},
	} {
		_, _ = fmt.Fprintf(out, "%-26s %5.1f %%  %9.0f keys   %s\n", way.name, 100*way.share, way.share*float64(keys), way.why)
	}
	_, _ = fmt.Fprintf(out, "\nA key belongs to its chunk for good, and a chunk to any shard: growing is %.0f moves of one chunk each,\n", g.Plan*float64(chunks))
	_, _ = fmt.Fprintln(out, "any number at a time, and each of them can be rolled back.")
	return g, nil
}
