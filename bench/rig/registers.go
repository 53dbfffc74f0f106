package rig

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/demo/workload"
)

// registerCollection holds single-document registers that several clients share.
const registerCollection = "registers"

const (
	registerCount   = 3
	registerClients = 4
	registerPause   = 25 * time.Millisecond // of each client between two operations
	judgeTime       = 30 * time.Second      // for one cell's history
)

// registers reads and writes a few shared documents of the moving chunk and keeps
// what every client saw, for a check of linearizability.
type registers struct {
	client *mongo.Client
	coll   *mongo.Collection
	origin string
	serial atomic.Int64
	began  time.Time

	mu  sync.Mutex
	ops []porcupine.Operation
}

// operation is what a client asked: nothing to read, or a value to write.
type operation struct {
	register string
	write    bool
	value    int64
}

// outcome is what it saw.
type outcome struct {
	value   int64
	unknown bool // an error: it may have happened, at any time from then on
}

func newRegisters(uri, origin string) (*registers, error) {
	c, err := workload.Connect(uri)
	if err != nil {
		return nil, err
	}
	return &registers{client: c, coll: c.Database(database).Collection(registerCollection), origin: origin, began: time.Now()}, nil
}

func (r *registers) close() { _ = r.client.Disconnect(context.Background()) }

// run uses fresh registers until ctx ends, and gives what happened.
func (r *registers) run(ctx context.Context, cell string) []porcupine.Operation {
	r.mu.Lock()
	r.ops = nil
	r.mu.Unlock()
	var wg sync.WaitGroup
	for client := range registerClients {
		wg.Go(func() {
			tick := time.NewTicker(registerPause)
			defer tick.Stop()
			for n := client; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				r.once(context.WithoutCancel(ctx), client, operation{
					register: fmt.Sprintf("%s/%d", cell, n%registerCount), write: n%2 == 0, value: r.serial.Add(1),
				})
			}
		})
	}
	wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ops
}

// once does one operation and keeps it.
func (r *registers) once(ctx context.Context, client int, op operation) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	filter := bson.D{{Key: "_id", Value: op.register}, {Key: "origin", Value: r.origin}}
	var out outcome
	call := time.Since(r.began)
	if op.write {
		_, err := r.coll.UpdateOne(ctx, filter, bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: op.value}}}}, options.UpdateOne().SetUpsert(true))
		out.unknown = err != nil
	} else {
		var got struct {
			Value int64 `bson:"value"`
		}
		err := r.coll.FindOne(ctx, filter).Decode(&got)
		if err != nil && err != mongo.ErrNoDocuments { //nolint:errorlint // the driver returns it bare
			return // a read that failed tells nothing
		}
		out.value = got.Value
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: op, Call: int64(call), Output: out, Return: int64(time.Since(r.began))})
}

// model is a set of registers that begin at 0.
var model = porcupine.Model{ //nolint:gochecknoglobals // a constant
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(operation).register //nolint:forcetypeassert // ours
			by[k] = append(by[k], o)
		}
		var out [][]porcupine.Operation
		for _, h := range by {
			out = append(out, h)
		}
		return out
	},
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(operation), output.(outcome) //nolint:forcetypeassert // ours
		if in.write {
			return true, in.value
		}
		return out.value == state.(int64), state //nolint:forcetypeassert // ours
	},
}

// judge reports whether a history is linearizable. A write of unknown outcome may
// take effect at any later time, or never: it is open until after everything, and
// each client of one is nobody else's.
func judge(history []porcupine.Operation) (ok, decided bool) {
	end := int64(0)
	for _, o := range history {
		end = max(end, o.Return)
	}
	var h []porcupine.Operation
	seen := map[int64]bool{}
	for _, o := range history {
		if in := o.Input.(operation); !in.write { //nolint:forcetypeassert // ours
			seen[o.Output.(outcome).value] = true //nolint:forcetypeassert // ours
		}
	}
	next := registerClients
	for _, o := range history {
		in, out := o.Input.(operation), o.Output.(outcome) //nolint:forcetypeassert // ours
		if out.unknown {
			if !seen[in.value] {
				continue // nobody saw it: it may as well not have happened
			}
			o.Return = end + 1
			o.ClientId = next
			next++
		}
		h = append(h, o)
	}
	switch porcupine.CheckOperationsTimeout(model, h, judgeTime) {
	case porcupine.Ok:
		return true, true
	case porcupine.Illegal:
		return false, true
	}
	return false, false
}
