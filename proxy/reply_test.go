package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
)

// passed gives a shard's reply as a client gets it.
func passed(t *testing.T, reply bson.Raw) bson.Raw {
	t.Helper()
	q := &request{client: &client{}}
	r := &route{Route: chunk.Route{Chunk: chunk.Chunk{Database: "flights"}, Placement: chunk.Placement{Database: "flights_0003_p42", Shard: "s"}}}
	require.NoError(t, q.pass(&answer{raw: reply, route: r, status: statusOf(reply)}))
	return q.client.out
}

func TestPassedReply(t *testing.T) {
	t.Parallel()

	got := passed(t, raw(t, bson.D{
		{Key: "n", Value: 1}, {Key: "electionId", Value: bson.NewObjectID()}, {Key: "opTime", Value: bson.D{}},
		{Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: 0}, {Key: "code", Value: 11000}, {Key: "errmsg", Value: "dup key flights_0003_p42.legs"}, {Key: "keyValue", Value: bson.D{{Key: "x", Value: 1}}}}}},
		{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 91}, {Key: "codeName", Value: "ShutdownInProgress"}, {Key: "errmsg", Value: "x"}}},
		{Key: "ok", Value: 1.0}, {Key: "$clusterTime", Value: bson.D{}}, {Key: "operationTime", Value: bson.Timestamp{}},
	}))
	require.JSONEq(t, `{"n":1,"writeErrors":[{"index":0,"code":11000,"errmsg":"dup key flights.legs","keyValue":{"x":1}}],
		"writeConcernError":{"code":6,"codeName":"HostUnreachable","errmsg":"x"},"ok":1.0}`, relaxed(t, got),
		"a code that makes drivers give up the proxy must not pass")
}

// An error message may hold any bytes.
func TestInvalidTextPasses(t *testing.T) {
	t.Parallel()

	at, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendDoubleElement(doc, "ok", 0)
	doc = bsoncore.AppendStringElement(doc, "errmsg", "in flights_0003_p42.c: \xff\xfe\x00z")
	doc = bsoncore.AppendInt32Element(doc, "code", 2)
	doc, _ = bsoncore.AppendDocumentEnd(doc, at)
	got := passed(t, doc)
	require.Equal(t, "in flights.c: \xff\xfe\x00z", string(element(t, got, "errmsg").Text()))
	a := answer{raw: doc, route: &route{}, status: statusOf(doc)}
	require.Equal(t, "in flights_0003_p42.c: \xff\xfe\x00z", refusalOf(t, a.asError()).msg)
}

func TestCountPipeline(t *testing.T) {
	t.Parallel()

	stage := func(name string, v any) bson.D { return bson.D{{Key: name, Value: v}} }
	group := stage("$group", bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: stage("$sum", 1)}})
	for name, tc := range map[string]struct {
		pipeline bson.A
		ok       bool
	}{
		"plain":          {bson.A{stage("$match", bson.D{}), group}, true},
		"skip and limit": {bson.A{stage("$match", bson.D{}), stage("$skip", 2), stage("$limit", 3), group}, true},
		"without match":  {bson.A{group}, true},
		"limit first":    {bson.A{stage("$limit", 3), stage("$skip", 2), group}, false},
		"sum of a field": {bson.A{stage("$group", bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: stage("$sum", "$x")}})}, false},
		"by a field":     {bson.A{stage("$group", bson.D{{Key: "_id", Value: "$x"}, {Key: "n", Value: stage("$sum", 1)}})}, false},
		"after group":    {bson.A{group, stage("$match", bson.D{})}, false},
		"nothing":        {bson.A{}, false},
		"match later":    {bson.A{stage("$skip", 2), stage("$match", bson.D{}), group}, false},
	} {
		c, ok := countPipeline(bson.Raw(raw(t, bson.D{{Key: "p", Value: tc.pipeline}}).Lookup("p").Value))
		require.Equal(t, tc.ok, ok, name)
		if ok {
			require.Equal(t, "n", c.field, name)
		}
	}
}
