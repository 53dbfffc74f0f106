package workload

import (
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// booking is one document, and what the model believes about it.
type booking struct {
	ID     string   `bson:"_id"`
	Origin string   `bson:"origin"`
	Ref    string   `bson:"ref"` // unique within its origin
	V      int64    `bson:"v"`   // grows by one with every acknowledged write
	N      int64    `bson:"n"`   // counter: every increment has its operation id in ops
	Ops    []string `bson:"ops"` // ids of the newest operations, no one twice
	Tags   []string `bson:"tags"`
	Note   string   `bson:"note,omitempty"`
	Nested nested   `bson:"nested"`
}

// nested gives updates a path to walk.
type nested struct {
	Seats []seat         `bson:"seats"`
	Count map[string]int `bson:"count"`
}

type seat struct {
	Row  int    `bson:"row"`
	Name string `bson:"name"`
}

// keepOps is how many operation ids a document remembers.
const keepOps = 30

func (b booking) clone() booking {
	b.Ops, b.Tags = slices.Clone(b.Ops), slices.Clone(b.Tags)
	b.Nested.Seats, b.Nested.Count = slices.Clone(b.Nested.Seats), maps.Clone(b.Nested.Count)
	return b
}

// did notes one operation, as the server's $push with $slice does.
func (b *booking) did(op string) {
	b.V++
	b.Ops = append(b.Ops, op)
	if len(b.Ops) > keepOps {
		b.Ops = b.Ops[len(b.Ops)-keepOps:]
	}
}

// same compares a document of the database with the model's.
func (b booking) same(o booking) bool {
	return b.ID == o.ID && b.Origin == o.Origin && b.Ref == o.Ref && b.V == o.V && b.N == o.N && b.Note == o.Note &&
		slices.Equal(b.Ops, o.Ops) && slices.Equal(b.Tags, o.Tags) &&
		slices.Equal(b.Nested.Seats, o.Nested.Seats) && maps.Equal(b.Nested.Count, o.Nested.Count)
}

// state is the model of one document: what is certain, and where an error left
// it open, what else may be.
type state struct {
	doc     booking
	exists  bool
	maybe   *booking // an errored operation may have made this of it
	deleted bool     // an errored delete may have removed it
}

// filter names the document and its place.
func (b booking) filter() bson.D {
	return bson.D{{Key: "_id", Value: b.ID}, {Key: "origin", Value: b.Origin}}
}
