package proxy

import (
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// sink is a shard that takes large messages without keeping them, and answers each with
// the same reply: what is allocated meanwhile, the proxy has allocated.
func sink(t *testing.T, f *fleet, reply bson.D) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	hello := message(t, bson.D{{Key: "isWritablePrimary", Value: true}, {Key: "maxWireVersion", Value: 25}, {Key: "ok", Value: 1.0}})
	canned := message(t, reply)
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = nc.Close() }()
				answer, head := hello, make([]byte, wire.HeaderLength)
				for {
					if _, err := io.ReadFull(nc, head); err != nil {
						return
					}
					length := int64(binary.LittleEndian.Uint32(head)) - wire.HeaderLength
					if _, err := io.CopyN(io.Discard, nc, length); err != nil {
						return
					}
					first := append([]byte(nil), answer[:wire.HeaderLength]...)
					copy(first[8:], head[4:8])
					if _, err := (&net.Buffers{first, answer[wire.HeaderLength:]}).WriteTo(nc); err != nil {
						return
					}
					answer = canned
				}
			}()
		}
	}()
	s := f.shards["shard-a"]
	s.URI = "mongodb://" + l.Addr().String() + "/?directConnection=true"
	f.shards["shard-a"] = s
}

// message gives an OP_MSG with a document.
func message(t *testing.T, doc bson.D) []byte {
	t.Helper()
	b, err := bson.Marshal(doc)
	require.NoError(t, err)
	out := append(wire.BeginMsg(nil, 1, 0, 0), b...)
	wire.SetLength(out, 0)
	return out
}

// heap is how much memory is in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// grown keeps what [growCost] allocates from being left out.
var grown []byte

// growCost is how often slices.Grow allocates: once, and twice where the compiler watches
// memory for the race detector.
func growCost() float64 {
	return testing.AllocsPerRun(10, func() { grown = slices.Grow([]byte(nil), 1<<20) })
}

// A batch of 16 MB was allocated twice on its way, and four times where it was split or
// merged: memory was doubled until it fit. Now a message is read into memory of its size,
// goes from there to its shard, and is copied once where it is put together anew. And
// idle connections kept the last one for as long as they were.
func TestLargeBatchesAreCopiedOnce(t *testing.T) { //nolint:paralleltest // it counts what the process allocates
	const documents, size = 64, 250_000 // 16 MB
	var section []byte
	docs := make([]any, documents)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "origin", Value: "x"}, {Key: "n", Value: i}, {Key: "pad", Value: make([]byte, size)}}
		section = append(section, raw(t, docs[i])...)
	}
	elsewhere := append([]byte(nil), section...)
	for i, rest := 0, elsewhere; len(rest) > 0; i++ {
		var doc []byte
		doc, rest = wire.NextDocument(rest)
		at := len("\x10_id\x00") + 4 + 4 + len("\x02origin\x00") + 4
		require.Equal(t, byte('x'), doc[at])
		doc[at] += byte(i % 3) // on whichever chunk
	}
	insert := bson.D{{Key: "insert", Value: "legs"}, {Key: "ordered", Value: false}, {Key: "$db", Value: testDatabase}}
	find := bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: bson.D{{Key: "origin", Value: "x"}}}, {Key: "$db", Value: testDatabase}}
	all := bson.D{{Key: "find", Value: "legs"}, {Key: "batchSize", Value: documents}, {Key: "$db", Value: testDatabase}}
	half := bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: docs[:documents/2]}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: "x.legs"}}}, {Key: "ok", Value: 1.0}}
	whole := bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: docs}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: "x.legs"}}}, {Key: "ok", Value: 1.0}}
	done := bson.D{{Key: "n", Value: 1}, {Key: "ok", Value: 1.0}}
	for _, tc := range []struct {
		name    string
		chunks  int
		body    bson.D
		section []byte
		reply   bson.D
		most    float64 // what may be allocated, in sizes of the batch
	}{
		{"Insert", 1, insert, section, done, 1.25},
		{"SplitInsert", 3, insert, elsewhere, done, 2.3},
		{"Find", 1, find, nil, whole, 1.3 + growCost()},
		{"MergedFind", 2, all, nil, half, 2.3 + growCost()}, // its batches are kept until they are asked for
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, _ := newFakeFleet(t, tc.chunks)
			sink(t, f, tc.reply)
			c := dialRaw(t, f.start(Config{}))
			msg := append(wire.BeginMsg(nil, 1, 0, 0), raw(t, tc.body)...)
			if tc.section != nil {
				var at int
				at, section := wire.BeginSequence(nil, "documents")
				section = append(section, tc.section...)
				wire.EndSequence(section, at, 0)
				msg = append(msg, section...)
			}
			wire.SetLength(msg, 0)
			talk := func() {
				_, err := c.nc.Write(msg)
				require.NoError(t, err)
				head := make([]byte, wire.HeaderLength)
				_, err = io.ReadFull(c.nc, head)
				require.NoError(t, err)
				n, err := io.CopyN(io.Discard, c.nc, int64(binary.LittleEndian.Uint32(head))-wire.HeaderLength)
				require.NoError(t, err)
				require.Positive(t, n)
			}
			idle := heap()
			talk() // connects
			require.Eventually(t, func() bool { return heap()-idle < len(section)/4 }, waitFor, tick, "an idle connection must keep nothing of a large batch")
			const rounds = 3
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				talk()
			}
			runtime.ReadMemStats(&after)
			copies := float64(after.TotalAlloc-before.TotalAlloc) / rounds / float64(len(section))
			t.Logf("%.2f times the batch", copies)
			require.Less(t, copies, tc.most)
		})
	}
}
