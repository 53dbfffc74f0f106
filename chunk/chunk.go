// Package chunk is the vocabulary of Drover: databases, key spaces, chunks,
// placements, routes, migrations and attempts, with the rules that need no I/O.
package chunk

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ID names a chunk for ever: "<logical database>/<four or more digits>".
type ID string

// NewID gives the id of the n-th chunk of a logical database.
func NewID(database string, n int) ID { return ID(fmt.Sprintf("%s/%04d", database, n)) }

// PlacementID is never reused in a fleet.
type PlacementID int64

// Token orders the routes of the fleet: every change of a route takes a greater one.
type Token int64

// MigrationID names one migration of the fleet.
type MigrationID int64

// AttemptID names one try to switch; never reused in a fleet. Zero stands for
// what was there before any switch: the first grants of a placement, and the
// replication that starts with an import.
type AttemptID int64

// Database is a logical database: what an application sees.
type Database struct {
	Name           string
	KeySpace       KeySpace
	CatalogVersion int64 // grows with every DDL
	Collections    []Collection
}

// Collection is one collection of a logical database.
type Collection struct {
	Name     string
	ShardKey string     // dotted field path whose value places a document, "_id" is allowed; several with commas between them
	Options  bson.Raw   // create options as listCollections shows them, may be nil
	Indexes  []bson.Raw // whole index specifications as listIndexes shows them, without _id_
}

// Chunk is a contiguous range of a logical database's key space: all its
// collections together.
type Chunk struct {
	ID       ID
	Database string
	Range    Range
}

// Placement is one physical copy of a chunk.
type Placement struct {
	ID       PlacementID
	Chunk    ID
	Shard    string
	Database string // the physical database, see [PhysicalName]
	State    PlacementState
}

// Route says where a chunk is served.
type Route struct {
	Chunk     Chunk
	Placement Placement
	Token     Token
}

// Lane is the unit of order, ownership and checkpoint of an applier: one
// partition of one direction of one migration.
type Lane struct {
	Migration MigrationID
	Direction AttemptID // the attempt whose open marker starts it; 0 for the import's
	Partition int32
}

// Shard is one replica set as it is registered.
type Shard struct {
	Name         string
	URI          string // mongodb:// without credentials
	Capabilities Capabilities
	AddedAt      time.Time
}

// Capabilities is what trials found a shard's servers able to do. A step of a
// move picks its way by these, never by a version.
type Capabilities struct {
	Version                string `json:"version"`
	SetName                string `json:"set_name"`
	MaxWireVersion         int32  `json:"max_wire_version"`
	ListsOperations        bool   `json:"lists_operations"`         // $currentOp shows other clients' operations and idle transactions
	KillsSessionsByUser    bool   `json:"kills_sessions_by_user"`   // killSessions accepts {id, uid}
	PinsSnapshots          bool   `json:"pins_snapshots"`           // a snapshot read at atClusterTime really is pinned
	DisambiguatedPaths     bool   `json:"disambiguated_paths"`      // update events tell array indexes from field names
	SortsNewFields         bool   `json:"sorts_new_fields"`         // new fields are stored in the order of their names, and update events list them in another
	InvalidatesUserCache   bool   `json:"invalidates_user_cache"`   // invalidateUserCache exists
	KeepsTransactionRecord bool   `json:"keeps_transaction_record"` // config.transactions records retryable writes
	KeepsEmptyTimestamps   bool   `json:"keeps_empty_timestamps"`   // bypassEmptyTsReplacement exists
	JoinsWrites            bool   `json:"joins_writes"`             // bulkWrite exists, in transactions too: writes to several collections are one command
	Members                int    `json:"members"`                  // data-bearing members
}
