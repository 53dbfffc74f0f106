package testkit

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/drivertest"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/xoptions"
)

// Replying is a client of a server that gives these answers, one after another.
func Replying(t testing.TB, answers ...bson.D) *mongo.Client {
	t.Helper()
	opts := options.Client()
	if err := xoptions.SetInternalClientOptions(opts, "deployment", drivertest.NewMockDeployment(answers...)); err != nil {
		t.Fatal(err)
	}
	client, err := mongo.Connect(opts)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
