package shardsim_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.uber.org/goleak"

	"drover/internal/mongocode"
	"drover/shard/shardsim"
)

// TestMain sees that sets leave nothing running.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon bounds what is awaited: a driver's monitor takes half a second between two looks.
const soon = 20 * time.Second

// start starts a set, closed with the test.
func start(t *testing.T, o shardsim.Options) *shardsim.Set {
	t.Helper()

	s, err := shardsim.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// connect logs a user in, to the whole set or to one host of it.
func connect(t *testing.T, s *shardsim.Set, user, password, host string) *mongo.Client {
	t.Helper()

	o := options.Client().ApplyURI(s.URI()).SetServerSelectionTimeout(soon).SetHeartbeatInterval(500 * time.Millisecond).
		SetAuth(options.Credential{Username: user, Password: password, AuthSource: "admin"})
	if host != "" {
		o.SetHosts([]string{host}).SetDirect(true)
		o.ReplicaSet = nil
	}
	c, err := mongo.Connect(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 100*time.Millisecond)
		defer cancel()
		_ = c.Disconnect(ctx) // a member that is down takes no goodbye
	})
	return c
}

// run runs a command on admin.
func run(t *testing.T, c *mongo.Client, cmd bson.D) (bson.Raw, error) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	return c.Database("admin").RunCommand(ctx, cmd).Raw()
}

// configOf reads the configuration that a member holds.
func configOf(t *testing.T, c *mongo.Client) (cfg bson.M) {
	t.Helper()

	r, err := run(t, c, bson.D{{Key: "replSetGetConfig", Value: 1}})
	require.NoError(t, err)
	var reply struct {
		Config bson.M `bson:"config"`
	}
	require.NoError(t, bson.Unmarshal(r, &reply))
	return reply.Config
}

// members of a configuration, to be edited.
func members(cfg bson.M) []bson.D {
	var out []bson.D
	for _, m := range cfg["members"].(bson.A) {
		out = append(out, m.(bson.D))
	}
	return out
}

// field sets a field of a document.
func field(d bson.D, key string, value any) {
	for i := range d {
		if d[i].Key == key {
			d[i].Value = value
		}
	}
}

// reconfig edits the configuration and installs it.
func reconfig(t *testing.T, c *mongo.Client, edit func(cfg bson.M, m []bson.D) []bson.D) error {
	t.Helper()

	cfg := configOf(t, c)
	cfg["version"] = cfg["version"].(int32) + 1
	cfg["members"] = edit(cfg, members(cfg))
	_, err := run(t, c, bson.D{{Key: "replSetReconfig", Value: cfg}, {Key: "maxTimeMS", Value: 5000}})
	return err
}

func TestDriverFollowsElections(t *testing.T) {
	t.Parallel()

	s := start(t, shardsim.Options{})
	c := connect(t, s, "root", "root", "")
	docs := c.Database("app").Collection("c")
	_, err := docs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: "a"}})
	require.NoError(t, err)
	_, err = docs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1.0}})
	require.True(t, mongocode.IsDuplicateKey(err), "numbers that are equal are one _id: %v", err)

	first := s.Primary()
	secondary := s.Hosts()[1]
	direct := connect(t, s, "root", "root", secondary)
	n, err := direct.Database("app").Collection("c").CountDocuments(t.Context(), bson.D{{Key: "v", Value: "a"}})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)

	s.Kill(first)
	s.Advance(11 * time.Second)
	require.NotEqual(t, first, s.Primary())
	require.NotEmpty(t, s.Primary())
	require.Eventually(t, func() bool { // the driver's one retry may meet the dead member's pool once more
		_, err = docs.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: "b"}}}})
		return err == nil
	}, time.Minute, time.Millisecond)
	s.Start(first)
	back := connect(t, s, "root", "root", first)
	require.NoError(t, back.Database("app").Collection("c").FindOne(t.Context(), bson.D{{Key: "v", Value: "b"}}).Err(), "what came back has caught up")

	_, err = run(t, connect(t, s, "root", "wrong", secondary), bson.D{{Key: "replSetGetStatus", Value: 1}})
	require.True(t, mongocode.IsAuthenticationFailed(err), "%v", err)
}

// What only the old primary had is gone after an election; what a majority had
// acknowledged never.
func TestElectionRollsBackWhatNoMajorityHad(t *testing.T) {
	t.Parallel()

	s := start(t, shardsim.Options{})
	hosts, old := s.Hosts(), s.Primary()
	direct := connect(t, s, "root", "root", old)
	docs := direct.Database("app").Collection("c")
	_, err := docs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "kept"}})
	require.NoError(t, err)
	s.Partition(old, hosts[1], true)
	s.Partition(old, hosts[2], true)
	one := direct.Database("app").Collection("c", options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 1}))
	_, err = one.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "lost"}})
	require.NoError(t, err)
	majority := direct.Database("app").Collection("c", options.Collection().SetReadConcern(readconcern.Majority()))
	require.ErrorIs(t, majority.FindOne(t.Context(), bson.D{{Key: "_id", Value: "lost"}}).Err(), mongo.ErrNoDocuments)
	s.Advance(25 * time.Second)
	require.NotEqual(t, old, s.Primary())
	s.Partition(old, hosts[1], false)
	s.Partition(old, hosts[2], false)
	s.Advance(time.Second)
	require.NoError(t, docs.FindOne(t.Context(), bson.D{{Key: "_id", Value: "kept"}}).Err())
	require.ErrorIs(t, docs.FindOne(t.Context(), bson.D{{Key: "_id", Value: "lost"}}).Err(), mongo.ErrNoDocuments)
}

