package proxy

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/proxy/auth"
)

// users is a directory in memory.
type users struct {
	mu  sync.Mutex
	all []auth.User
}

// Users implements [auth.Directory].
func (u *users) Users(context.Context) ([]auth.User, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]auth.User(nil), u.all...), nil
}

// add makes a user whose password is its name twice.
func (u *users) add(t *testing.T, name string, grants ...auth.Grant) {
	t.Helper()
	c, err := auth.Derive(name + name)
	require.NoError(t, err)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = append(u.all, auth.User{Name: name, Credentials: c, Grants: grants})
}

// guarded runs a proxy over a fake shard that knows a few users.
func guarded(t *testing.T, log *slog.Logger) (*fleet, *fakeShard, *users, *Proxy) {
	t.Helper()
	f, s := newFakeFleet(t, 1, testDatabase, "hotels")
	s.answers(func(cmd bson.Raw) bson.D {
		if cmd.Lookup("find").Type != 0 {
			return emptyCursorReply()
		}
		return bson.D{{Key: "n", Value: 1}, {Key: "ok", Value: 1.0}}
	})
	dir := &users{}
	dir.add(t, "reader", auth.Grant{Database: testDatabase, Actions: []auth.Action{auth.Read}})
	dir.add(t, "writer", auth.Grant{Database: testDatabase, Actions: []auth.Action{auth.Read, auth.Write}})
	ports := f.ports()
	ports.Users = dir
	p := New(Config{ID: "proxy-1", Log: log}, ports)
	f.run(p)
	return f, s, dir, p
}

// as gives the driver's options of a user.
func as(name, password, source string) *options.ClientOptions {
	return options.Client().SetAuth(options.Credential{
		AuthMechanism: "SCRAM-SHA-256", AuthSource: source, Username: name, Password: password,
	}).SetAppName("test-" + name)
}

// requireCode wants a server's error with a code.
func requireCode(t *testing.T, want int, err error) {
	t.Helper()
	var se mongo.ServerError
	require.ErrorAs(t, err, &se)
	require.True(t, se.HasErrorCode(want), "%v", err)
}

func TestLogin(t *testing.T) {
	t.Parallel()

	var logged bytes.Buffer
	f, s, dir, p := guarded(t, slog.New(slog.NewJSONHandler(&syncWriter{w: &logged}, nil)))
	on := func(c *mongo.Client) *mongo.Collection { return c.Database(testDatabase).Collection("legs") }
	key := bson.D{{Key: "origin", Value: "x"}}

	t.Run("Grants", func(t *testing.T) {
		reader := f.dial(p, as("reader", "readerreader", "admin"))
		require.ErrorIs(t, on(reader).FindOne(t.Context(), key).Err(), mongo.ErrNoDocuments)
		before := len(s.seen())
		_, err := on(reader).InsertOne(t.Context(), key)
		requireCode(t, 13, err)
		requireCode(t, 13, reader.Database("hotels").Collection("legs").FindOne(t.Context(), key).Err())
		requireCode(t, 13, reader.Database("admin").RunCommand(t.Context(), bson.D{
			{Key: "shardCollection", Value: testDatabase + ".legs"}, {Key: "key", Value: bson.D{{Key: "origin", Value: 1}}},
		}).Err())
		names, err := reader.ListDatabaseNames(t.Context(), bson.D{})
		require.NoError(t, err)
		require.Equal(t, []string{testDatabase}, names)
		require.Len(t, s.seen(), before, "a refused command reached the shard")

		writer := f.dial(p, as("writer", "writerwriter", "admin"))
		_, err = on(writer).InsertOne(t.Context(), key)
		require.NoError(t, err)
	})
	t.Run("Nobody", func(t *testing.T) {
		before := len(s.seen())
		nobody := f.dial(p)
		require.NoError(t, nobody.Ping(t.Context(), nil))
		requireCode(t, 13, on(nobody).FindOne(t.Context(), key).Err())
		_, err := on(nobody).InsertOne(t.Context(), key)
		requireCode(t, 13, err)
		require.Len(t, s.seen(), before, "a refused command reached the shard")
	})
	t.Run("WrongCredentials", func(t *testing.T) {
		for name, o := range map[string]*options.ClientOptions{
			"password": as("reader", "not-the-password", "admin"), "user": as("stranger", "strangerstranger", "admin"),
			"source": as("reader", "readerreader", testDatabase),
		} {
			requireCode(t, 18, on(f.dial(p, o)).FindOne(t.Context(), key).Err())
			_ = name
		}
	})
	t.Run("NewAndGoneUsers", func(t *testing.T) {
		dir.add(t, "late", auth.Grant{Database: auth.AllDatabases, Actions: []auth.Action{auth.Read}})
		require.Eventually(t, func() bool {
			return on(f.dial(p, as("late", "latelate", "admin"))).FindOne(t.Context(), key).Err() == mongo.ErrNoDocuments //nolint:errorlint // bare
		}, waitFor, tick, "a new user could not log in")

		c := f.dial(p, as("writer", "writerwriter", "admin"))
		_, err := on(c).InsertOne(t.Context(), key)
		require.NoError(t, err)
		dir.mu.Lock()
		dir.all = dir.all[:1]
		dir.mu.Unlock()
		p.readControl(t.Context())
		_, err = on(c).InsertOne(t.Context(), key)
		requireCode(t, 13, err)
	})
	for _, secret := range []string{"readerreader", "not-the-password", "writerwriter"} {
		require.NotContains(t, logged.String(), secret)
	}
}

