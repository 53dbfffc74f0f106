package drivers_test

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/testkit"
)

// output runs a program to its end and gives the lines that it says.
func output(t *testing.T, name string, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "%s\n%s", errs.String(), out.String())
	return strings.Split(strings.TrimSpace(out.String()), "\n")
}

// PyMongo sees one server in both.
func TestPyMongo(t *testing.T) {
	t.Parallel()

	python := testkit.Tool(t, filepath.Join("drivers", "venv", "bin", "python"))
	f := newFleet(t)
	f.prepare(t)
	direct, through := output(t, python, "script.py", f.direct), output(t, python, "script.py", f.proxy)
	require.Equal(t, len(direct), len(through))
	for i := range direct {
		require.JSONEq(t, direct[i], through[i])
	}
	require.Greater(t, len(direct), 20)
}

// everyday is a session of mongosh; its last words are wanted.
const everyday = `
use(%q);
db.orders.insertMany([...Array(30).keys()].map(n => ({_id: n, merchant: "m" + n %% 7, n})));
print(db.orders.find({n: {$gt: 20}}).sort({n: -1}).toArray().map(d => d._id).join());
print(db.orders.countDocuments({merchant: "m3"}), db.orders.estimatedDocumentCount(), db.orders.distinct("merchant").join());
print(JSON.stringify(db.orders.updateMany({n: {$lt: 5}}, {$inc: {n: 100}})));
print(JSON.stringify(db.orders.aggregate([{$group: {_id: null, s: {$sum: "$n"}}}]).toArray()));
print(db.orders.find({merchant: "m3"}).explain().queryPlanner.winningPlan.stage);
print(db.orders.createIndex({n: 1}), db.orders.getIndexes().length, db.getCollectionNames().sort().join());
print(db.stats().objects, db.hello().msg, db.serverStatus().process, db.version().length > 0);
try { db.orders.updateOne({_id: 1}, {$set: {merchant: "other"}}) } catch (e) { print(e.code) }
const s = db.getMongo().startSession();
s.startTransaction();
s.getDatabase(%q).orders.insertOne({_id: "t", merchant: "m1"});
s.commitTransaction();
print(db.orders.deleteMany({}).deletedCount);
`

// A session of everyday commands in mongosh.
func TestMongosh(t *testing.T) {
	t.Parallel()

	mongosh := testkit.Tool(t, filepath.Join("drivers", "node", "node_modules", ".bin", "mongosh"))
	f := newFleet(t)
	got := output(t, mongosh, "--quiet", "--norc", f.proxy, "--eval", strings.ReplaceAll(strings.ReplaceAll(everyday, "%q", `"`+database+`"`), "%%", "%"))
	require.Equal(t, []string{
		"29,28,27,26,25,24,23,22,21", "4 30 m0,m1,m2,m3,m4,m5,m6",
		`{"acknowledged":true,"insertedId":null,"matchedCount":5,"modifiedCount":5,"upsertedCount":0}`,
		`[{"_id":null,"s":935}]`, "SINGLE_SHARD", "n_1 2 orders,people", "30 isdbgrid mongos true", "66", "31",
	}, got)
	n, err := dial(t, f.proxy).Database(database).Collection("orders").CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	require.Zero(t, n)
}
