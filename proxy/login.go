package proxy

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/auth"
	"drover/proxy/wire"
)

// Behaviour: SCRAM-SHA-256 against database admin, with saslStart and
// saslContinue or inside hello (speculativeAuthenticate); logout; users and
// their grants follow the metadata within controlPause, also on connections that
// have logged in: a user that is gone may do nothing any more. Every command
// needs an action on its database, see needs; one that is not listed there
// needs admin. What is refused is refused before a shard is asked.
//
// Not supported: SCRAM-SHA-1, MONGODB-X509 and other mechanisms; users of other
// databases; the user commands (createUser and so on): users are made with
// drover user; more than one user on a connection.

// need is what a command asks of a user.
type need uint8

// The needs of commands.
const (
	nothing  need = iota // anybody
	anyUser              // whoever has logged in
	reading              // auth.Read on the database
	writing              // auth.Write
	both                 // auth.Read and auth.Write
	shaping              // auth.DDL
	watching             // auth.Admin on any database
)

// needs tells what each command asks for. A command that is missing here needs
// watching.
var needs = map[string]need{
	"hello": nothing, "ping": nothing, "buildInfo": nothing, "connectionStatus": nothing, "whatsmyuri": nothing,
	"saslStart": nothing, "saslContinue": nothing, "logout": nothing,

	"getParameter": anyUser, "getCmdLineOpts": anyUser, "getLog": anyUser, "hostInfo": anyUser, "listDatabases": anyUser,
	"atlasVersion": anyUser, "getFreeMonitoringStatus": anyUser, "features": anyUser, "isdbgrid": anyUser, "listCommands": anyUser,
	"endSessions": anyUser, "refreshSessions": anyUser, "startSession": anyUser, "killSessions": anyUser,
	"commitTransaction": anyUser, "abortTransaction": anyUser, "getLastError": anyUser,

	"find": reading, "getMore": reading, "killCursors": reading, "count": reading, "distinct": reading, "aggregate": reading,
	"explain": reading, "listCollections": reading, "listIndexes": reading, "dbStats": reading, "collStats": reading,
	"insert": writing, "update": writing, "delete": writing, "bulkWrite": both, "findAndModify": both,
	"create": shaping, "drop": shaping, "dropDatabase": shaping, "createIndexes": shaping, "dropIndexes": shaping,
	"collMod": shaping, "renameCollection": shaping, "shardCollection": shaping,

	"serverStatus": watching, "currentOp": watching, "killOp": watching, "top": watching,

	// Refused whoever asks.
	"mapReduce": anyUser, "replSetGetStatus": anyUser, "convertToCapped": anyUser, "cloneCollectionAsCapped": anyUser,

	// Answered by "no such command", which tells nothing.
	unknownCommand: anyUser,
}

// needOf gives a command's need.
func needOf(name string) need {
	if n, ok := needs[name]; ok {
		return n
	}
	return watching
}

// allows reports whether u may do what a command on a database asks for.
func (n need) allows(u *auth.User, database string) bool {
	switch n {
	case nothing, anyUser:
		return true
	case reading:
		return u.May(auth.Read, database)
	case writing:
		return u.May(auth.Write, database)
	case both:
		return u.May(auth.Read, database) && u.May(auth.Write, database)
	case shaping:
		return u.May(auth.DDL, database)
	default:
		return slices.ContainsFunc(u.Grants, func(g auth.Grant) bool { return slices.Contains(g.Actions, auth.Admin) })
	}
}

// permit refuses a command that the client's user may not run.
func (p *Proxy) permit(q *request, c *command) error {
	if p.book == nil || c.need == nothing {
		return nil
	}
	var u *auth.User
	if q.client.user != "" {
		u = p.book.Find(q.client.user)
	}
	if u == nil {
		p.metrics.refused("unauthenticated")
		return refuse(codeUnauthorized, "Command %s requires authentication", c.name)
	}
	database := string(q.cmd.DB)
	if c.name == "shardCollection" { // it is sent to admin and names a namespace
		database, _, _ = strings.Cut(string(q.cmd.Collection()), ".")
	}
	if !c.need.allows(u, database) {
		p.metrics.refused("unauthorized")
		return refuse(codeUnauthorized, "not authorized on %s to execute command %s", database, c.name)
	}
	return nil
}

// visible keeps the databases that the client's user may know of.
func (q *request) visible(names []string) []string {
	book := q.client.p.book
	if book == nil {
		return names
	}
	u := book.Find(q.client.user)
	return slices.DeleteFunc(names, func(name string) bool { return u == nil || !u.Knows(name) })
}

// longestApp is the longest application name, as MongoDB has it.
const longestApp = 128

// introduce takes over what a client's hello says about it.
func (c *client) introduce(q *request) {
	if c.app != "" {
		return
	}
	application, _ := wire.Find(q.option("client").Document(), "application")
	name, _ := wire.Find(application.Document(), "name")
	if text := name.Text(); len(text) <= longestApp {
		c.app = strings.ToValidUTF8(string(text), "?")
	}
}

// errLogin is what every failed login is told, whatever was wrong.
func errLogin() *refusal { return refuse(codeAuthFailed, "Authentication failed.") }

