package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"drover/bench/fences"
	"drover/chunk"
	"drover/proxy"
)

// Logical databases of the benchmark. All of them lie on one shard: two cores
// have no room for more.
const (
	speedDB = "speed" // one chunk
	pairDB  = "pair"  // two chunks, one of which is fenced
	docs    = "docs"  // the collection of each
)

// chunksOf is the number of chunks of each logical database.
var chunksOf = map[string]int{speedDB: 1, pairDB: 2}

// settings is what the proxy's process is told about its fleet.
type settings struct {
	URI, User, Password string
	Profile             string // where to write a processor profile; empty: nowhere
}

// fleet is the metadata that the measured proxy reads, in its own memory.
type fleet struct {
	fences.Feed
	shard     proxy.Shard
	databases []chunk.Database
	routes    []chunk.Route

	mu       sync.Mutex
	attempt  chunk.AttemptID
	attempts map[chunk.ID]chunk.Notice
}

// newFleet lays out the logical databases. Everybody who calls it gets the same.
func newFleet(s settings) *fleet {
	f := &fleet{
		shard:    proxy.Shard{Shard: chunk.Shard{Name: "bench", URI: s.URI}, User: s.User, Password: s.Password},
		attempts: map[chunk.ID]chunk.Notice{},
	}
	for i, name := range []string{speedDB, pairDB} {
		f.databases = append(f.databases, chunk.Database{
			Name: name, KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: docs, ShardKey: "_id"}},
		})
		for n, r := range chunk.Hashed.Split(chunksOf[name]) {
			id, placement := chunk.NewID(name, n+1), chunk.PlacementID(10*i+n+1)
			f.routes = append(f.routes, chunk.Route{
				Chunk: chunk.Chunk{ID: id, Database: name, Range: r},
				Placement: chunk.Placement{
					ID: placement, Chunk: id, Shard: "bench", Database: chunk.PhysicalName(id, placement), State: chunk.Live,
				},
				Token: chunk.Token(placement),
			})
		}
	}
	return f
}

// ports gives the proxy its view.
func (f *fleet) ports() proxy.Ports {
	return proxy.Ports{Routes: f, Attempts: f, Feed: f, Acks: f, Presence: f, Shards: f}
}

// Snapshot implements [proxy.Routes].
func (f *fleet) Snapshot(context.Context) (proxy.Snapshot, error) {
	return proxy.Snapshot{Databases: f.databases, Routes: f.routes}, nil
}

// Route implements [proxy.Routes].
func (f *fleet) Route(_ context.Context, id chunk.ID) (chunk.Route, []proxy.Former, error) {
	for _, r := range f.routes {
		if r.Chunk.ID == id {
			return r, nil, nil
		}
	}
	return chunk.Route{}, nil, fmt.Errorf("no chunk %s", id)
}

// LatestAttempt implements [proxy.Attempts].
func (f *fleet) LatestAttempt(_ context.Context, id chunk.ID) (chunk.Notice, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.attempts[id]
	return n, ok, nil
}

// Shard implements [proxy.Shards].
func (f *fleet) Shard(context.Context, string) (proxy.Shard, error) { return f.shard, nil }

// fence announces an attempt that never goes on, until lift.
func (f *fleet) fence(id string) {
	f.mu.Lock()
	f.attempt++
	f.mu.Unlock()
	f.announce(chunk.ID(id), chunk.Fencing)
}

// lift ends the announced attempt.
func (f *fleet) lift(id string) { f.announce(chunk.ID(id), chunk.AttemptAborted) }

// announce tells the proxy an attempt's state.
func (f *fleet) announce(id chunk.ID, state chunk.AttemptState) {
	r, _, err := f.Route(context.Background(), id)
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	n := chunk.Notice{
		Attempt: f.attempt, Migration: 1, State: state, Source: r.Placement.ID, Target: r.Placement.ID + 1000,
		Chunks: []chunk.ID{id}, DeadlineUnixMS: time.Now().Add(10 * time.Second).UnixMilli(),
	}
	f.attempts[id] = n
	f.mu.Unlock()
	f.Announce(proxy.Announcement{Notice: &n})
}
