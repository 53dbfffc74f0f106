package scenario_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"drover/cdc"
	"drover/chunk"
	"drover/contract"
	"drover/internal/testkit"
	"drover/metadata"
)

// TestMoveOutlastsKafka pauses a move for longer than Kafka keeps its log: lanes go on
// from the archive, find their start there on a worker that never knew it, and the move
// ends as any other.
func TestMoveOutlastsKafka(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	first := f.startWorker("worker")
	f.startWork(false)
	f.migrate(contract.Manual)
	f.await("the approval", waitsForApproval)
	f.ask(contract.PauseUpdate)
	f.await("the pause", func(st contract.Status) bool { return strings.Contains(st.WaitingFor, "a resume") })
	log, err := cdc.NewLog(testkit.Kafka(t))
	require.NoError(t, err)
	t.Cleanup(log.Close)
	source := f.hot.Placement.Shard
	ends := func() (all []int64, sum int64) {
		all, err := log.EndOffsets(t.Context(), source)
		require.NoError(t, err)
		for _, o := range all {
			sum += o
		}
		return all, sum
	}
	_, paused := ends()
	require.True(t, eventually(t, func() bool { _, now := ends(); return now > paused+300 }), "nothing is captured while the move is paused")
	first.kill()
	at, _ := ends()
	f.archiveTo(log, source, at)
	cut(t, source, at)
	f.startWorker("another")
	f.ask(contract.ResumeUpdate)
	f.await("the approval again", waitsForApproval)
	f.ask(contract.ApproveUpdate)
	f.await("burn-in", inBurnIn)
	f.complete()
	f.check(false)
}

// archiveTo archives a shard's log up to some offsets.
func (f *fleet) archiveTo(log *cdc.Log, shard string, ends []int64) {
	f.t.Helper()
	value := func(name string) string {
		for _, v := range f.env {
			if rest, ok := strings.CutPrefix(v, name+"="); ok {
				return rest
			}
		}
		return ""
	}
	endpoint := value("DROVER_S3_ENDPOINT")
	positions := archivePositions{f.store}
	archive := &cdc.Archive{
		Shard: shard, Log: log, Positions: positions,
		Objects: &cdc.Objects{Bucket: bucketOf(f.env), Client: s3.New(s3.Options{
			Region: value("DROVER_S3_REGION"), BaseEndpoint: &endpoint, UsePathStyle: true,
			Credentials: credentials.NewStaticCredentialsProvider(value("DROVER_S3_ACCESS_KEY"), value("DROVER_S3_SECRET_KEY"), ""),
		})},
		Settings: cdc.ArchiveSettings{SegmentBytes: 32 << 10, SegmentAge: 100 * time.Millisecond},
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- archive.Run(ctx) }()
	for p, end := range ends {
		require.True(f.t, eventually(f.t, func() bool {
			next, err := positions.Archived(ctx, chunk.Topic(shard), int32(p)) //nolint:gosec // a partition
			return err == nil && next >= end
		}), "partition %d is not archived", p)
	}
	cancel()
	require.ErrorIs(f.t, <-done, context.Canceled)
}

// archivePositions keeps an archive's positions where the workers' archives do.
type archivePositions struct{ store *metadata.Store }

// Archived implements [cdc.ArchivePositions].
func (p archivePositions) Archived(ctx context.Context, topic string, partition int32) (int64, error) {
	at, err := p.store.ArchivePosition(ctx, topic, partition)
	return at.Offset, err
}

// SaveArchived implements [cdc.ArchivePositions].
func (p archivePositions) SaveArchived(ctx context.Context, topic string, partition int32, from, to int64, manifest string) error {
	return p.store.SaveArchive(ctx, from, metadata.ArchivePosition{Topic: topic, Partition: partition, Offset: to, Manifest: manifest})
}

// cut lets Kafka drop what a shard's log holds before some offsets, as its retention would.
func cut(t *testing.T, shard string, before []int64) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(testkit.Kafka(t)...))
	require.NoError(t, err)
	defer client.Close()
	var offsets kadm.Offsets
	for p, o := range before {
		offsets.AddOffset(chunk.Topic(shard), int32(p), o, -1)
	}
	deleted, err := kadm.NewClient(client).DeleteRecords(t.Context(), offsets)
	require.NoError(t, errors.Join(err, deleted.Error()))
}
