// Package activities does the work of the workflows, one call at a time. It
// puts the adapters' steps in order; what a step means is said in the adapters.
package activities

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/bulkimport"
	"drover/cdc"
	"drover/contract"
	"drover/gate"
	"drover/internal/stoppoint"
	"drover/metadata"
	"drover/replication"
	"drover/shard"
	"drover/switchover"
	"drover/validation"
)

// Settings are the limits that an operator may set.
type Settings struct {
	Gate       gate.Limits
	Worse      gate.Worse    // after a switch
	SyncLag    time.Duration // in sync below this
	Partitions int32         // of a captured log

	ImportMemory *bulkimport.Budget // of all imports together; nil: unbounded
	ImportBounds bulkimport.Bounds  // zero: imports give way to nobody

	ArchiveRetention time.Duration // 0: for ever
}

// Activities serves every activity of package contract.
type Activities struct {
	Store    *metadata.Store
	Shards   *shard.Clients
	Secret   string // of the fleet
	Log      *cdc.Log
	Brokers  []string
	S3       *s3.Client
	Bucket   string
	Proxy    *mongo.Client // through which audits read canaries; nil: they read none
	Switcher *switchover.Switcher
	Sides    Sides
	Settings Settings
	Owner    string // names this process to those who take its work over
	Metrics  Metrics
	Stops    *stoppoint.Points

	// LatencyEdge is the upper edge of a bucket in which proxies count latencies.
	LatencyEdge func(bucket int) time.Duration
	AnswerEdge  func(bucket int) time.Duration // of those by shard

	Logger *slog.Logger

	logEnds    logEnds
	heartbeats shared[validation.Mark] // by shard
	words      words
	throttles  throttles
	capacities capacities
	trials     trials
	crowd      Crowd // of activities that show their progress

	seams     sync.Map // of seamKey: where markers were found
	seamsKept atomic.Int64
}

// Metrics of the parts that activities run.
type Metrics struct {
	Capture *cdc.CaptureMetrics
	Archive *cdc.ArchiveMetrics
	Lanes   *replication.Metrics
	Gate    *gate.Metrics
	Switch  *SwitchMetrics
	Import  *bulkimport.Metrics
}

// Register serves every activity that the queues name.
func (a *Activities) Register(r contract.Registry, queue string) {
	switch queue {
	case contract.ControlQueue:
		contract.RegisterMigration.Register(r, a.RegisterMigration)
		contract.RecordPhase.Register(r, a.RecordPhase)
		contract.AdmitMove.Register(r, a.AdmitMove)
		contract.CheckGate.Register(r, a.CheckGate)
		contract.PlanSwitch.Register(r, a.PlanSwitch)
		contract.PlanClone.Register(r, a.PlanClone)
		contract.PrepareSwitch.Register(r, brisk(a.PrepareSwitch))
		contract.SettleAttempt.Register(r, brisk(a.SettleAttempt))
		contract.ConcludeSwitch.Register(r, brisk(a.ConcludeSwitch))
		contract.ReconcileSwitch.Register(r, brisk(a.ReconcileSwitch))
	case contract.BulkQueue:
		contract.ImportChunk.Register(r, a.ImportChunk)
		contract.ReplicateChanges.Register(r, a.ReplicateChanges)
		contract.ReplicateUntilInSync.Register(r, a.ReplicateUntilInSync)
		contract.ValidateChunk.Register(r, a.ValidateChunk)
		contract.WatchSwitch.Register(r, a.WatchSwitch)
		contract.VerifyChanges.Register(r, a.VerifyChanges)
		contract.AuditChunk.Register(r, a.AuditChunk)
		contract.RestartSlices.Register(r, a.RestartSlices)
		contract.RunCapture.Register(r, a.RunCapture)
		contract.RunArchive.Register(r, a.RunArchive)
		contract.DropSource.Register(r, a.DropSource)
		contract.DropTarget.Register(r, a.DropTarget)
		contract.MakeClone.Register(r, a.MakeClone)
		contract.DropClone.Register(r, a.DropClone)
	case contract.FenceQueue:
		contract.SwitchRoute.Register(r, brisk(a.SwitchRoute))
	}
}

// ends are both placements' shards, with what their servers can do.
type ends struct {
	from, to *shard.Set
}
