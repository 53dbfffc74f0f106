package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// owner is one client. Nobody else writes its documents, so its model is exact.
type owner struct {
	w      *Workload
	n      int
	rnd    *rand.Rand
	docs   map[string]*state
	byPart [2][]string // ids of living documents: elsewhere, on the moving chunk
	gone   []booking   // deleted ones, which must stay so
	serial int
	began  time.Time // of the operation under way
}

func newOwner(w *Workload, n int, rnd *rand.Rand) *owner {
	return &owner{w: w, n: n, rnd: rnd, docs: map[string]*state{}}
}

// opID is unique over the application.
func (o *owner) opID() string {
	o.serial++
	return fmt.Sprintf("c%d-%d", o.n, o.serial)
}

func (o *owner) hot(origin string) bool { return slices.Contains(o.w.cfg.HotOrigins, origin) }

// part picks the moving chunk or the others.
func (o *owner) part() int {
	if o.rnd.Float64() < o.w.cfg.HotShare {
		return 1
	}
	return 0
}

func (o *owner) newBooking(part int) booking {
	pool := o.w.cfg.Origins
	if part == 1 {
		pool = o.w.cfg.HotOrigins
	}
	op := o.opID()
	return booking{
		ID: "b-" + op, Origin: pool[o.rnd.IntN(len(pool))], Ref: "r-" + op, V: 1, Ops: []string{op},
		Tags:   []string{"new", "web"},
		Nested: nested{Seats: []seat{{Row: 1, Name: "a"}, {Row: 2, Name: "b"}}, Count: map[string]int{"0": 1, "x": 2}},
	}
}

func (o *owner) populate(ctx context.Context) error {
	for i := range o.w.cfg.Documents {
		b := o.newBooking(i % 2)
		if _, err := o.w.coll.InsertOne(ctx, b); err != nil {
			return err
		}
		o.remember(b)
	}
	return nil
}

func (o *owner) remember(b booking) {
	o.docs[b.ID] = &state{doc: b, exists: true}
	p := 0
	if o.hot(b.Origin) {
		p = 1
	}
	o.byPart[p] = append(o.byPart[p], b.ID)
}

// pick chooses a living document, nil when there is none left.
func (o *owner) pick(part int) *state {
	ids := o.byPart[part]
	if len(ids) == 0 {
		return nil
	}
	return o.docs[ids[o.rnd.IntN(len(ids))]]
}

// ack counts a success, and its time when the moving chunk answered.
func (o *owner) ack(origin string, write bool) {
	o.w.acked.Add(1)
	if o.hot(origin) {
		o.w.gaps.note(write, o.began)
	}
}

// operate does one operation of a random kind. Seven of ten read, as is usual
// for applications; the rest is every kind of write.
func (o *owner) operate(ctx context.Context) {
	o.began = time.Now()
	part := o.part()
	s := o.pick(part)
	r := o.rnd.IntN(100)
	switch {
	case s == nil || r < 4:
		o.insert(ctx, part)
	case r < 74:
		o.read(ctx, s)
	case r < 83:
		o.increment(ctx, s)
	case r < 89:
		o.arrays(ctx, s)
	case r < 92:
		o.replace(ctx, s)
	case r < 94:
		o.findAndModify(ctx, s)
	case r < 96:
		o.exchangeRefs(ctx, part)
	case r < 98:
		o.transfer(ctx, part)
	default:
		o.remove(ctx, part, s)
	}
}

func (o *owner) insert(ctx context.Context, part int) {
	b := o.newBooking(part)
	if _, err := o.w.coll.InsertOne(ctx, b); err != nil {
		o.w.fail("insert", err)
		o.docs[b.ID] = &state{doc: b, maybe: &b}
		o.resolve(ctx, o.docs[b.ID])
		return
	}
	o.remember(b)
	o.ack(b.Origin, true)
}

// read must see what was acknowledged before it began: nobody else writes here.
func (o *owner) read(ctx context.Context, s *state) {
	var got booking
	err := o.w.coll.FindOne(ctx, s.doc.filter()).Decode(&got)
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		o.w.stale.Add(1)
	case err != nil:
		o.w.fail("find", err)
		return
	case got.V < s.doc.V:
		o.w.stale.Add(1)
	}
	o.ack(s.doc.Origin, false)
}

