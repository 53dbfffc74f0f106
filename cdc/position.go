// Package cdc captures each shard's changes in Kafka, archives them in S3 and
// reads them back.
package cdc

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
)

// Positions keeps one value for each shard: where its capture stands. The value
// is opaque and replaced as a whole.
type Positions interface {
	// Take makes the caller the only one who may save: it raises the epoch
	// and gives it together with the newest value, nil when there is none.
	Take(ctx context.Context, shard string) (epoch int64, value []byte, err error)
	// Save replaces the value. It fails with [failure.Lost] when epoch is not
	// the newest.
	Save(ctx context.Context, shard string, epoch int64, value []byte) error
}

// Stragglers keeps what should not have been written: a change of a placement
// between its final marker and its next open marker, or behind the drop of its database.
type Stragglers interface {
	// Report is idempotent under (shard, seq).
	Report(ctx context.Context, s Straggler) error
	// Withdraw takes back what was reported of a placement between two changes: the
	// attempt that had closed it closed it again, or went back, so that lanes apply
	// these too. Idempotent.
	Withdraw(ctx context.Context, r Reprieve) error
}

// Reprieve is a stretch of a shard's log, both ends excluded, whose changes of a
// placement are no stragglers after all.
type Reprieve struct {
	Shard     string
	Placement chunk.PlacementID
	Attempt   chunk.AttemptID
	From, To  int64
}

// Straggler is one such change, in full.
type Straggler struct {
	Shard     string
	Placement chunk.PlacementID
	Seq       int64
	Time      bson.Timestamp
	Kind      string   // "write", or "ttl-suspect" for a delete from a collection with a TTL index
	Event     bson.Raw // the change event as the server sent it
}

// Position is where the capture of a shard stands: everything that numbering
// depends on, so that a restart numbers the same events alike.
type Position struct {
	Shard      string         `bson:"shard"`
	Log        string         `bson:"log"` // made at the first start, stands in the shard's heartbeat document too
	Partitions int32          `bson:"partitions"`
	Spread     event.Spread   `bson:"spread,omitempty"` // how events are spread over them
	Start      bson.Timestamp `bson:"start"`            // where the log begins
	Token      bson.Raw       `bson:"token,omitempty"`  // resume token after Seq; nil before the first event
	Seq        int64          `bson:"seq"`
	Time       bson.Timestamp `bson:"time"`             // cluster time of Seq
	Round      int64          `bson:"round"`            // newest heartbeat that was published
	Marker     string         `bson:"marker"`           // newest other marker, when it is newer than Round
	Last       []int64        `bson:"last"`             // by partition: seq of the newest record
	Counts     []int64        `bson:"counts"`           // by partition: records since the newest marker
	Open       transaction    `bson:"open"`             // the transaction that Seq belongs to
	Labels     []transaction  `bson:"labels,omitempty"` // the newest replicators' transactions, oldest first
	Closed     []closed       `bson:"closed"`           // placements past their final marker
	Opened     []closed       `bson:"opened,omitempty"` // the newest attempt that opened each placement
	Gone       []int64        `bson:"gone,omitempty"`   // placements whose databases were dropped, the newest last
	Split      bool           `bson:"split,omitempty"`  // large events come in parts
	Lost       string         `bson:"lost,omitempty"`   // why this position can never be resumed
}

// transaction names one, with its label where it is a replicator's. The zero
// value is none.
type transaction struct {
	Session []byte            `bson:"lsid,omitempty"` // id and uid
	Number  int64             `bson:"txn,omitempty"`
	Label   chunk.MigrationID `bson:"label,omitempty"`
}

// holds reports whether an event with this session and number belongs to t.
func (t transaction) holds(session []byte, number int64) bool {
	return len(session) > 0 && number == t.Number && string(session) == string(t.Session)
}

// closed is a placement that must not change, or, in Opened, one that may, and the
// attempt that said so.
type closed struct {
	Placement chunk.PlacementID `bson:"placement"`
	Attempt   chunk.AttemptID   `bson:"attempt"`
	Seq       int64             `bson:"seq,omitempty"`      // of the final marker
	Database  string            `bson:"database,omitempty"` // of one that was adopted: its name tells no placement
}

// clone gives a copy that shares nothing that numbering changes in place.
func (p *Position) clone() Position {
	c := *p
	c.Last, c.Counts, c.Closed, c.Opened = slices.Clone(p.Last), slices.Clone(p.Counts), slices.Clone(p.Closed), slices.Clone(p.Opened)
	return c
}

// encode gives the value for [Positions].
func (p *Position) encode() ([]byte, error) {
	b, err := bson.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode position of %s: %w", p.Shard, err)
	}
	return b, nil
}

// DecodePosition reads a value that capture saved, for showing it.
func DecodePosition(value []byte) (Position, error) {
	var p Position
	if err := bson.Unmarshal(value, &p); err != nil {
		return p, fmt.Errorf("decode position of %d bytes: %w", len(value), err)
	}
	return p, nil
}
