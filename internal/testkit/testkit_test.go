package testkit_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/internal/testkit"
)

func TestPostgresGivesEachTestItsOwnDatabase(t *testing.T) {
	t.Parallel()
	first, second := testkit.Postgres(t), testkit.Postgres(t)
	require.NotEqual(t, first, second)

	conn, err := pgx.Connect(t.Context(), first)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), "create table t (a int)")
	require.NoError(t, err)
}

func TestBucketTakesObjectsAndIsRemovedWithThem(t *testing.T) {
	t.Parallel()
	var b testkit.Bucket
	var client *s3.Client
	t.Run("use", func(t *testing.T) {
		b = testkit.S3(t)
		client = s3.New(s3.Options{
			BaseEndpoint: aws.String(b.Endpoint), Region: b.Region, UsePathStyle: true,
			Credentials: credentials.NewStaticCredentialsProvider(b.AccessKey, b.SecretKey, ""),
		})
		_, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &b.Bucket, Key: aws.String("a/b"), Body: strings.NewReader("x")})
		require.NoError(t, err)
	})
	if client == nil {
		t.Skip("no stack")
	}
	_, err := client.HeadBucket(t.Context(), &s3.HeadBucketInput{Bucket: &b.Bucket})
	require.Error(t, err)
}

// A test that kills a shard must find everything that was acknowledged, under
// the same address and with the same users.
func TestShardKeepsItsDataOverKillAndRestart(t *testing.T) {
	t.Parallel()
	shard := testkit.Shard(t)
	client, err := mongo.Connect(options.Client().ApplyURI(shard.AdminURI()).SetServerSelectionTimeout(20 * time.Second))
	require.NoError(t, err)
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	coll := client.Database("d").Collection("c")
	_, err = coll.InsertOne(t.Context(), bson.M{"_id": 1})
	require.NoError(t, err)

	shard.Kill(t)
	shard.Restart(t)

	_, err = coll.InsertOne(t.Context(), bson.M{"_id": 2})
	require.NoError(t, err)
	n, err := coll.CountDocuments(t.Context(), bson.M{})
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
}

func TestShardRefusesWhoeverDoesNotAuthenticate(t *testing.T) {
	t.Parallel()
	shard := testkit.Shard(t)
	client, err := mongo.Connect(options.Client().ApplyURI(shard.URI()))
	require.NoError(t, err)
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	_, err = client.Database("d").Collection("c").InsertOne(t.Context(), bson.M{"_id": 1})
	require.Error(t, err)
}

func TestKafkaAndTemporalAreFound(t *testing.T) {
	t.Parallel()
	require.NotEmpty(t, testkit.Kafka(t))
	require.NotEmpty(t, testkit.Temporal(t))
}
