package main

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

// servers are shards and a bucket of a part's own.
type servers struct {
	dir    string
	tools  devstack.Tools
	shards []*devstack.ShardServer
	conns  []*mongo.Client
	bucket bulkimport.Bucket
	synced bool // each commit is synced: the peer of what runs on a fleet
}

// startServers starts the bucket in a folder that is made anew.
func (b *bench) startServers(ctx context.Context, name string) (*servers, error) {
	s := &servers{dir: filepath.Join(b.o.dir, name)}
	if err := os.RemoveAll(s.dir); err != nil {
		return s, err
	}
	var err error
	if s.tools, err = devstack.NewTools(); err != nil {
		return s, err
	}
	stack, err := devstack.Up(ctx, devstack.Options{Dir: filepath.Join(s.dir, "stack"), Parts: []string{"s3"}}, func(string, string) {})
	if err != nil {
		return s, err
	}
	s.bucket = bulkimport.Bucket{Client: stack.S3.Client(), Name: stack.S3.Bucket}
	return s, nil
}

// shard starts a shard with so much cache. Nothing is killed here, so that it need
// not sync each commit; neither need those of the peers, which use the same ones.
func (s *servers) shard(ctx context.Context, name string, cacheMB int) (*mongo.Client, devstack.ShardAccess, error) {
	server, err := devstack.NewShard(filepath.Join(s.dir, name), name, s.tools)
	if err != nil {
		return nil, devstack.ShardAccess{}, err
	}
	server.Tune(cacheMB, !s.synced)
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

// stopShards ends the shards, so that the next side has the machine for itself.
func (s *servers) stopShards(ctx context.Context) error {
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

// stop ends everything and removes it.
func (s *servers) stop(ctx context.Context) error {
	err := s.stopShards(ctx)
	return errors.Join(err, devstack.Reset(ctx, devstack.Options{Dir: filepath.Join(s.dir, "stack")}, func(string, string) {}), os.RemoveAll(s.dir))
}

// mark writes a marker and gives the cluster time at which a change stream shows it.
func mark(ctx context.Context, c *mongo.Client) (bson.Timestamp, error) {
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

// stopShard ends one shard and removes what it holds.
func (s *servers) stopShard(ctx context.Context, name string) error {
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