func TestReconfigurationRules(t *testing.T) {
	t.Parallel()

	s := start(t, shardsim.Options{Members: []shardsim.Member{{Votes: 1, Priority: 2}, {Votes: 1, Priority: 1}, {Votes: 1, Priority: 1}, {}, {}}, Spares: 1, Auto: true})
	hosts := s.Hosts()
	c := connect(t, s, "root", "root", s.Primary())
	for name, test := range map[string]struct {
		edit func(cfg bson.M, m []bson.D) []bson.D
		code int
	}{
		"two votes at once": {func(_ bson.M, m []bson.D) []bson.D { field(m[3], "votes", 1); field(m[4], "votes", 1); return m }, 103},
		"old version":       {func(cfg bson.M, m []bson.D) []bson.D { cfg["version"] = int32(1); return m }, 103},
		"another set":       {func(cfg bson.M, m []bson.D) []bson.D { cfg["_id"] = "other"; return m }, 103},
		"priority, no vote": {func(_ bson.M, m []bson.D) []bson.D { field(m[3], "priority", 1.0); return m }, 93},
		"same host, new id": {func(_ bson.M, m []bson.D) []bson.D { field(m[4], "_id", 9); return m }, 103},
		"primary leaves":    {func(_ bson.M, m []bson.D) []bson.D { return m[1:] }, 107},
	} {
		err := reconfig(t, c, test.edit)
		require.True(t, mongocode.Has(err, test.code), "%s: %v", name, err)
	}
	_, err := run(t, c, bson.D{{Key: "replSetReconfig", Value: configOf(t, c)}, {Key: "force", Value: true}})
	require.True(t, mongocode.Has(err, 20), "%v", err)
	require.EqualValues(t, 1, configOf(t, c)["version"], "nothing changed")

	other := connect(t, s, "root", "root", hosts[1])
	err = reconfig(t, other, func(_ bson.M, m []bson.D) []bson.D { return m })
	require.True(t, mongocode.IsNotPrimary(err), "%v", err)

	require.NoError(t, reconfig(t, c, func(_ bson.M, m []bson.D) []bson.D { field(m[3], "votes", 1); return m }))
	require.EqualValues(t, 2, configOf(t, other)["version"])

	s.Kill(hosts[1])
	s.Kill(hosts[2])
	err = reconfig(t, c, func(_ bson.M, m []bson.D) []bson.D { field(m[4], "votes", 1); return m })
	require.True(t, mongocode.Has(err, 308, 103), "no majority has the present configuration: %v", err)
}

// A new member with a vote has none until its initial sync has ended; then the
// primary writes a configuration by itself.
func TestNewMemberVotesAfterItsInitialSync(t *testing.T) {
	t.Parallel()

	s := start(t, shardsim.Options{Spares: 1})
	hosts := s.Hosts()
	require.NoError(t, s.Wipe(hosts[3], 0))
	c := connect(t, s, "root", "root", s.Primary())
	require.NoError(t, reconfig(t, c, func(_ bson.M, m []bson.D) []bson.D {
		return append(m, bson.D{{Key: "_id", Value: 3}, {Key: "host", Value: hosts[3]}, {Key: "votes", Value: 1}, {Key: "priority", Value: 1.0}})
	}))
	status := func() bson.Raw {
		r, err := run(t, c, bson.D{{Key: "replSetGetStatus", Value: 1}})
		require.NoError(t, err)
		return r
	}
	require.EqualValues(t, 2, status().Lookup("majorityVoteCount").AsInt64())
	require.Equal(t, "STARTUP2", status().Lookup("members", "3", "stateStr").StringValue())
	s.Advance(40 * time.Second)
	require.Equal(t, "SECONDARY", status().Lookup("members", "3", "stateStr").StringValue())
	require.EqualValues(t, 3, status().Lookup("majorityVoteCount").AsInt64())
	require.EqualValues(t, 3, configOf(t, c)["version"], "two changes, one of them nobody asked for")
}

