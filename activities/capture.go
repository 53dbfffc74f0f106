package activities

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"drover/cdc"
	"drover/chunk"
	"drover/contract"
	"drover/metadata"
	"drover/shard"
)

// RunCapture reads one shard's changes into its captured log until it is
// cancelled or another one takes over.
func (a *Activities) RunCapture(ctx context.Context, in contract.CaptureInput) (contract.None, error) {
	set, err := a.Sides.Set(ctx, in.Shard)
	if err != nil {
		return contract.None{}, err
	}
	conn, err := shard.Connect(ctx, set.Shard(), chunk.CaptureUser, a.Secret, shard.Options{
		AppName: "drover-capture", ReadPreference: readpref.SecondaryPreferred(),
	})
	if err != nil {
		return contract.None{}, err
	}
	defer func() { _ = conn.Disconnect(context.WithoutCancel(ctx)) }()
	c := &cdc.Capture{
		Shard: in.Shard, Client: conn, Brokers: a.Brokers, Topic: cdc.TopicSettings{Partitions: a.Settings.Partitions},
		Positions: positionsPort{a.Store, a.Owner}, Stragglers: stragglersPort{a.Store},
		Metrics: a.Metrics.Capture, Logger: a.Logger, Stops: a.Stops,
	}
	return contract.None{}, beating(ctx, func() any { return in }, func(ctx context.Context) error { return renewing(ctx, c.Run, set) })
}

// RunArchive copies one shard's captured log from Kafka to S3 until it is
// cancelled or another one takes over.
func (a *Activities) RunArchive(ctx context.Context, in contract.CaptureInput) (contract.None, error) {
	archive := &cdc.Archive{
		Shard: in.Shard, Log: a.Log, Objects: a.objects(), Positions: archivePort{a.Store},
		Keep:    func(ctx context.Context) (time.Time, error) { return a.keepFrom(ctx, in.Shard) },
		Metrics: a.Metrics.Archive, Logger: a.Logger, Stops: a.Stops,
	}
	return contract.None{}, beating(ctx, func() any { return in }, archive.Run)
}

// keepMargin is how much before an open move's beginning the archive stays too.
const keepMargin = time.Hour

// keepFrom gives the time from which on a shard's archive must stay: what the
// retention says, and whatever an open move or burn-in may still read.
func (a *Activities) keepFrom(ctx context.Context, name string) (time.Time, error) {
	if a.Settings.ArchiveRetention <= 0 {
		return time.Time{}, nil
	}
	now, err := a.Store.Now(ctx)
	if err != nil {
		return time.Time{}, err
	}
	open, err := a.Store.Migrations(ctx, metadata.MigrationFilter{Shard: name, Unfinished: true})
	if err != nil {
		return time.Time{}, err
	}
	clones, err := a.Store.Clones(ctx, true) // whichever shards they read: there are few
	if err != nil {
		return time.Time{}, err
	}
	return keepFrom(now.Add(-a.Settings.ArchiveRetention), open, clones), nil
}

// keepFrom is the earliest of the retention's time, the beginnings of moves, and what
// open clones still read.
func keepFrom(t time.Time, open []metadata.Migration, clones []metadata.Clone) time.Time {
	for _, c := range clones {
		if from := c.KeepFrom.Add(-keepMargin); from.Before(t) {
			t = from
		}
	}
	for _, m := range open {
		if began := m.CreatedAt.Add(-keepMargin); began.Before(t) {
			t = began
		}
	}
	return t
}

// objects is where the archive lies.
func (a *Activities) objects() *cdc.Objects { return &cdc.Objects{Client: a.S3, Bucket: a.Bucket} }

// replay reads captured logs from the archive where Kafka no longer has them.
func (a *Activities) replay() *cdc.Replay { return &cdc.Replay{Log: a.Log, Objects: a.objects()} }

// archivePort keeps the archive's positions in the metadata.
type archivePort struct{ store *metadata.Store }

var _ cdc.ArchivePositions = archivePort{}

// Archived implements [cdc.ArchivePositions].
func (p archivePort) Archived(ctx context.Context, topic string, partition int32) (int64, error) {
	pos, err := p.store.ArchivePosition(ctx, topic, partition)
	return pos.Offset, err
}

// SaveArchived implements [cdc.ArchivePositions].
func (p archivePort) SaveArchived(ctx context.Context, topic string, partition int32, from, to int64, manifest string) error {
	return p.store.SaveArchive(ctx, from, metadata.ArchivePosition{Topic: topic, Partition: partition, Offset: to, Manifest: manifest})
}

// positionsPort keeps capture's positions in the metadata.
type positionsPort struct {
	store *metadata.Store
	owner string
}

var _ cdc.Positions = positionsPort{}

// Take implements [cdc.Positions].
func (p positionsPort) Take(ctx context.Context, name string) (int64, []byte, error) {
	c, err := p.store.TakeCapture(ctx, name, p.owner)
	return c.Epoch, c.State, err
}

// Save implements [cdc.Positions].
func (p positionsPort) Save(ctx context.Context, name string, epoch int64, value []byte) error {
	pos, err := cdc.DecodePosition(value)
	if err != nil {
		return err
	}
	return p.store.SaveCapture(ctx, metadata.CapturePosition{Shard: name, Epoch: epoch, Seq: pos.Seq, ResumeToken: pos.Token, State: value})
}

// captured gives the newest cluster time of a shard's captured log that is saved.
func (a *Activities) captured(name string) func(context.Context) (bson.Timestamp, error) {
	return func(ctx context.Context) (bson.Timestamp, error) {
		p, ok, err := a.Store.Capture(ctx, name)
		if err != nil || !ok {
			return bson.Timestamp{}, err
		}
		pos, err := cdc.DecodePosition(p.State)
		return pos.Time, err
	}
}

// stragglersPort keeps stragglers in the metadata.
type stragglersPort struct{ store *metadata.Store }

var _ cdc.Stragglers = stragglersPort{}

// Report implements [cdc.Stragglers].
func (p stragglersPort) Report(ctx context.Context, s cdc.Straggler) error {
	return p.store.AddStraggler(ctx, metadata.Straggler{Shard: s.Shard, Placement: s.Placement, Seq: s.Seq, Event: s.Event, Kind: s.Kind})
}

// Withdraw implements [cdc.Stragglers].
func (p stragglersPort) Withdraw(ctx context.Context, r cdc.Reprieve) error {
	note := fmt.Sprintf("attempt %d closed the placement again or went back: the lanes apply it", r.Attempt)
	return p.store.WithdrawStragglers(ctx, r.Shard, r.Placement, r.From, r.To, note)
}
