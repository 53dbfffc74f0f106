package shardsim

import (
	"errors"
	"slices"

	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Where users and roles are kept.
const (
	usersNS = "admin.system.users"
	rolesNS = "admin.system.roles"
)

// account is a user's document.
type account struct {
	ID        string    `bson:"_id"`
	User      string    `bson:"user"`
	DB        string    `bson:"db"`
	Roles     []roleRef `bson:"roles"`
	Salt      string    `bson:"salt"`
	StoredKey []byte    `bson:"storedKey"`
	ServerKey []byte    `bson:"serverKey"`
}

// roleRef names a role.
type roleRef struct {
	Role string `bson:"role"`
	DB   string `bson:"db"`
}

// roleDoc is a role's document.
type roleDoc struct {
	ID         string      `bson:"_id"`
	Role       string      `bson:"role"`
	DB         string      `bson:"db"`
	Privileges []privilege `bson:"privileges"`
	Roles      []roleRef   `bson:"roles"`
}

// privilege is what a role allows on a resource.
type privilege struct {
	Resource resource `bson:"resource"`
	Actions  []string `bson:"actions"`
}

// resource is what a privilege is about.
type resource struct {
	DB         *string `bson:"db,omitempty"`
	Collection *string `bson:"collection,omitempty"`
	Cluster    bool    `bson:"cluster,omitempty"`
	Any        bool    `bson:"anyResource,omitempty"`
}

// iterations is the least that drivers take.
const iterations = 4096

// newAccount makes a user with a password.
func newAccount(name, password string, roles []roleRef) account {
	client, err := scram.SHA256.NewClientUnprepped(name, password, "")
	if err != nil {
		panic("shardsim: " + err.Error()) // it takes any text
	}
	const salt = "a salt of the simulator"
	keys := client.GetStoredCredentials(scram.KeyFactors{Salt: salt, Iters: iterations})
	return account{ID: "admin." + name, User: name, DB: "admin", Roles: roles, Salt: salt, StoredKey: keys.StoredKey, ServerKey: keys.ServerKey}
}

// rootUser makes the first user.
func rootUser() []change {
	return []change{put(usersNS, mustMarshal(newAccount("root", "root", []roleRef{{Role: "root", DB: "admin"}})))}
}

// AddUser makes a user with privileges of its own, by one role that is named like it.
// Each privilege is a document as createRole takes it.
func (s *Set) AddUser(name, password string, privileges ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	role := mustMarshal(bson.D{{Key: "_id", Value: "admin.base_" + name}, {Key: "role", Value: "base_" + name}, {Key: "db", Value: "admin"}, {Key: "privileges", Value: privileges}, {Key: "roles", Value: bson.A{}}})
	s.head().write([]change{put(rolesNS, role), put(usersNS, mustMarshal(newAccount(name, password, []roleRef{{Role: "base_" + name, DB: "admin"}})))})
}

// put is the change that stores a document.
func put(ns string, doc bson.Raw) change {
	return change{ns: ns, key: idKey(doc.Lookup("_id")), doc: doc}
}

// account gives a user as the node has it.
func (n *node) account(user string) (a account, found bool) {
	raw, found := n.data.byNS[usersNS][stringKey("admin."+user)]
	return a, found && bson.Unmarshal(raw, &a) == nil
}

// role gives a role as the node has it.
func (n *node) roleDoc(name string) (r roleDoc, found bool) {
	raw, found := n.data.byNS[rolesNS][stringKey("admin."+name)]
	return r, found && bson.Unmarshal(raw, &r) == nil
}

// privileges are what a node believes that a user may do: from its cache where it
// has it.
func (n *node) privileges(user string) []privilege {
	if cached, found := n.caches[user]; found {
		return cached
	}
	var all []privilege
	a, _ := n.account(user)
	for _, ref := range a.Roles {
		if ref.Role == "root" {
			all = append(all, privilege{Resource: resource{Any: true}, Actions: []string{"anyAction"}})
			continue
		}
		if r, found := n.roleDoc(ref.Role); found {
			all = append(all, r.Privileges...)
		}
	}
	n.caches[user] = all
	return all
}

// allows reports whether one of the privileges covers an action on a database and
// collection, or on the cluster where db is empty.
func allows(all []privilege, action, db, collection string) bool {
	return slices.ContainsFunc(all, func(p privilege) bool {
		if !slices.Contains(p.Actions, action) && !slices.Contains(p.Actions, "anyAction") {
			return false
		}
		r := p.Resource
		switch {
		case r.Any:
			return true
		case db == "":
			return r.Cluster
		case r.DB == nil || r.Collection == nil:
			return false
		default:
			return (*r.DB == "" || *r.DB == db) && (*r.Collection == "" || *r.Collection == collection)
		}
	})
}

// free are the commands that anybody who can connect, or has logged in, may use.
var free = []string{"hello", "isMaster", "ismaster", "saslStart", "saslContinue", "buildInfo", "ping"}

// loggedIn are the commands that need a login and no privilege. Committing needs
// none: an open transaction can commit after its user lost everything.
var loggedIn = []string{"connectionStatus", "endSessions", "killCursors", "commitTransaction", "abortTransaction"}

// clusterActions are the actions of commands on the whole set.
var clusterActions = map[string]string{
	"replSetGetStatus": "replSetGetStatus", "replSetGetConfig": "replSetGetConfig", "replSetReconfig": "replSetConfigure",
	"replSetStepDown": "replSetStateChange", "replSetFreeze": "replSetStateChange", "replSetSyncFrom": "replSetStateChange",
	"replSetResizeOplog": "replSetResizeOplog", "invalidateUserCache": "invalidateUserCache",
	"serverStatus": "serverStatus", "hostInfo": "hostInfo",
	"killOp": "killop", "killSessions": "killAnySession", "killAllSessionsByPattern": "killAnySession",
}

// dataActions are the actions of commands on a collection of their database.
var dataActions = map[string]string{
	"find": "find", "aggregate": "find", "collStats": "collStats", "insert": "insert", "update": "update", "delete": "remove", "create": "createCollection",
	"createUser": "createUser", "createRole": "createRole", "dropRole": "dropRole", "grantRolesToUser": "grantRole", "usersInfo": "viewUser", "rolesInfo": "viewRole",
}

// authorize refuses a command that the user may not use, by what the node believes.
func (c *conn) authorize(call Call) bson.D {
	if slices.Contains(free, call.Command) {
		return nil
	}
	refused := failed(codeUnauthorized, "not authorized on "+call.DB+" to execute command "+call.Command)
	if c.user == "" {
		return failed(codeUnauthorized, "Command "+call.Command+" requires authentication")
	}
	all := c.node.privileges(c.user)
	first, _ := call.Body.Index(0).Value().StringValueOK()
	switch action, cluster := clusterActions[call.Command]; {
	case slices.Contains(loggedIn, call.Command):
		return nil
	case cluster && !allows(all, action, "", ""):
		return refused
	case cluster:
		return nil
	case call.Command == "aggregate" && first == "" && !allows(all, "inprog", "", ""):
		return refused
	case call.Command == "aggregate" && first == "":
		return nil
	}
	action, known := dataActions[call.Command]
	if known && !allows(all, action, call.DB, first) {
		return refused
	}
	return nil
}

// sasl logs a user in by SCRAM-SHA-256. An arbiter has no users.
func (c *conn) sasl(call Call) bson.D {
	_, payload, _ := call.Body.Lookup("payload").BinaryOK()
	if call.Command == "saslStart" {
		server, err := scram.SHA256.NewServer(func(user string) (scram.StoredCredentials, error) {
			a, found := c.node.account(user)
			if !found {
				return scram.StoredCredentials{}, errors.New("no such user")
			}
			c.pending = user
			return scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: a.Salt, Iters: iterations}, StoredKey: a.StoredKey, ServerKey: a.ServerKey}, nil
		})
		if err != nil {
			return failed(codeAuthFailed, "Authentication failed.")
		}
		c.conversation = server.NewConversation()
	}
	if c.conversation == nil {
		return failed(codeAuthFailed, "No SASL session state found")
	}
	out, err := c.conversation.Step(string(payload))
	if err != nil {
		return failed(codeAuthFailed, "Authentication failed.")
	}
	if c.conversation.Valid() {
		c.user = c.pending
	}
	return append(bson.D{
		{Key: "conversationId", Value: 1}, {Key: "done", Value: c.conversation.Done()}, {Key: "payload", Value: bson.Binary{Data: []byte(out)}},
	}, ok()...)
}