// update sends one update of an owned document and follows it in the model.
func (o *owner) update(ctx context.Context, name string, s *state, guard bson.D, change bson.D, next booking) {
	res, err := o.w.coll.UpdateOne(ctx, append(s.doc.filter(), guard...), change)
	o.settle(ctx, name, s, next, err, func() bool { return res.MatchedCount == 1 })
}

// settle moves the model to next when the write was acknowledged.
func (o *owner) settle(ctx context.Context, name string, s *state, next booking, err error, matched func() bool) {
	switch {
	case err != nil:
		o.w.fail(name, err)
		s.maybe = &next
		o.resolve(ctx, s)
		return
	case !matched():
		if o.w.cfg.Guarded { // the guard says that a retried operation had run: read what is there
			s.maybe = &next
			o.resolve(ctx, s)
			break
		}
		o.w.stale.Add(1) // an acknowledged document was not there for the write
		return
	default:
		s.doc = next
	}
	o.ack(s.doc.Origin, true)
}

func (o *owner) increment(ctx context.Context, s *state) {
	op := o.opID()
	next := s.doc.clone()
	next.N++
	next.did(op)
	var guard bson.D
	if o.w.cfg.Guarded {
		guard = bson.D{{Key: "ops", Value: bson.D{{Key: "$ne", Value: op}}}}
	}
	o.update(ctx, "increment", s, guard, bson.D{
		{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}, {Key: "v", Value: 1}}},
		{Key: "$push", Value: pushOp(op)},
	}, next)
}

// pushOp appends an operation id and keeps the newest.
func pushOp(op string) bson.D {
	return bson.D{{Key: "ops", Value: bson.D{{Key: "$each", Value: bson.A{op}}, {Key: "$slice", Value: -keepOps}}}}
}

func (o *owner) findAndModify(ctx context.Context, s *state) {
	op := o.opID()
	next := s.doc.clone()
	next.N += 2
	next.did(op)
	filter := s.doc.filter()
	if o.w.cfg.Guarded {
		filter = append(filter, bson.E{Key: "ops", Value: bson.D{{Key: "$ne", Value: op}}})
	}
	res := o.w.coll.FindOneAndUpdate(ctx, filter, bson.D{
		{Key: "$inc", Value: bson.D{{Key: "n", Value: 2}, {Key: "v", Value: 1}}}, {Key: "$push", Value: pushOp(op)},
	})
	err := res.Err()
	missing := errors.Is(err, mongo.ErrNoDocuments)
	if missing {
		err = nil
	}
	o.settle(ctx, "findAndModify", s, next, err, func() bool { return !missing })
}

// arrays changes elements in the middle, shortens, and sets deep paths.
func (o *owner) arrays(ctx context.Context, s *state) {
	op := o.opID()
	next := s.doc.clone()
	next.did(op)
	set := bson.D{{Key: "v", Value: next.V}, {Key: "ops", Value: next.Ops}}
	switch o.rnd.IntN(3) {
	case 0:
		next.Tags = append(next.Tags, op)
		if len(next.Tags) > 6 {
			next.Tags = next.Tags[len(next.Tags)-3:]
			set = append(set, bson.E{Key: "tags", Value: next.Tags})
			break
		}
		o.update(ctx, "push", s, nil, bson.D{{Key: "$set", Value: set}, {Key: "$push", Value: bson.D{{Key: "tags", Value: op}}}}, next)
		return
	case 1:
		next.Nested.Seats[1].Name = op
		next.Nested.Count["0"]++
		set = append(set, bson.E{Key: "nested.seats.1.name", Value: op}, bson.E{Key: "nested.count.0", Value: next.Nested.Count["0"]})
	default:
		if len(next.Tags) > 1 {
			next.Tags = next.Tags[:len(next.Tags)-1]
			o.update(ctx, "pop", s, nil, bson.D{{Key: "$set", Value: set}, {Key: "$pop", Value: bson.D{{Key: "tags", Value: 1}}}}, next)
			return
		}
	}
	o.update(ctx, "set", s, nil, bson.D{{Key: "$set", Value: set}}, next)
}

func (o *owner) replace(ctx context.Context, s *state) {
	next := s.doc.clone()
	next.did(o.opID())
	next.Note = "replaced"
	res, err := o.w.coll.ReplaceOne(ctx, s.doc.filter(), next)
	o.settle(ctx, "replace", s, next, err, func() bool { return res.MatchedCount == 1 })
}