// refuseLogin ends a login: the log says why, the client is not told.
func (p *Proxy) refuseLogin(ctx context.Context, q *request, why string) *refusal {
	name := ""
	if q.client.login != nil {
		name = q.client.login.Name()
	}
	q.client.login = nil
	p.metrics.refused("authentication")
	p.log.WarnContext(ctx, "login was refused", "client", q.client.nc.RemoteAddr().String(), "user", name, "reason", why)
	return errLogin()
}

// saslStart begins a login.
func saslStart(ctx context.Context, p *Proxy, q *request) error {
	return p.loginStep(ctx, q, q.cmd.Body, string(q.cmd.DB), true)
}

// saslContinue goes on with one.
func saslContinue(ctx context.Context, p *Proxy, q *request) error {
	return p.loginStep(ctx, q, q.cmd.Body, string(q.cmd.DB), false)
}

// loginStep answers one step.
func (p *Proxy) loginStep(ctx context.Context, q *request, body bson.Raw, db string, first bool) error {
	answer, done, err := p.stepLogin(ctx, q, body, db, first)
	if err != nil {
		return err
	}
	q.build(func(dst []byte) []byte { return appendLoginStep(dst, answer, done) })
	return nil
}

// appendLoginStep appends the elements of a step's answer.
func appendLoginStep(dst, answer []byte, done bool) []byte {
	dst = bsoncore.AppendInt32Element(dst, "conversationId", 1)
	dst = bsoncore.AppendBooleanElement(dst, "done", done)
	return bsoncore.AppendBinaryElement(dst, "payload", 0, answer)
}

// unknownUserPause bounds how often unknown names make the proxy read the users.
const unknownUserPause = time.Second

// stepLogin does one step of a login.
func (p *Proxy) stepLogin(ctx context.Context, q *request, body bson.Raw, db string, first bool) ([]byte, bool, error) {
	c := q.client
	if p.book == nil {
		return nil, false, p.refuseLogin(ctx, q, "this proxy checks no credentials")
	}
	payload, _ := wire.Find(body, "payload")
	if first {
		mechanism, _ := wire.Find(body, "mechanism")
		if name := string(mechanism.Text()); name != auth.Mechanism {
			return nil, false, refuse(codeMechanism, "Unsupported mechanism '%s': use %s", name, auth.Mechanism)
		}
		if db != "admin" {
			return nil, false, p.refuseLogin(ctx, q, "users are of database admin: set authSource=admin")
		}
		login, err := p.book.Begin(skipsEmpty(body))
		if err != nil {
			return nil, false, err //nolint:wrapcheck // goes to the log
		}
		c.login, c.user = login, ""
	} else if c.login == nil {
		return nil, false, refuse(codeProtocol, "No SASL session state found")
	}
	answer, done, err := c.login.Step(payload.Binary())
	if auth.Unknown(err) && p.refreshUsers(ctx) {
		if c.login, err = p.book.Begin(skipsEmpty(body)); err == nil {
			answer, done, err = c.login.Step(payload.Binary())
		}
	}
	if err != nil {
		return nil, false, p.refuseLogin(ctx, q, err.Error())
	}
	if done {
		c.user, c.login = c.login.Name(), nil
	}
	return answer, done, nil
}

// skipsEmpty reports whether a client wants no empty exchange at the end.
func skipsEmpty(body bson.Raw) bool {
	options, _ := wire.Find(body, "options")
	skip, _ := wire.Find(options.Document(), "skipEmptyExchange")
	return skip.Type != 0 && skip.Truth()
}

// refreshUsers reads the users because one is unknown, and reports whether that
// worked.
func (p *Proxy) refreshUsers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.MetadataTimeout, errMetadataTimeout)
	defer cancel()
	return p.book.Refresh(ctx, p.ports.Users, unknownUserPause) == nil
}

// appendSpeculative answers a login that hello carries, and names the mechanism
// to clients that ask for it. A login that fails is left out: the client tries
// again in the long way and is told there.
func (p *Proxy) appendSpeculative(ctx context.Context, dst []byte, q *request) []byte {
	if p.book == nil {
		return dst
	}
	if q.option("saslSupportedMechs").Type == bson.TypeString {
		at, list := bsoncore.AppendArrayElementStart(dst, "saslSupportedMechs")
		list = bsoncore.AppendStringElement(list, "0", auth.Mechanism)
		dst, _ = bsoncore.AppendArrayEnd(list, at)
	}
	start := q.option("speculativeAuthenticate")
	if start.Type != bson.TypeEmbeddedDocument {
		return dst
	}
	db, _ := wire.Find(start.Document(), "db")
	if _, sasl := wire.Find(start.Document(), "saslStart"); !sasl {
		return dst
	}
	answer, done, err := p.stepLogin(ctx, q, start.Document(), string(db.Text()), true)
	if err != nil {
		return dst
	}
	at, doc := bsoncore.AppendDocumentElementStart(dst, "speculativeAuthenticate")
	doc = appendLoginStep(doc, answer, done)
	doc, _ = bsoncore.AppendDocumentEnd(doc, at)
	return doc
}

// logout forgets who the client is.
func logout(_ context.Context, _ *Proxy, q *request) error {
	q.client.user, q.client.login = "", nil
	q.build(func(dst []byte) []byte { return dst })
	return nil
}
