package shard

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
)

// Principal is a user, not Drover's own and not root, that may write where Drover
// keeps data; or one of Drover's own with a role that is not Drover's.
type Principal struct {
	User  string   `json:"user"` // "name@database"
	Roles []string `json:"roles"`
	Why   string   `json:"why"`
}

// Root reports whether a user is an administrator of everything: the operator, and not
// a tool with a task of its own.
func (p Principal) Root() bool { return slices.Contains(p.Roles, "root@admin") }

// CheckPrincipals lists who besides root and Drover may write to placements, and to
// further databases that are named: those that were adopted, or are to be.
func (s *Set) CheckPrincipals(ctx context.Context, also ...string) ([]Principal, error) {
	ps, err := principals(ctx, s.admin(), also...)
	return ps, s.wrap(err, "read users")
}

// Beside is who else has a hand in a shard.
type Beside struct {
	Writers     []Principal // see [Set.CheckPrincipals]
	Controllers []Principal // users, not Drover's own, that may change the set's configuration
}

// WhoBeside lists who besides Drover may write to placements and to further databases,
// and who may change the set's configuration: a controller that does so on its own
// works against moves and repairs.
func (s *Set) WhoBeside(ctx context.Context, also ...string) (b Beside, err error) {
	all, err := everyUser(ctx, s.admin())
	if err != nil {
		return b, s.wrap(err, "read users")
	}
	return Beside{Writers: pick(all, func(u userInfo) string { return u.writes(also) }), Controllers: pick(all, userInfo.controls)}, nil
}

// writingRoles are MongoDB's built-in roles that allow writes to databases which
// are not named in them, or to become anybody. Those on one database count when
// that database is Drover's.
var writingRoles = []string{
	"readWriteAnyDatabase", "dbAdminAnyDatabase", "userAdminAnyDatabase", "restore", "clusterAdmin", "hostManager", "__system", "root",
	"readWrite", "dbAdmin", "dbOwner", "userAdmin",
}

// anywhereRoles are those of them that are not bound to the database they are granted on.
var anywhereRoles = writingRoles[:8]

// roleRef names a role the way the server does.
type roleRef struct {
	Role string `bson:"role"`
	DB   string `bson:"db"`
}

// userInfo is what usersInfo says of a user.
type userInfo struct {
	User       string    `bson:"user"`
	DB         string    `bson:"db"`
	Roles      []roleRef `bson:"roles"`
	Inherited  []roleRef `bson:"inheritedRoles"`
	Privileges []struct {
		Resource struct {
			DB  *string `bson:"db"`
			Any bool    `bson:"anyResource"`
		} `bson:"resource"`
		Actions []string `bson:"actions"`
	} `bson:"inheritedPrivileges"`
}

// principals looks for users that may write where Drover keeps data.
func principals(ctx context.Context, c *mongo.Client, also ...string) ([]Principal, error) {
	all, err := everyUser(ctx, c)
	return pick(all, func(u userInfo) string { return u.writes(also) }), err
}

// pick gives the users about which there is something to say.
func pick(all []userInfo, about func(userInfo) string) (found []Principal) {
	for _, u := range all {
		if why := about(u); why != "" {
			found = append(found, Principal{User: u.User + "@" + u.DB, Roles: roleList(u.Roles), Why: why})
		}
	}
	return found
}

// everyUser reads the users of the server with their privileges, which are shown only
// for users that are asked for one by one.
func everyUser(ctx context.Context, c *mongo.Client) (out []userInfo, _ error) {
	var all struct {
		Users []userInfo `bson:"users"`
	}
	r, err := run(ctx, c, "admin", bson.D{{Key: "usersInfo", Value: bson.D{{Key: "forAllDBs", Value: true}}}})
	if err != nil {
		return nil, err
	}
	if err := bson.Unmarshal(r, &all); err != nil {
		return nil, fmt.Errorf("read users: %w", err)
	}
	for _, u := range all.Users {
		r, err := run(ctx, c, "admin", bson.D{
			{Key: "usersInfo", Value: bson.D{{Key: "user", Value: u.User}, {Key: "db", Value: u.DB}}}, {Key: "showPrivileges", Value: true},
		})
		if err != nil {
			return nil, err
		}
		var one struct {
			Users []userInfo `bson:"users"`
		}
		if err := bson.Unmarshal(r, &one); err != nil {
			return nil, fmt.Errorf("read user %s: %w", u.User, err)
		}
		out = append(out, one.Users...)
	}
	return out, nil
}

