// Package event is the captured log's vocabulary: one change of one shard as it
// stands in Kafka and in the archive. It does no I/O.
package event

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// Op says what happened. The values are change streams' operation types;
// anything that is not one of those named here is DDL.
type Op string

// The operations on documents, and the marker.
const (
	Insert  Op = "insert"
	Update  Op = "update"
	Replace Op = "replace"
	Delete  Op = "delete"
	Mark    Op = "marker" // an insert into the markers collection, sent to every partition
)

// OnDocument reports whether o changes one document.
func (o Op) OnDocument() bool { return o == Insert || o == Update || o == Replace || o == Delete }

// Event is one change of a shard. Envelope and payload never share a level: the
// documents inside are opaque bytes, exactly as the server sent them.
type Event struct {
	Seq            int64             `bson:"seq"`  // numbered by capture, 1, 2, 3... for each shard
	Prev           int64             `bson:"prev"` // seq of the record before it in its partition; 0: the log begins here
	ClusterTime    bson.Timestamp    `bson:"ct"`
	Wall           time.Time         `bson:"wall"` // when the server wrote it
	Op             Op                `bson:"op"`
	Database       string            `bson:"db"`
	Collection     string            `bson:"coll"`
	CollectionUUID []byte            `bson:"uuid,omitempty"`
	Key            []byte            `bson:"key,omitempty"`  // raw BSON documentKey, {_id: ...}
	Document       []byte            `bson:"doc,omitempty"`  // raw BSON after an insert or replace
	Change         []byte            `bson:"upd,omitempty"`  // raw BSON updateDescription of an update
	Description    []byte            `bson:"ddl,omitempty"`  // raw BSON change event of DDL, whole
	Session        []byte            `bson:"lsid,omitempty"` // raw BSON lsid of a transaction's event
	TxnNumber      int64             `bson:"txn,omitempty"`
	Label          chunk.MigrationID `bson:"label,omitempty"` // the migration whose replicator wrote it
	Marker         *chunk.Marker     `bson:"marker,omitempty"`
	Count          int64             `bson:"n,omitempty"` // of a marker: events sent to this partition since the one before
}

// ID gives the document's _id of an event on a document.
func (e *Event) ID() bson.RawValue { return bson.Raw(e.Key).Lookup("_id") }

// Broadcast reports whether the event goes to every partition.
func (e *Event) Broadcast() bool { return !e.Op.OnDocument() }

// Encode gives the record's value.
func (e *Event) Encode() ([]byte, error) {
	b, err := bson.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode event %d of %s.%s: %w", e.Seq, e.Database, e.Collection, err)
	}
	return b, nil
}

// Decode reads what Encode wrote. The event owns none of b afterwards.
func Decode(b []byte) (*Event, error) {
	var e Event
	if err := bson.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("decode event of %d bytes: %w", len(b), err)
	}
	return &e, nil
}

// Spread says what keeps events together in one partition. It is fixed for the
// life of a topic.
type Spread int

// The ways to spread events.
const (
	// ByDatabase keeps a physical database's events in their order: a unique
	// value that moves between documents is released before it is taken, and a
	// transaction on a chunk stays whole. Parallelism is over chunks.
	ByDatabase Spread = iota
	// ByDocument keeps only a document's events in order. Equal _ids of one
	// namespace go to one partition whatever their numeric type.
	ByDocument
)

// Partition gives the partition, of n, of an event on a document.
func (e *Event) Partition(n int32, by Spread) (int32, error) {
	name := e.Database
	if by == ByDocument {
		key, err := chunk.EncodeValue(e.ID())
		if err != nil {
			return 0, fmt.Errorf("partition of %s.%s: %w", e.Database, e.Collection, err)
		}
		name = e.Database + "." + e.Collection + "\x00" + string(key)
	}
	return int32(chunk.HashString(name) % uint64(n)), nil //nolint:gosec // less than n, which is an int32
}
