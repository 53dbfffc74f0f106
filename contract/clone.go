package contract

import (
	"time"

	"drover/chunk"
)

// CloneChunkWorkflow copies a chunk as it was at some time into a database of its own.
const CloneChunkWorkflow = "CloneChunk"

// DropCloneWorkflow drops a finished clone.
const DropCloneWorkflow = "DropClone"

// CloneInput asks for a clone of a chunk as it was at a time.
type CloneInput struct {
	Chunk       chunk.ID  `json:"chunk"`
	At          time.Time `json:"at"`
	To          string    `json:"to"`               // name of the shard that gets it
	DryRun      bool      `json:"dryRun,omitempty"` // only say what would be done
	RequestedBy string    `json:"requestedBy,omitempty"`
}

// ClonePlan is what a clone is made of. Making it only reads.
type ClonePlan struct {
	CloneInput
	Base      chunk.MigrationID `json:"base"`   // the migration whose import it begins with
	Source    chunk.Placement   `json:"source"` // that was imported, and whose log goes on from there
	Stored    time.Time         `json:"stored"` // when the import's last slice was read
	Start     time.Time         `json:"start"`  // from where on the archive is read
	Slices    int               `json:"slices"`
	Documents int64             `json:"documents"` // of the import
	Bytes     int64             `json:"bytes"`
	Shards    []string          `json:"shards"` // whose logs are read, in this order
}

// CloneWork makes what was planned; the same workflow asks for the same clone.
type CloneWork struct {
	ClonePlan
	WorkflowID string `json:"workflowID"`
}

// CloneResult is a finished clone, or only the plan of one.
type CloneResult struct {
	ClonePlan
	Clone    chunk.MigrationID `json:"clone,omitempty"`
	Database string            `json:"database,omitempty"` // on the shard; no route leads to it
	Events   int64             `json:"events,omitempty"`   // applied on top of the import
}

// CloneEnd drops what was made of a clone.
type CloneEnd struct {
	WorkflowID string            `json:"workflowID,omitempty"` // of the one that failed
	Clone      chunk.MigrationID `json:"clone,omitempty"`      // or the clone itself
}

// The activities of a clone.
var (
	PlanClone = Activity[CloneInput, ClonePlan]{"PlanClone"}
	MakeClone = Activity[CloneWork, CloneResult]{"MakeClone"}
	DropClone = Activity[CloneEnd, None]{"DropClone"}
)