// connectionStatus tells who is logged in and what they may do.
func (c *conn) connectionStatus(call Call) bson.D {
	users := bson.A{}
	if c.user != "" {
		users = append(users, bson.D{{Key: "user", Value: c.user}, {Key: "db", Value: "admin"}})
	}
	info := bson.D{{Key: "authenticatedUsers", Value: users}}
	if show, _ := call.Body.Lookup("showPrivileges").BooleanOK(); show {
		list := c.node.privileges(c.user)
		if list == nil {
			list = []privilege{}
		}
		info = append(info, bson.E{Key: "authenticatedUserPrivileges", Value: list})
	}
	return append(bson.D{{Key: "authInfo", Value: info}}, ok()...)
}

// invalidate empties the cache of users.
func (c *conn) invalidate(Call) bson.D {
	n := c.node
	n.caches, n.sticky = map[string][]privilege{}, false
	n.emptied++
	return ok()
}

// createUser makes a user.
func (c *conn) createUser(call Call) bson.D {
	var q struct {
		Name     string    `bson:"createUser"`
		Password string    `bson:"pwd"`
		Roles    []roleRef `bson:"roles"`
	}
	if err := bson.Unmarshal(call.Body, &q); err != nil {
		return failed(codeBadValue, err.Error())
	}
	if _, found := c.node.account(q.Name); found {
		return failed(codeUserExists, "User \""+q.Name+"@admin\" already exists")
	}
	return c.store(call, []change{put(usersNS, mustMarshal(newAccount(q.Name, q.Password, q.Roles)))})
}

