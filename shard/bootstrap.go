package shard

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// BootstrapOptions change what a registration insists on.
type BootstrapOptions struct {
	AllowOtherWriters bool // register although other users may write to the shard
}

// Bootstrap prepares a replica set for Drover with the credentials in uri, which
// are used once and never stored: it checks the server, makes Drover's users,
// roles and collections, and probes what the server can do. It gives the shard as
// it is to be registered. Running it again repairs what is missing.
//
// Errors, all before anything is changed: shard.bad_uri, shard.unreachable,
// shard.bad_credentials, shard.version_unsupported, shard.not_replica_set,
// shard.no_auth, shard.other_writers.
func Bootstrap(ctx context.Context, uri, name, secret string, o BootstrapOptions) (chunk.Shard, error) {
	s := chunk.Shard{Name: name}
	clean, err := StripCredentials(uri)
	if err != nil {
		return s, err
	}
	s.URI = clean
	cs, err := connstring.ParseAndValidate(uri)
	if err != nil {
		return s, failure.New(failure.Invalid, "shard.bad_uri", "address of shard %s: %w", name, err)
	}
	if cs.Username == "" {
		return s, failure.New(failure.Invalid, "shard.bad_credentials", "the address of shard %s names no user", name).
			WithHint("give a user that may manage users, once: mongodb://root:password@host:port/")
	}
	root, err := dial(s, options.Credential{
		AuthMechanism: cs.AuthMechanism, AuthSource: cs.AuthSource,
		Username: cs.Username, Password: cs.Password, PasswordSet: cs.PasswordSet,
	}, Options{AppName: "drover-register"})
	if err != nil {
		return s, err
	}
	defer func() { _ = root.Disconnect(context.WithoutCancel(ctx)) }() // nothing is left to lose

	b := bootstrap{shard: s, secret: secret, root: root}
	if err := b.check(ctx, o); err != nil {
		return s, err
	}
	if err := b.makeAccounts(ctx); err != nil {
		return s, err
	}
	if err := b.makeCollections(ctx); err != nil {
		return s, err
	}
	clients := NewClients(secret, Options{})
	set, err := clients.Set(s)
	if err != nil {
		return s, err
	}
	s.Capabilities, err = set.Probe(ctx)
	return s, errors.Join(err, clients.Close(context.WithoutCancel(ctx)))
}

// bootstrap is one registration.
type bootstrap struct {
	shard  chunk.Shard
	secret string
	root   *mongo.Client
}

// check refuses a server that Drover cannot work on.
func (b bootstrap) check(ctx context.Context, o BootstrapOptions) error {
	name := b.shard.Name
	h, err := readHello(ctx, b.root)
	if err != nil {
		return wrapFor(name, err, "reach the server")
	}
	if err := checkHello(name, h); err != nil {
		return err
	}
	info, err := run(ctx, b.root, "admin", bson.D{{Key: "buildInfo", Value: 1}})
	if err != nil {
		return wrapFor(name, err, "read the version")
	}
	if err := checkVersion(name, text(info, "version")); err != nil {
		return err
	}
	if err := checkAuth(ctx, b.shard); err != nil {
		return err
	}
	others, err := principals(ctx, b.root)
	if err != nil {
		return wrapFor(name, err, "read users")
	}
	if len(others) > 0 && !o.AllowOtherWriters {
		return failure.New(failure.Invalid, "shard.other_writers", "%d other users may write to shard %s: %s", len(others), name, describe(others)).
			WithHint("a write that does not come through Drover's proxy is not fenced and may be lost by a move; remove their write roles, or allow them knowingly with --allow-other-writers")
	}
	return nil
}

// checkHello refuses what is no member of a replica set.
func checkHello(name string, h hello) error {
	switch {
	case h.Msg == "isdbgrid":
		return failure.New(failure.Invalid, "shard.not_replica_set", "shard %s is a mongos", name).
			WithHint("register the replica sets themselves")
	case h.SetName == "":
		return failure.New(failure.Invalid, "shard.not_replica_set", "shard %s is a standalone server", name).
			WithHint("start it with --replSet and run rs.initiate(); a set of one member will do")
	default:
		return nil
	}
}

// checkVersion refuses servers older than 6.0.
func checkVersion(name, version string) error {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	if err != nil || n < 6 {
		return failure.New(failure.Invalid, "shard.version_unsupported", "shard %s runs MongoDB %q", name, version).
			WithHint("Drover needs MongoDB 6.0 or newer")
	}
	return nil
}

// checkAuth refuses a server that lets strangers in: there, no grant means anything.
func checkAuth(ctx context.Context, s chunk.Shard) error {
	stranger, err := dial(s, options.Credential{}, Options{AppName: "drover-register"})
	if err != nil {
		return err
	}
	defer func() { _ = stranger.Disconnect(context.WithoutCancel(ctx)) }() // nothing is left to lose
	_, err = run(ctx, stranger, "admin", bson.D{{Key: "usersInfo", Value: 1}})
	switch {
	case err == nil:
		return failure.New(failure.Invalid, "shard.no_auth", "shard %s answers without a login", s.Name).
			WithHint("start its members with a key file and --auth: the fence is made of privileges")
	case mongocode.IsUnauthorized(err):
		return nil
	default:
		return wrapFor(s.Name, err, "see that a login is asked for")
	}
}

// makeAccounts makes Drover's roles and users, or repairs them. Grants that the
// users hold besides are left alone.
func (b bootstrap) makeAccounts(ctx context.Context) error {
	for _, a := range accounts() {
		if err := b.makeRole(ctx, a); err != nil {
			return wrapFor(b.shard.Name, err, "make role %s", a.role)
		}
		if err := b.makeUser(ctx, a); err != nil {
			return wrapFor(b.shard.Name, err, "make user %s", a.user)
		}
	}
	return nil
}

