// Package shard is the MongoDB adapter: it registers and checks replica sets,
// makes users and grants, fences and drains placements, writes markers, and
// creates, describes and drops what a placement consists of.
//
// # Contracts of the fence
//
// Grants are roles made for one attempt. They are created, granted and dropped,
// never edited, and a name is never used twice. So every step here may run late,
// or twice: a late drop finds nothing, a late grant meets RoleNotFound and is
// void ([Set.GrantToData] then fails with kind Lost). What is atomic on the
// server is one command on one name, and nothing here needs more.
//
// A server's ways are taken from [chunk.Capabilities], which [Set.Probe] found by
// trial. Nothing looks at a version, except that anything older than 6.0 is refused.
package shard

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// Set is one shard, a replica set, as Drover works on it.
type Set struct {
	shard   chunk.Shard
	clients *Clients
	first   *mongo.Client // the admin user's when the set was opened
}

// Name is the shard's name.
func (s *Set) Name() string { return s.shard.Name }

// Shard gives the registration the set was opened with.
func (s *Set) Shard() chunk.Shard { return s.shard }

// Client gives the shared client of one of Drover's users on this shard.
func (s *Set) Client(user string) (*mongo.Client, error) { return s.clients.Client(s.shard, user) }

// admin gives the admin user's client as it is now: a set is held for longer than the
// certificates it was opened with.
func (s *Set) admin() *mongo.Client {
	c, err := s.Client(chunk.AdminUser)
	if err != nil {
		return s.first
	}
	return c
}

// Renewed reports whether the files that the shard's address names for TLS were renewed since
// the set was opened: clients that were got since then may be of former ones, and end when nobody uses
// them for a while.
func (s *Set) Renewed() bool { return s.admin() != s.first }

// drover is Drover's own database, as the admin user.
func (s *Set) drover() *mongo.Database { return s.admin().Database(chunk.SystemDatabase) }

// adminRun runs a command on database admin of the primary.
func (s *Set) adminRun(ctx context.Context, cmd bson.D) (bson.Raw, error) {
	return run(ctx, s.admin(), "admin", cmd)
}

// wrap says which shard an error is about and turns what can be told from its
// code into a failure. An error that is a failure already keeps its code.
func (s *Set) wrap(err error, format string, args ...any) error {
	return wrapFor(s.shard.Name, err, format, args...)
}

// wrapFor is [Set.wrap] for a shard that is not open yet.
func wrapFor(name string, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf(format+" on shard %s: %w", append(args, name, err)...)
	switch {
	case isFailure(err):
		return err
	case mongocode.IsAuthenticationFailed(err):
		return failure.New(failure.Invalid, "shard.bad_credentials", "%w", err).
			WithHint("check user and password of shard %s; Drover's own users are made by `drover shard add`, from the fleet's secret", name)
	case mongocode.IsUnauthorized(err):
		return failure.New(failure.Invalid, "shard.unauthorized", "%w", err).
			WithHint("run `drover shard add` again for shard %s, with a user that may manage users: it repairs Drover's roles", name)
	case mongocode.IsNetwork(err):
		return failure.New(failure.Transient, "shard.unreachable", "%w", err).
			WithHint("check that shard %s runs, and that its address can be reached from here", name)
	default:
		return err
	}
}

// run runs one command and gives the whole reply.
func run(ctx context.Context, c *mongo.Client, db string, cmd bson.D) (bson.Raw, error) {
	return c.Database(db).RunCommand(ctx, cmd).Raw()
}

// majority is the write concern of every command that changes something here.
// The server gives up after 10 s; the caller's context usually ends before that.
func majority() bson.E {
	return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: 10_000}}}
}

// pollEvery is how often a condition on a server is looked at inside the fence window.
const pollEvery = time.Millisecond

// poll looks at done at once and then every [pollEvery] until it says true,
// fails, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// lookup gives a number at a path of a reply, whatever its numeric type; 0 when
// it is absent.
func lookup(r bson.Raw, path ...string) int64 {
	v, err := r.LookupErr(path...)
	if err != nil {
		return 0
	}
	n, _ := v.AsInt64OK()
	return n
}

// text gives a string at a path of a reply; empty when it is absent.
func text(r bson.Raw, path ...string) string {
	v, err := r.LookupErr(path...)
	if err != nil {
		return ""
	}
	s, _ := v.StringValueOK()
	return s
}

// operationTime gives a reply's operationTime.
func operationTime(r bson.Raw) bson.Timestamp {
	v, err := r.LookupErr("operationTime")
	if err != nil {
		return bson.Timestamp{}
	}
	t, i, _ := v.TimestampOK()
	return bson.Timestamp{T: t, I: i}
}