// createRole makes a role.
func (c *conn) createRole(call Call) bson.D {
	var r struct {
		Name       string      `bson:"createRole"`
		Privileges []privilege `bson:"privileges"`
	}
	if err := bson.Unmarshal(call.Body, &r); err != nil {
		return failed(codeBadValue, err.Error())
	}
	if _, found := c.node.roleDoc(r.Name); found {
		return failed(codeRoleExists, "Role \""+r.Name+"@admin\" already exists")
	}
	return c.store(call, []change{put(rolesNS, mustMarshal(roleDoc{ID: "admin." + r.Name, Role: r.Name, DB: "admin", Privileges: r.Privileges, Roles: []roleRef{}}))})
}

// dropRole drops a role, from those who hold it too.
func (c *conn) dropRole(call Call) bson.D {
	name, _ := call.Body.Lookup("dropRole").StringValueOK()
	if _, found := c.node.roleDoc(name); !found {
		return failed(codeRoleNotFound, "Role '"+name+"@admin' not found")
	}
	changes := []change{{ns: rolesNS, key: stringKey("admin." + name)}}
	for _, raw := range c.node.data.list(usersNS) {
		var a account
		if err := bson.Unmarshal(raw, &a); err != nil {
			return failed(codeBadValue, err.Error())
		}
		left := slices.DeleteFunc(slices.Clone(a.Roles), func(r roleRef) bool { return r.Role == name })
		if len(left) != len(a.Roles) {
			a.Roles = left
			changes = append(changes, put(usersNS, mustMarshal(a)))
		}
	}
	return c.store(call, changes)
}

// grantRoles gives roles to a user.
func (c *conn) grantRoles(call Call) bson.D {
	var q struct {
		Name  string          `bson:"grantRolesToUser"`
		Roles []bson.RawValue `bson:"roles"`
	}
	if err := bson.Unmarshal(call.Body, &q); err != nil {
		return failed(codeBadValue, err.Error())
	}
	a, found := c.node.account(q.Name)
	if !found {
		return failed(codeUserNotFound, "Could not find user \""+q.Name+"\"")
	}
	for _, v := range q.Roles {
		name, isText := v.StringValueOK()
		if !isText {
			name, _ = v.Document().Lookup("role").StringValueOK()
		}
		if _, known := c.node.roleDoc(name); !known {
			return failed(codeRoleNotFound, "Could not find role: "+name+"@admin")
		}
		if ref := (roleRef{Role: name, DB: "admin"}); !slices.Contains(a.Roles, ref) {
			a.Roles = append(a.Roles, ref)
		}
	}
	return c.store(call, []change{put(usersNS, mustMarshal(a))})
}

// usersInfo lists one user's roles, or all users.
func (c *conn) usersInfo(call Call) bson.D {
	name, isText := call.Body.Lookup("usersInfo").StringValueOK()
	if d, isDoc := call.Body.Lookup("usersInfo").DocumentOK(); isDoc {
		name, isText = d.Lookup("user").StringValueOK()
	}
	users := bson.A{}
	for _, raw := range c.node.data.list(usersNS) {
		var a account
		if err := bson.Unmarshal(raw, &a); err == nil && (!isText || a.User == name) {
			users = append(users, bson.D{{Key: "_id", Value: a.ID}, {Key: "user", Value: a.User}, {Key: "db", Value: a.DB}, {Key: "roles", Value: a.Roles}})
		}
	}
	return append(bson.D{{Key: "users", Value: users}}, ok()...)
}

// rolesInfo lists the roles that are not built in; given a list of some, these.
func (c *conn) rolesInfo(call Call) bson.D {
	var q struct {
		Some []roleRef `bson:"rolesInfo"`
	}
	listed := bson.Unmarshal(call.Body, &q) == nil
	roles := bson.A{}
	for _, raw := range c.node.data.list(rolesNS) {
		name, _ := raw.Lookup("role").StringValueOK()
		if !listed || slices.Contains(q.Some, roleRef{Role: name, DB: "admin"}) {
			roles = append(roles, raw)
		}
	}
	return append(bson.D{{Key: "roles", Value: roles}}, ok()...)
}
