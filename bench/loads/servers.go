package loads

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/bulkimport"
	"drover/chunk"
	"drover/devstack"
)

// Servers are shards and a bucket of a measurement's own.
type Servers struct {
	Dir    string
	tools  devstack.Tools
	shards []*devstack.ShardServer
	conns  []*mongo.Client
	Bucket bulkimport.Bucket
	Synced bool // each commit is synced: the peer of what runs on a fleet
}

// Start starts the bucket in a folder that is made anew. Stop the servers, also when
// it fails.
func Start(ctx context.Context, dir string) (*Servers, error) {
	s := &Servers{Dir: dir}
	if err := os.RemoveAll(s.Dir); err != nil {
		return s, err
	}
	var err error
	if s.tools, err = devstack.NewTools(); err != nil {
		return s, err
	}
	stack, err := devstack.Up(ctx, devstack.Options{Dir: filepath.Join(s.Dir, "stack"), Parts: []string{"s3"}}, func(string, string) {})
	if err != nil {
		return s, err
	}
	s.Bucket = bulkimport.Bucket{Client: stack.S3.Client(), Name: stack.S3.Bucket}
	return s, nil
}

// Shard starts a shard with so much cache. Nothing is killed here, so that it need
// not sync each commit; neither need those of the peers, which use the same ones.
func (s *Servers) Shard(ctx context.Context, name string, cacheMB int) (*mongo.Client, devstack.ShardAccess, error) {
	server, err := devstack.NewShard(filepath.Join(s.Dir, name), name, s.tools)
	if err != nil {
		return nil, devstack.ShardAccess{}, err
	}
	server.Tune(cacheMB, !s.Synced)
	s.shards = append(s.shards, server)
	if err := server.Start(ctx); err != nil {
		return nil, server.Access(), err
	}
	c, err := mongo.Connect(options.Client().ApplyURI(server.Access().AdminURI))
	if err != nil {
		return nil, server.Access(), err
	}
	s.conns = append(s.conns, c)
	return c, server.Access(), nil
}

// StopShards ends the shards, so that the next side has the machine for itself.
func (s *Servers) StopShards(ctx context.Context) error {
	var errs []error
	for _, c := range s.conns {
		errs = append(errs, c.Disconnect(ctx))
	}
	for _, x := range s.shards {
		errs = append(errs, x.Stop(ctx), os.RemoveAll(x.Dir()))
	}
	s.conns, s.shards = nil, nil
	return errors.Join(errs...)
}

// Stop ends everything and removes it.
func (s *Servers) Stop(ctx context.Context) error {
	err := s.StopShards(ctx)
	return errors.Join(err, devstack.Reset(ctx, devstack.Options{Dir: filepath.Join(s.Dir, "stack")}, func(string, string) {}), os.RemoveAll(s.Dir))
}

// Mark writes a marker and gives the cluster time at which a change stream shows it.
func Mark(ctx context.Context, c *mongo.Client) (bson.Timestamp, error) {
	markers := c.Database(chunk.SystemDatabase).Collection(chunk.MarkersCollection)
	stream, err := markers.Watch(ctx, mongo.Pipeline{})
	if err != nil {
		return bson.Timestamp{}, err
	}
	defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }()
	if _, err := markers.InsertOne(ctx, bson.D{{Key: "_id", Value: bson.NewObjectID()}}); err != nil {
		return bson.Timestamp{}, err
	}
	if !stream.Next(ctx) {
		return bson.Timestamp{}, fmt.Errorf("the marker did not come back: %w", stream.Err())
	}
	t, i := stream.Current.Lookup("clusterTime").Timestamp()
	return bson.Timestamp{T: t, I: i}, nil
}

// StopShard ends one shard and removes what it holds.
func (s *Servers) StopShard(ctx context.Context, name string) error {
	for i, x := range s.shards {
		if x.Access().Name == name {
			err := errors.Join(s.conns[i].Disconnect(ctx), x.Stop(ctx), os.RemoveAll(x.Dir()))
			s.shards = append(s.shards[:i:i], s.shards[i+1:]...)
			s.conns = append(s.conns[:i:i], s.conns[i+1:]...)
			return err
		}
	}
	return nil
}