// syncWriter makes a writer safe for several goroutines.
type syncWriter struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

// Write implements [io.Writer].
func (w *syncWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(b)
}

func TestOldLoginEndsWithAnEmptyExchange(t *testing.T) {
	t.Parallel()

	_, _, _, p := guarded(t, nil)
	c := dialRaw(t, p)
	admin := bson.E{Key: "$db", Value: "admin"}
	got := c.run(bson.D{{Key: "saslContinue", Value: 1}, {Key: "conversationId", Value: 1}, {Key: "payload", Value: []byte("x")}, admin})
	require.EqualValues(t, 17, got.Lookup("code").Int32())
	got = c.run(bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: "PLAIN"}, {Key: "payload", Value: []byte("x")}, admin})
	require.EqualValues(t, 334, got.Lookup("code").Int32())
	got = c.run(bson.D{{Key: "hello", Value: 1}, {Key: "saslSupportedMechs", Value: "admin.reader"}, admin})
	mechanisms, err := got.Lookup("saslSupportedMechs").Array().Values()
	require.NoError(t, err)
	require.Equal(t, "SCRAM-SHA-256", mechanisms[0].StringValue())

	client, err := scram.SHA256.NewClient("reader", "readerreader", "")
	require.NoError(t, err)
	conversation := client.NewConversation()
	payload, err := conversation.Step("")
	require.NoError(t, err)
	got = c.run(bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: "SCRAM-SHA-256"}, {Key: "payload", Value: []byte(payload)}, admin})
	for range 2 {
		require.False(t, got.Lookup("done").Boolean())
		_, data := got.Lookup("payload").Binary()
		payload, err = conversation.Step(string(data))
		require.NoError(t, err)
		got = c.run(bson.D{{Key: "saslContinue", Value: 1}, {Key: "conversationId", Value: 1}, {Key: "payload", Value: []byte(payload)}, admin})
	}
	require.True(t, got.Lookup("done").Boolean())
	require.True(t, conversation.Valid())
	who := c.run(bson.D{{Key: "connectionStatus", Value: 1}, admin})
	require.Equal(t, "reader", who.Lookup("authInfo", "authenticatedUsers", "0", "user").StringValue())
	c.run(bson.D{{Key: "logout", Value: 1}, admin})
	got = c.run(bson.D{{Key: "find", Value: "legs"}, {Key: "$db", Value: testDatabase}})
	require.EqualValues(t, 13, got.Lookup("code").Int32())
}

func TestEveryCommandNamesItsNeed(t *testing.T) {
	t.Parallel()

	for name, c := range commandTable(newMetrics(nil, nil)) {
		_, named := needs[c.name]
		require.True(t, named || c.need != watching, "%s is not in needs: only administrators could use it", name)
	}
}

func TestCredentialsAreNeverPrinted(t *testing.T) {
	t.Parallel()

	c, err := auth.Derive("a-password")
	require.NoError(t, err)
	u := &auth.User{Name: "x", Credentials: c}
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("user", "user", u, "credentials", c)
	fmt.Fprintf(&out, "%v %+v %#v %s", u, u, c, c)
	require.NotContains(t, out.String(), string(c.Salt))
	for _, key := range [][]byte{c.StoredKey, c.ServerKey, c.Salt} {
		require.NotContains(t, out.String(), fmt.Sprint(key))
		require.NotContains(t, out.String(), fmt.Sprintf("%x", key))
	}
	_, err = auth.Derive("short")
	require.Error(t, err)
	require.Error(t, auth.CheckName(""))
}