// exchangeRefs moves a unique value from one document to another.
func (o *owner) exchangeRefs(ctx context.Context, part int) {
	a, b := o.pair(part)
	if a == nil {
		return
	}
	refA, refB := a.doc.Ref, b.doc.Ref
	for _, step := range []struct {
		s   *state
		ref string
	}{{a, "tmp-" + refA}, {b, refA}, {a, refB}} {
		next := step.s.doc.clone()
		next.did(o.opID())
		next.Ref = step.ref
		set := bson.D{{Key: "ref", Value: next.Ref}, {Key: "v", Value: next.V}, {Key: "ops", Value: next.Ops}}
		o.update(ctx, "exchange", step.s, nil, bson.D{{Key: "$set", Value: set}}, next)
		if step.s.doc.Ref != step.ref {
			return // it did not happen; the next step would break the unique key by itself
		}
	}
}

// pair finds two documents of one origin.
func (o *owner) pair(part int) (a, b *state) {
	for range 8 {
		a, b = o.pick(part), o.pick(part)
		if a != nil && b != nil && a != b && a.doc.Origin == b.doc.Origin {
			return a, b
		}
	}
	return nil, nil
}

// transfer moves an amount between two documents in a transaction.
func (o *owner) transfer(ctx context.Context, part int) {
	a, b := o.pair(part)
	if a == nil {
		return
	}
	nextA, nextB := a.doc.clone(), b.doc.clone()
	nextA.N, nextB.N = nextA.N-3, nextB.N+3
	nextA.did(o.opID())
	nextB.did(o.opID())
	sess, err := o.w.client.StartSession()
	if err != nil {
		o.w.fail("session", err)
		return
	}
	defer sess.EndSession(ctx)
	_, err = sess.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		for _, x := range []struct {
			s    *state
			next booking
		}{{a, nextA}, {b, nextB}} {
			res, err := o.w.coll.UpdateOne(ctx, x.s.doc.filter(),
				bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: x.next.N}, {Key: "v", Value: x.next.V}, {Key: "ops", Value: x.next.Ops}}}})
			if err != nil {
				return nil, err
			}
			if res.MatchedCount != 1 {
				return nil, fmt.Errorf("document %s is not there", x.s.doc.ID)
			}
		}
		return nil, nil
	})
	if err != nil {
		o.w.fail("transaction", err)
		a.maybe, b.maybe = &nextA, &nextB
		o.resolve(ctx, a)
		o.resolve(ctx, b)
		return
	}
	a.doc, b.doc = nextA, nextB
	o.ack(a.doc.Origin, true)
}

func (o *owner) remove(ctx context.Context, part int, s *state) {
	if len(o.byPart[part]) <= 4 {
		return
	}
	res, err := o.w.coll.DeleteOne(ctx, s.doc.filter())
	if err != nil {
		o.w.fail("delete", err)
		s.deleted = true
		o.resolve(ctx, s)
		return
	}
	if res.DeletedCount != 1 && !o.w.cfg.Guarded {
		o.w.stale.Add(1)
	}
	o.forget(s)
	o.ack(s.doc.Origin, true)
}

func (o *owner) forget(s *state) {
	s.exists = false
	o.gone = append(o.gone, s.doc)
	for p := range o.byPart {
		o.byPart[p] = slices.DeleteFunc(o.byPart[p], func(id string) bool { return id == s.doc.ID })
	}
}

// resolve reads a document that an error left open, until there is an answer:
// either outcome is right, a third one is found by the final check.
func (o *owner) resolve(ctx context.Context, s *state) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		var got booking
		err := o.w.coll.FindOne(ctx, s.doc.filter()).Decode(&got)
		switch {
		case errors.Is(err, mongo.ErrNoDocuments):
			if s.exists && s.deleted {
				o.forget(s)
			} else if !s.exists {
				delete(o.docs, s.doc.ID)
			}
			s.maybe = nil
			return
		case err == nil:
			if s.maybe != nil && got.same(*s.maybe) {
				if !s.exists {
					o.remember(got)
				}
				s.doc = *s.maybe
			}
			s.maybe, s.deleted = nil, false
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