func TestStepDownPriorityAndFreeze(t *testing.T) {
	t.Parallel()

	s := start(t, shardsim.Options{Members: []shardsim.Member{{Votes: 1, Priority: 1}, {Votes: 1, Priority: 1}, {Votes: 1, Priority: 1}}})
	hosts := s.Hosts()
	c := connect(t, s, "root", "root", hosts[0])
	_, err := run(t, connect(t, s, "root", "root", hosts[1]), bson.D{{Key: "replSetFreeze", Value: 60}})
	require.NoError(t, err)
	_, err = run(t, c, bson.D{{Key: "replSetStepDown", Value: 60}})
	require.NoError(t, err)
	require.Equal(t, hosts[2], s.Primary(), "the one that was free to stand")

	third := connect(t, s, "root", "root", hosts[2])
	require.NoError(t, reconfig(t, third, func(_ bson.M, m []bson.D) []bson.D { field(m[1], "priority", 5.0); return m }))
	s.Advance(30 * time.Second)
	require.Equal(t, hosts[2], s.Primary(), "frozen")
	s.Advance(60 * time.Second)
	require.Equal(t, hosts[1], s.Primary(), "takes over by its priority")
	before := configOf(t, c)["term"]
	s.Advance(time.Hour)
	require.Equal(t, before, configOf(t, c)["term"], "and stays")
}

// A retry of a write whose answer was lost is answered from the record, by the new
// primary too.
func TestRetryableWritesRunOnce(t *testing.T) {
	t.Parallel()

	s := start(t, shardsim.Options{})
	c := connect(t, s, "root", "root", "")
	docs := c.Database("app").Collection("c")
	_, err := docs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 0}})
	require.NoError(t, err)
	f := s.Inject(shardsim.Fault{Stage: shardsim.Done, Match: shardsim.Command("update", ""), Times: 1, Drop: true, Do: func() {
		old := s.Primary()
		for _, h := range s.Hosts() {
			if h != old && s.StepUp(h) {
				return
			}
		}
	}})
	r, err := docs.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	require.NoError(t, err)
	require.Equal(t, 1, f.Hits())
	require.EqualValues(t, 1, r.ModifiedCount)
	var d struct{ N int64 }
	require.NoError(t, docs.FindOne(t.Context(), bson.D{{Key: "_id", Value: 1}}).Decode(&d))
	require.EqualValues(t, 1, d.N)

	sess, err := c.StartSession()
	require.NoError(t, err)
	defer sess.EndSession(t.Context())
	for range 3 {
		_, err = docs.UpdateOne(mongo.NewSessionContext(t.Context(), sess), bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		require.NoError(t, err)
	}
	var record struct {
		Number int64 `bson:"txnNum"`
	}
	require.NoError(t, c.Database("config").Collection("transactions").FindOne(t.Context(), bson.D{{Key: "_id.id", Value: sess.ID().Lookup("id")}}).Decode(&record))
	require.EqualValues(t, 3, record.Number, "one record for each session, of its newest write: what a proxy asks after a switch")
}

func TestTransactions(t *testing.T) {
	t.Parallel()

	s := start(t, shardsim.Options{})
	c := connect(t, s, "root", "root", "")
	docs := c.Database("app").Collection("c")
	sess, err := c.StartSession()
	require.NoError(t, err)
	defer sess.EndSession(t.Context())
	for _, commit := range []bool{true, false} {
		require.NoError(t, sess.StartTransaction())
		ctx := mongo.NewSessionContext(t.Context(), sess)
		_, err = docs.InsertOne(ctx, bson.D{{Key: "_id", Value: commit}})
		require.NoError(t, err)
		require.NoError(t, docs.FindOne(ctx, bson.D{{Key: "_id", Value: commit}}).Err(), "it sees its own")
		require.ErrorIs(t, docs.FindOne(t.Context(), bson.D{{Key: "_id", Value: commit}}).Err(), mongo.ErrNoDocuments)
		require.Equal(t, 1, s.Transactions(s.Primary()))
		if commit {
			require.NoError(t, sess.CommitTransaction(t.Context()))
			require.NoError(t, docs.FindOne(t.Context(), bson.D{{Key: "_id", Value: commit}}).Err())
			continue
		}
		_, err = run(t, c, bson.D{{Key: "killAllSessionsByPattern", Value: bson.A{}}})
		require.NoError(t, err)
		err = sess.CommitTransaction(t.Context())
		require.True(t, mongocode.IsNoSuchTransaction(err), "%v", err)
	}
}

// In automatic time a command that waits lets time pass; a majority that is not
// there is told at the limit, without anybody sleeping.
func TestWriteConcernTimesOutInTheSetsOwnTime(t *testing.T) {
	t.Parallel()

	s := start(t, shardsim.Options{Auto: true})
	hosts := s.Hosts()
	s.Stall(hosts[1])
	s.Stall(hosts[2])
	c := connect(t, s, "root", "root", hosts[0])
	before := s.Now()
	r, err := c.Database("app").RunCommand(t.Context(), bson.D{
		{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: 60_000}}},
	}).Raw()
	require.True(t, mongocode.Has(err, mongocode.WriteConcernFailed), "%v %v", r, err)
	require.GreaterOrEqual(t, s.Now().Sub(before), time.Minute)
}