// makeRole creates an account's base role, or sets its privileges.
func (b bootstrap) makeRole(ctx context.Context, a account) error {
	ps := a.privileges
	if ps == nil {
		ps = []privilege{}
	}
	rest := bson.D{{Key: "privileges", Value: ps}, {Key: "roles", Value: bson.A{}}, majority()}
	_, err := run(ctx, b.root, "admin", append(bson.D{{Key: "createRole", Value: a.role}}, rest...))
	if mongocode.IsRoleExists(err) {
		_, err = run(ctx, b.root, "admin", append(bson.D{{Key: "updateRole", Value: a.role}}, rest...))
	}
	return err
}

// makeUser creates an account's user, or gives it the password and the base role.
func (b bootstrap) makeUser(ctx context.Context, a account) error {
	pwd := Password(b.secret, b.shard.Name, a.user)
	_, err := run(ctx, b.root, "admin", bson.D{
		{Key: "createUser", Value: a.user},
		{Key: "pwd", Value: pwd},
		{Key: "roles", Value: []string{a.role}},
		{Key: "mechanisms", Value: []string{"SCRAM-SHA-256"}},
		majority(),
	})
	if !mongocode.IsUserExists(err) {
		return err
	}
	if c, err := Connect(ctx, b.shard, a.user, b.secret, Options{AppName: "drover-register"}); err == nil {
		_ = c.Disconnect(context.WithoutCancel(ctx)) // the password is right, there is nothing to change
	} else if _, err := run(ctx, b.root, "admin", bson.D{
		{Key: "updateUser", Value: a.user}, {Key: "pwd", Value: pwd}, {Key: "mechanisms", Value: []string{"SCRAM-SHA-256"}}, majority(),
	}); err != nil {
		return err
	}
	_, err = run(ctx, b.root, "admin", bson.D{{Key: "grantRolesToUser", Value: a.user}, {Key: "roles", Value: []string{a.role}}, majority()})
	return err
}

// makeCollections makes the collections and indexes of Drover's own database. They
// exist before anything happens, so that no transaction has to create one.
func (b bootstrap) makeCollections(ctx context.Context) error {
	admin, err := Connect(ctx, b.shard, chunk.AdminUser, b.secret, Options{AppName: "drover-register"})
	if err != nil {
		return err
	}
	defer func() { _ = admin.Disconnect(context.WithoutCancel(ctx)) }() // nothing is left to lose

	byMigration := []string{chunk.CheckpointsCollection, chunk.ParkedCollection}
	for _, c := range append([]string{chunk.MarkersCollection, chunk.FencesCollection}, byMigration...) {
		_, err := run(ctx, admin, chunk.SystemDatabase, bson.D{{Key: "create", Value: c}, majority()})
		if err != nil && !mongocode.IsNamespaceExists(err) {
			return wrapFor(b.shard.Name, err, "create %s.%s", chunk.SystemDatabase, c)
		}
	}
	for _, c := range byMigration {
		_, err := admin.Database(chunk.SystemDatabase).Collection(c).Indexes().CreateOne(ctx,
			mongo.IndexModel{Keys: bson.D{{Key: "migration", Value: 1}}, Options: options.Index().SetName("migration_1")})
		if err != nil {
			return wrapFor(b.shard.Name, err, "index %s.%s", chunk.SystemDatabase, c)
		}
	}
	return nil
}

// Unregister removes Drover's users, roles and database from a shard that holds
// no placement any more, with the credentials of an administrator.
func Unregister(ctx context.Context, uri, name string) error {
	s := chunk.Shard{Name: name}
	clean, err := StripCredentials(uri)
	if err != nil {
		return err
	}
	s.URI = clean
	cs, err := connstring.ParseAndValidate(uri)
	if err != nil {
		return failure.New(failure.Invalid, "shard.bad_uri", "address of shard %s: %w", name, err)
	}
	root, err := dial(s, options.Credential{AuthSource: cs.AuthSource, Username: cs.Username, Password: cs.Password}, Options{AppName: "drover-register"})
	if err != nil {
		return err
	}
	defer func() { _ = root.Disconnect(context.WithoutCancel(ctx)) }() // nothing is left to lose

	dbs, err := root.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return wrapFor(name, err, "list databases")
	}
	for _, db := range dbs {
		if _, ok := chunk.PlacementOf(db); ok {
			return failure.New(failure.Invalid, "shard.not_empty", "shard %s still holds %s", name, db).
				WithHint("move its chunks away first")
		}
	}
	r, err := remnants(ctx, root)
	if err != nil {
		return wrapFor(name, err, "list what Drover has there")
	}
	for _, user := range r.Users {
		if _, err := run(ctx, root, "admin", bson.D{{Key: "dropUser", Value: user}, majority()}); err != nil && !mongocode.IsUserNotFound(err) {
			return wrapFor(name, err, "drop user %s", user)
		}
	}
	for _, role := range r.Roles {
		if _, err := run(ctx, root, "admin", bson.D{{Key: "dropRole", Value: role}, majority()}); err != nil && !mongocode.IsRoleNotFound(err) {
			return wrapFor(name, err, "drop role %s", role)
		}
	}
	if _, err := run(ctx, root, chunk.SystemDatabase, bson.D{{Key: "dropDatabase", Value: 1}, majority()}); err != nil {
		return wrapFor(name, fmt.Errorf("drop database %s: %w", chunk.SystemDatabase, err), "unregister")
	}
	return nil
}

// grantRole is the name of a role for a placement.
var grantRole = regexp.MustCompile(`^[wrla]_p\d+_`)
