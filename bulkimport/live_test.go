package bulkimport_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/stoppoint"
)

// writers change a collection until stop is closed: single documents and, in
// transactions, pairs.
func writers(t *testing.T, b *bundle, n int, stop <-chan struct{}) *sync.WaitGroup {
	t.Helper()
	var group sync.WaitGroup
	for w := range n {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			c := b.source.Collection("c")
			for version := 0; ; version++ {
				select {
				case <-stop:
					return
				default:
				}
				// Each writer has _ids of its own, so that no write meets another.
				id := fmt.Sprintf("%03d-%d", random.IntN(300), w)
				doc := bson.D{{Key: "_id", Value: id}, {Key: "a", Value: random.IntN(50)}, {Key: "version", Value: version}, {Key: "by", Value: w}}
				var err error
				switch random.IntN(5) {
				case 0:
					_, err = c.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}})
				case 1:
					err = inTransaction(t.Context(), b.client, func(ctx context.Context) error {
						other := append(bson.D{{Key: "_id", Value: id + "-pair"}}, doc[1:]...)
						for _, one := range []bson.D{doc, other} {
							if _, err := c.ReplaceOne(ctx, bson.D{{Key: "_id", Value: one[0].Value}}, one, options.Replace().SetUpsert(true)); err != nil {
								return err
							}
						}
						return nil
					})
				default:
					_, err = c.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: id}}, doc, options.Replace().SetUpsert(true))
				}
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	return &group
}

// inTransaction runs work in a transaction.
func inTransaction(ctx context.Context, client *mongo.Client, work func(context.Context) error) error {
	session, err := client.StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(ctx)
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, work(ctx) })
	return err
}

// While writers change the source, it is imported; then the log is replayed from
// the start marker by the rule that the lanes follow. What comes out must be the
// source, and outside the windows no event may meet a document in a state that
// it does not expect.
func testWindowsHoldUnderWriters(t *testing.T, shared *bundle) {
	t.Helper()
	holdsUnderWriters(t, shared, false)
}

// The same where every slice turns out larger than it was planned, and two of them are read
// and cut at the same time.
func testWindowsHoldUnderCuts(t *testing.T, shared *bundle) {
	t.Helper()
	holdsUnderWriters(t, shared, true)
}

func holdsUnderWriters(t *testing.T, shared *bundle, cut bool) {
	t.Helper()
	b := shared.fresh(t)
	var docs []any
	for n := range 300 {
		for w := range 4 {
			docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprintf("%03d-%d", n, w)}, {Key: "version", Value: -1}})
		}
	}
	b.insert(t, "c", docs...)
	stream, err := b.source.Collection("c").Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetBatchSize(1000))
	require.NoError(t, err)
	defer func() { require.NoError(t, stream.Close(context.WithoutCancel(t.Context()))) }()

	stop := make(chan struct{})
	group := writers(t, b, 4, stop)
	b.importer.Source.Start = b.mark(t)
	b.importer.Source.Settled = func(context.Context) (bson.Timestamp, error) { return b.mark(t), nil } //nolint:contextcheck // the test's
	b.importer.Limits.Documents = 60
	c := []chunk.Collection{collection(t, "c", bson.D{{Key: "a", Value: 1}})}
	planned := 0
	if cut {
		planned = b.plan(t, c)
		b.importer.Limits.Documents = 20
	}
	var met sync.WaitGroup
	met.Add(2)
	var stored atomic.Int64
	// Each slice waits until the writers have done something since the last one.
	b.importer.Stops = stoppoint.New(func(ctx context.Context, name string) error {
		switch {
		case name == "import.object-stored" && cut && stored.Add(1) <= 2: // two are under way
			met.Done()
			met.Wait()
		case name == "import.stored":
			b.mark(t) //nolint:contextcheck // the test's
		}
		return ctx.Err()
	})
	_, err = b.importer.Run(t.Context(), c)
	close(stop)
	group.Wait()
	require.NoError(t, err)
	if cut {
		all, err := b.slices.List(t.Context(), b.importer.Migration)
		require.NoError(t, err)
		require.Greater(t, len(all), 2*planned, "slices that were cut")
	}
	_, err = b.source.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "~end"}})
	require.NoError(t, err)

	model := replay(t, b, stream, contents(t, b.target, "c"))
	want := contents(t, b.source, "c")
	require.Len(t, model, len(want))
	for key, doc := range want {
		require.Equal(t, []byte(doc), []byte(model[key]))
	}
}

// plan lets an import plan, and no more, and gives the number of slices.
func (b *bundle) plan(t *testing.T, c []chunk.Collection) int {
	t.Helper()
	killed := b.again()
	killed.Stops = stoppoint.New(func(context.Context, string) error { return errKilled }) // when it has planned
	_, err := killed.Run(t.Context(), c)
	require.ErrorIs(t, err, errKilled)
	all, err := b.slices.List(t.Context(), b.importer.Migration)
	require.NoError(t, err)
	return len(all)
}

// replay applies the events of stream, up to the last one, to a copy.
func replay(t *testing.T, b *bundle, stream *mongo.ChangeStream, model map[chunk.Key]bson.Raw) map[chunk.Key]bson.Raw {
	t.Helper()
	windows, err := b.importer.Windows(t.Context())
	require.NoError(t, err)
	skipped, lenient, strict := 0, 0, 0
	for last := false; !last; {
		require.True(t, stream.Next(t.Context()), "%v", stream.Err())
		e := stream.Current
		id := e.Lookup("documentKey", "_id")
		last = id.StringValue() == "~end"
		sec, inc := e.Lookup("clusterTime").Timestamp()
		at := bson.Timestamp{T: sec, I: inc}
		lo, hi, err := windows.Window("c", id)
		require.NoError(t, err)
		key, err := chunk.EncodeValue(id)
		require.NoError(t, err)
		_, present := model[key]
		op := e.Lookup("operationType").StringValue()
		switch {
		case !at.After(lo):
			skipped++
			continue
		case !at.After(hi):
			lenient++
		default:
			strict++
			require.Equal(t, op != "insert", present, "%s of %v at %v, window [%v, %v]", op, id, at, lo, hi)
		}
		if op == "delete" {
			delete(model, key)
		} else {
			model[key] = append(bson.Raw(nil), e.Lookup("fullDocument").Value...)
		}
	}
	require.Positive(t, skipped)
	require.Positive(t, strict)
	t.Logf("%d events skipped, %d lenient, %d strict", skipped, lenient, strict)
	return model
}