// controllingRoles are MongoDB's built-in roles that may change a set's configuration.
var controllingRoles = []string{"clusterAdmin", "clusterManager", "root", "__system"}

// controls tells by what a user that is not Drover's may change the set's configuration.
func (u userInfo) controls() string {
	if u.ours() {
		return ""
	}
	for _, r := range append(slices.Clone(u.Roles), u.Inherited...) {
		if r.DB == "admin" && slices.Contains(controllingRoles, r.Role) {
			return "role " + r.Role
		}
	}
	for _, p := range u.Privileges {
		if slices.Contains(p.Actions, "replSetConfigure") {
			return "replSetConfigure"
		}
	}
	return ""
}

// ours reports whether a user is one that Drover makes.
func (u userInfo) ours() bool {
	return u.DB == "admin" && slices.ContainsFunc(accounts(), func(a account) bool { return a.user == u.User })
}

// writes tells by what a user may write where Drover keeps data, or to one of further
// databases; empty when it may not.
func (u userInfo) writes(also []string) string {
	counts := func(db string) bool { return oursDatabase(db) || slices.Contains(also, db) }
	if u.ours() {
		return u.foreignRole()
	}
	if slices.Contains(u.Roles, roleRef{"root", "admin"}) || slices.Contains(u.Roles, roleRef{"__system", "admin"}) {
		return "" // the operator
	}
	for _, r := range append(slices.Clone(u.Roles), u.Inherited...) {
		switch {
		case slices.Contains(anywhereRoles, r.Role) && r.DB == "admin":
			return "role " + r.Role
		case slices.Contains(writingRoles, r.Role) && counts(r.DB):
			return "role " + r.Role + "@" + r.DB
		}
	}
	for _, p := range u.Privileges {
		where := "every database"
		if p.Resource.DB != nil && *p.Resource.DB != "" {
			where = *p.Resource.DB
		}
		if !p.Resource.Any && (p.Resource.DB == nil || where != "every database" && !counts(where)) {
			continue
		}
		for _, a := range p.Actions {
			if slices.Contains(writeActions, a) {
				return a + " on " + where
			}
		}
	}
	return ""
}

// foreignRole names a role of one of Drover's users that Drover did not give it.
func (u userInfo) foreignRole() string {
	for _, r := range u.Roles {
		if r.DB == "admin" && (oursRole(r.Role)) {
			continue
		}
		return "role " + r.Role + "@" + r.DB + ", which Drover did not give"
	}
	return ""
}

// oursDatabase reports whether Drover keeps data in a database; admin counts, for
// who writes there may write everywhere.
func oursDatabase(db string) bool {
	_, placement := chunk.PlacementOf(db)
	return placement || db == chunk.SystemDatabase || db == "admin"
}

// oursRole reports whether a role's name is one that Drover makes.
func oursRole(role string) bool {
	if slices.ContainsFunc(accounts(), func(a account) bool { return a.role == role }) {
		return true
	}
	for _, prefix := range []string{"w_p", "r_p", "l_p", "a_p"} {
		if strings.HasPrefix(role, prefix) {
			return true
		}
	}
	return false
}

// roleList names roles for people.
func roleList(roles []roleRef) []string {
	names := make([]string, 0, len(roles))
	for _, r := range roles {
		names = append(names, r.Role+"@"+r.DB)
	}
	return names
}

// describe lists principals for people.
func describe(ps []Principal) string {
	names := make([]string, 0, len(ps))
	for _, p := range ps {
		names = append(names, p.User+" ("+p.Why+")")
	}
	return strings.Join(names, ", ")
}
