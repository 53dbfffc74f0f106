package validation

import (
	"fmt"
	"maps"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
)

// docKey identifies a document whatever the representation of its _id: equal
// numbers of different types are one _id.
type docKey struct {
	collection string
	id         chunk.Key
}

// Touched is what changed in a database between two markers: a set of documents
// of bounded size.
type Touched struct {
	database string
	limit    int
	docs     map[docKey]bson.RawValue
	overflow bool
	ddl      *event.Event
	only     func(docKey) bool // nil: all documents count
}

// NewTouched makes an empty set for the events of a database that remembers at
// most limit documents.
func NewTouched(database string, limit int) *Touched {
	return &Touched{database: database, limit: limit, docs: map[docKey]bson.RawValue{}}
}

// Add takes an event into the set; events of other databases do nothing. The
// order of events does not matter.
func (t *Touched) Add(e *event.Event) error {
	if e.Database != t.database || e.Op == event.Mark {
		return nil
	}
	if !e.Op.OnDocument() {
		t.ddl = e
		return nil
	}
	id := e.ID()
	key, err := chunk.EncodeValue(id)
	if err != nil {
		return fmt.Errorf("_id of event %d: %w", e.Seq, err)
	}
	at := docKey{e.Collection, key}
	if t.only != nil && !t.only(at) {
		return nil
	}
	if _, known := t.docs[at]; !known && len(t.docs) >= t.limit {
		t.overflow = true
		return nil
	}
	t.docs[at] = id
	return nil
}

// merge takes what another set has into t, beyond its limit where both together are.
func (t *Touched) merge(other *Touched) {
	maps.Copy(t.docs, other.docs)
	t.overflow = t.overflow || other.overflow
	if other.ddl != nil {
		t.ddl = other.ddl
	}
}

// Len gives the number of documents in the set.
func (t *Touched) Len() int { return len(t.docs) }

// has reports whether a document is in the set.
func (t *Touched) has(at docKey) bool {
	_, ok := t.docs[at]
	return ok
}
