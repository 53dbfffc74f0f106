package chunk

import (
	"fmt"
	"time"
)

// MarkerKind says what a marker separates.
type MarkerKind string

// The kinds of markers.
const (
	HeartbeatMarker MarkerKind = "heartbeat" // written by capture itself, for lag
	StartMarker     MarkerKind = "start"     // before the first slice is read: the lanes start here
	ValidateMarker  MarkerKind = "validate"  // brackets the reads of one round of validation
	DrainedMarker   MarkerKind = "drained"   // no write that was under way at the fence is after it
	FinalMarker     MarkerKind = "final"     // the last word of the placement that is being left
	OpenMarker      MarkerKind = "open"      // the only start of the log of the way back
)

// Marker is a document in [MarkersCollection] that comes back, in order, in the
// shard's captured log: the exact seam between before and after. Its _id is
// [Marker.Key]; it is inserted once and never changed (a heartbeat has a new
// Round each time).
type Marker struct {
	Kind      MarkerKind  `bson:"kind" json:"kind"`
	Migration MigrationID `bson:"migration" json:"migration"`
	Attempt   AttemptID   `bson:"attempt" json:"attempt"`     // 0 for start and validate
	Placement PlacementID `bson:"placement" json:"placement"` // the one on the marker's shard; 0 for heartbeats
	Round     int64       `bson:"round" json:"round"`
	At        time.Time   `bson:"at" json:"at"` // writer's clock, for lag and people only

	// Database is the placement's, where that was adopted: nothing else in the log
	// tells whose its changes are. Final markers need it.
	Database string `bson:"database,omitempty" json:"database,omitempty"`
}

// Key is the marker's _id: "drained/m7/a6/p42/r1".
func (m Marker) Key() string {
	return fmt.Sprintf("%s/m%d/a%d/p%d/r%d", m.Kind, m.Migration, m.Attempt, m.Placement, m.Round)
}

// Notice is one change of an attempt's state as it is announced to proxies.
type Notice struct {
	Attempt        AttemptID    `json:"attempt"`
	Migration      MigrationID  `json:"migration"`
	State          AttemptState `json:"state"`
	Source         PlacementID  `json:"source"` // serves until the publish
	Target         PlacementID  `json:"target"`
	Chunks         []ID         `json:"chunks"`
	DeadlineUnixMS int64        `json:"deadline_unix_ms"` // by Postgres' clock

	// All placements of a split or merge; empty where there is one on each side.
	Sources []PlacementID `json:"sources,omitempty"`
	Targets []PlacementID `json:"targets,omitempty"`

	// Ease asks proxies to send fewer writes to the sources for a moment. It goes with
	// no change of the state, and one that is not heard does no harm.
	Ease *Ease `json:"ease,omitempty"`
	// Shut says that the sources take no writes any more. Until it comes, a proxy that
	// has eased its writes may go on with the few for a moment.
	Shut bool `json:"shut,omitempty"`
}

// Ease is how writes are slowed down ahead of a fence: what lanes have behind them then
// is what every write waits for.
type Ease struct {
	Share float64 `json:"share"` // of the writes that there were, in a second
	Least float64 `json:"least"` // writes per second and proxy that are never slowed down
	ForMS int64   `json:"for_ms"`
}

// AllSources gives every placement that serves until the publish.
func (n Notice) AllSources() []PlacementID {
	if len(n.Sources) == 0 {
		return []PlacementID{n.Source}
	}
	return n.Sources
}

// AllTargets gives every placement that serves after the publish.
func (n Notice) AllTargets() []PlacementID {
	if len(n.Targets) == 0 {
		return []PlacementID{n.Target}
	}
	return n.Targets
}

// Ack is a proxy's word about its own requests on an attempt's source.
type Ack struct {
	Proxy   string    `json:"proxy"`
	Run     string    `json:"run,omitempty"` // of the proxy: a word is about its own requests only
	Attempt AttemptID `json:"attempt"`
	Kind    string    `json:"kind"`  // "writes" or "reads"
	State   string    `json:"state"` // "clean", "running" or "unknown"
}
