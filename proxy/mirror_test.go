package proxy

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

// mirrorBook says what is mirrored and keeps what it is handed.
type mirrorBook struct {
	shares map[chunk.PlacementID]float64
	err    error
	got    map[chunk.PlacementID][][]byte
}

var _ Mirrors = (*mirrorBook)(nil)

// Mirrored implements [Mirrors].
func (b *mirrorBook) Mirrored(context.Context) (map[chunk.PlacementID]float64, error) {
	return b.shares, b.err
}

// AddMirrored implements [Mirrors].
func (b *mirrorBook) AddMirrored(_ context.Context, p chunk.PlacementID, commands [][]byte) error {
	b.got[p] = append(b.got[p], commands...)
	return nil
}

// TestReadsAreMirrored: a copy of what was read, without what belongs to the sender,
// and of nothing else; a full queue keeps nobody waiting.
func TestReadsAreMirrored(t *testing.T) {
	t.Parallel()
	book := &mirrorBook{shares: map[chunk.PlacementID]float64{7: 100}, got: map[chunk.PlacementID][][]byte{}}
	p := &Proxy{
		cfg: Config{MetadataTimeout: time.Minute}, ports: Ports{Mirrors: book}, log: slog.New(slog.DiscardHandler),
		gates: &gates{all: map[chunk.PlacementID]*gate{}}, mirrored: make(chan mirroredRead, 3),
	}
	to := func(id chunk.PlacementID) *answer {
		return &answer{route: &route{Route: chunk.Route{Placement: chunk.Placement{ID: id}}, gate: p.gates.of(id)}, status: status{ok: true}}
	}
	read := func(name string, more ...bson.E) *request {
		body, err := bson.Marshal(append(bson.D{{Key: name, Value: "c"}, {Key: "filter", Value: bson.D{{Key: "a", Value: 1}}}}, more...))
		require.NoError(t, err)
		return &request{cmd: &wire.Command{Name: []byte(name), Body: body}}
	}
	find := read("find", bson.E{Key: "lsid", Value: 1}, bson.E{Key: "$db", Value: "app"})
	p.mirror(find, &leg{access: reads}, to(7))
	require.Empty(t, p.mirrored, "nothing is asked for yet")
	to(8)
	p.handMirrored(t.Context())

	failed, inTxn := to(7), read("find")
	failed.ok, inTxn.txn = false, &txn{}
	p.mirror(find, &leg{access: reads}, failed)
	p.mirror(inTxn, &leg{access: reads}, to(7))
	p.mirror(find, &leg{access: writes}, to(7))
	p.mirror(find, &leg{access: reads}, to(8))
	p.mirror(read("aggregate"), &leg{access: reads}, to(7))
	stages := func(names ...string) bson.E {
		all := bson.A{}
		for _, n := range names {
			all = append(all, bson.D{{Key: n, Value: bson.D{}}})
		}
		return bson.E{Key: "pipeline", Value: all}
	}
	p.mirror(read("aggregate", stages("$match", "$lookup")), &leg{access: reads}, to(7))
	p.mirror(read("find", bson.E{Key: "x", Value: make([]byte, mirrorBytes)}), &leg{access: reads}, to(7))
	require.Empty(t, p.mirrored)
	groups := read("aggregate", stages("$match", "$project", "$group", "$sort", "$limit"))
	p.mirror(groups, &leg{access: reads}, to(7))
	p.handMirrored(t.Context())
	require.Equal(t, [][]byte{groups.cmd.Body}, book.got[7])
	book.got[7] = nil
	for range 5 {
		p.mirror(find, &leg{access: reads}, to(7))
	}
	p.handMirrored(t.Context())
	require.Len(t, book.got[7], 3, "the queue was full")
	bare, err := bson.Marshal(bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "a", Value: 1}}}})
	require.NoError(t, err)
	require.Equal(t, bare, book.got[7][0])

	book.err = errors.New("connection refused")
	p.handMirrored(t.Context())
	p.mirror(find, &leg{access: reads}, to(7))
	require.Empty(t, p.mirrored, "who can't be asked is taken for one that asks for none")
}
