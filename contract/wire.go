// Package contract names everything that crosses the Temporal wire. Names are
// strings fixed for ever: operators type and read them.
package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
)

// The task queues, by resource.
const (
	ControlQueue = "drover-control" // workflows and short statements
	BulkQueue    = "drover-bulk"    // import, lanes, validation, capture: hours, heartbeats
	FenceQueue   = "drover-fence"   // the window of a switch: nothing else may delay it
)

// The workflow types.
const (
	MigrateChunkWorkflow = "MigrateChunk"
	CaptureShardWorkflow = "CaptureShard"
)

// The search attributes, registered by the dev stack and by the operator of a
// real cluster (docs/operations.md).
var (
	ChunkIDAttribute        = temporal.NewSearchAttributeKeyKeyword("ChunkID")
	SourceShardAttribute    = temporal.NewSearchAttributeKeyKeyword("SourceShard")
	TargetShardAttribute    = temporal.NewSearchAttributeKeyKeyword("TargetShard")
	MigrationStepAttribute  = temporal.NewSearchAttributeKeyKeyword("MigrationStep")
	ShardNameAttribute      = temporal.NewSearchAttributeKeyKeyword("ShardName")
	StepStartedAtAttribute  = temporal.NewSearchAttributeKeyTime("StepStartedAt")
	NeedsAttentionAttribute = temporal.NewSearchAttributeKeyBool("NeedsAttention")
)

// Activity binds a wire name to the types on both sides of it.
type Activity[In, Out any] struct{ Name string }

// Registry is the part of a worker, or of a test environment, that Register needs.
type Registry interface {
	RegisterActivityWithOptions(fn any, options activity.RegisterOptions)
}

// Register serves a with fn; a signature that differs does not compile.
func (a Activity[In, Out]) Register(r Registry, fn func(context.Context, In) (Out, error)) {
	r.RegisterActivityWithOptions(fn, activity.RegisterOptions{Name: a.Name})
}

// None is the result of an activity that has nothing to say.
type None struct{}

// Duration is a time span that people type: "30s", "10m". In JSON it is a
// string; a bare number is refused, because nobody knows its unit.
type Duration time.Duration

// MarshalJSON implements [json.Marshaler].
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON implements [json.Unmarshaler].
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf(`duration %s: want a string with a unit, as "30s" or "10m"`, b)
	}
	if s == "" {
		*d = 0
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: %w", s, err)
	}
	*d = Duration(v)
	return nil
}
