package shard

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/renewed"
)

// Password gives the password of one of Drover's users on one shard.
func Password(secret, shard, user string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(shard + ":" + user))
	return hex.EncodeToString(mac.Sum(nil))
}

// Options of a client. The zero value is what most callers want.
type Options struct {
	AppName          string             // seen in the server's log and in $currentOp; "drover"
	Host             string             // connect to this member only, host:port
	SelectionTimeout time.Duration      // until a suitable member is found; 5 s
	ConnectTimeout   time.Duration      // of one connection, handshake included; 5 s
	Timeout          time.Duration      // of one operation whose context has no deadline; 0 is none
	MaxPool          uint64             // connections for each member; 100
	MinPool          uint64             // connections that are kept open; 0
	ReadPreference   *readpref.ReadPref // primary
	NoRetryWrites    bool               // send no transaction numbers with single writes
	OnSilence        func(err error)    // called at each hello that fails; nil: nothing
	Commands         *event.CommandMonitor

	pool *event.PoolMonitor
}

// Connect opens a client for one of Drover's users and sees that it can talk to
// the shard. Errors: shard.unreachable, shard.bad_credentials.
func Connect(ctx context.Context, s chunk.Shard, user, secret string, o Options) (*mongo.Client, error) {
	c, err := dial(s, credential(s, user, secret), o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.selectionTimeout()+o.connectTimeout())
	defer cancel()
	if err := c.Ping(ctx, o.ReadPreference); err != nil {
		return nil, errors.Join(wrapFor(s.Name, err, "connect as %s", user), c.Disconnect(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// dial makes a client without talking to the server.
func dial(s chunk.Shard, cred options.Credential, o Options) (*mongo.Client, error) {
	co := options.Client().ApplyURI(s.URI)
	if err := co.Validate(); err != nil {
		return nil, failure.New(failure.Invalid, "shard.bad_uri", "address of shard %s: %w", s.Name, err).
			WithHint("an address has the form mongodb://host:port,host:port/?replicaSet=name")
	}
	if cred.Username != "" {
		co.SetAuth(cred)
	} else {
		co.Auth = nil
	}
	if o.Host != "" {
		co.SetHosts([]string{o.Host}).SetDirect(true)
		co.ReplicaSet, co.SRVMaxHosts = nil, nil
	}
	name := o.AppName
	if name == "" {
		name = "drover"
	}
	co.SetAppName(name).
		SetHeartbeatInterval(2 * time.Second).
		SetWriteConcern(writeconcern.Majority()).
		SetReadPreference(readpref.Primary()).
		SetRetryWrites(!o.NoRetryWrites)
	if o.SelectionTimeout > 0 || co.ServerSelectionTimeout == nil { // the address may state its own
		co.SetServerSelectionTimeout(o.selectionTimeout())
	}
	if o.ConnectTimeout > 0 || co.ConnectTimeout == nil {
		co.SetConnectTimeout(o.connectTimeout())
	}
	if o.ReadPreference != nil {
		co.SetReadPreference(o.ReadPreference)
	}
	if o.Timeout > 0 {
		co.SetTimeout(o.Timeout)
	}
	if o.MaxPool > 0 {
		co.SetMaxPoolSize(o.MaxPool)
	}
	if o.MinPool > 0 {
		co.SetMinPoolSize(o.MinPool)
	}
	if o.OnSilence != nil {
		co.SetServerMonitor(&event.ServerMonitor{ServerHeartbeatFailed: func(e *event.ServerHeartbeatFailedEvent) { o.OnSilence(e.Failure) }})
	}
	if o.Commands != nil {
		co.SetMonitor(o.Commands)
	}
	if o.pool != nil {
		co.SetPoolMonitor(o.pool)
	}
	c, err := mongo.Connect(co)
	if err != nil {
		return nil, failure.New(failure.Invalid, "shard.bad_uri", "address of shard %s: %w", s.Name, err)
	}
	return c, nil
}

// selectionTimeout fills in the default.
func (o Options) selectionTimeout() time.Duration {
	if o.SelectionTimeout > 0 {
		return o.SelectionTimeout
	}
	return 5 * time.Second
}

// connectTimeout fills in the default.
func (o Options) connectTimeout() time.Duration {
	if o.ConnectTimeout > 0 {
		return o.ConnectTimeout
	}
	return 5 * time.Second
}

// StripCredentials removes user, password and what belongs to them from a
// connection string: only the rest is ever stored.
func StripCredentials(uri string) (string, error) {
	scheme, rest, ok := strings.Cut(uri, "://")
	if !ok {
		return "", failure.New(failure.Invalid, "shard.bad_uri", "an address needs to begin with mongodb:// or mongodb+srv://")
	}
	hosts, query, _ := strings.Cut(rest, "?")
	if i := strings.LastIndexByte(hosts, '@'); i >= 0 {
		hosts = hosts[i+1:]
	}
	hosts, _, _ = strings.Cut(hosts, "/") // the default database only served authentication
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", failure.New(failure.Invalid, "shard.bad_uri", "options of the address: %w", err)
	}
	for k := range values {
		if strings.HasPrefix(strings.ToLower(k), "auth") {
			values.Del(k)
		}
	}
	out := scheme + "://" + hosts + "/"
	if len(values) > 0 {
		out += "?" + values.Encode()
	}
	return out, nil
}

// Clients are the shared clients of a process, one for each shard and user. They
// are made when first asked for and closed together.
type Clients struct {
	secret string
	opts   Options
	now    func() time.Time

	mu      sync.Mutex
	open    map[clientKey]*opened
	former  []*opened // of files that were renewed since; who holds one goes on with it
	closed  bool
	leaving sync.WaitGroup
	edits   map[string]chan struct{} // by shard: who has put something in may change who holds which of the roles of work
}

// opened is a client, and what the files came to that its address names for TLS.
type opened struct {
	client *mongo.Client
	files  renewed.Sum
	use    *use
	of     *Fencer
}

// use tells whether somebody uses a client.
type use struct {
	mu   sync.Mutex
	out  int       // connections that somebody has
	last time.Time // of one going out or coming back
}

// note takes what a pool says.
func (u *use) note(e *event.PoolEvent, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch e.Type {
	case event.ConnectionCheckedOut:
		u.out++
	case event.ConnectionCheckedIn:
		u.out--
	default:
		return
	}
	u.last = now
}

// renewed says that another client has taken over: the grace begins.
func (u *use) renewed(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last = now
}

// idleSince reports whether nobody has had a connection since a time.
func (u *use) idleSince(at time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.out <= 0 && u.last.Before(at)
}

// How a client ends whose files were renewed.
const (
	formerGrace = 10 * time.Minute // without use
	formerEnd   = 5 * time.Second  // for its farewell
)

// clientKey holds the address too, so that a shard registered anew gets new clients.
type clientKey struct {
	shard, uri, user, host string
	of                     *Fencer // whose own it is; nil: shared
}

// NewClients makes an empty set of clients for the fleet with this secret.
func NewClients(secret string, o Options) *Clients {
	return &Clients{secret: secret, opts: o, now: time.Now, open: map[clientKey]*opened{}, edits: map[string]chan struct{}{}}
}

// turn is the place in which those stand who change roles on a shard.
func (c *Clients) turn(shard string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.edits[shard]
	if !ok {
		t = make(chan struct{}, 1)
		c.edits[shard] = t
	}
	return t
}

// Client gives the client of a user on a shard. It does not talk to the server:
// the first operation does.
func (c *Clients) Client(s chunk.Shard, user string) (*mongo.Client, error) {
	return c.member(s, user, "")
}

// member is Client for one member of the set, or for all when host is empty.
func (c *Clients) member(s chunk.Shard, user, host string) (*mongo.Client, error) {
	o := c.opts
	o.Host = host
	return c.get(s, user, o, nil)
}

// get gives the client of a user with options, shared or a fencer's own.
func (c *Clients) get(s chunk.Shard, user string, o Options, of *Fencer) (*mongo.Client, error) {
	key := clientKey{s.Name, s.URI, user, o.Host, of}
	c.mu.Lock()
	before := c.open[key]
	c.mu.Unlock()
	_, files, err := renewed.Read(tlsFiles(s.URI)...) // may hang, which is no other shard's trouble
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("client of %s on shard %s: %w", user, s.Name, mongo.ErrClientDisconnected)
	}
	c.sweep()
	was := c.open[key]
	if was != nil && (err != nil || files == was.files || was != before) { // another one was made meanwhile
		return was.client, nil
	}
	u := &use{}
	o.pool = &event.PoolMonitor{Event: func(e *event.PoolEvent) { u.note(e, c.now()) }}
	m, err := dial(s, credential(s, user, c.secret), o)
	switch {
	case err != nil && was != nil: // a broken renewal leaves the last good one
		return was.client, nil
	case err != nil:
		return nil, err
	case was != nil:
		was.use.renewed(c.now())
		c.former = append(c.former, was)
	}
	c.open[key] = &opened{m, files, u, of}
	return m, nil
}

// sweep disconnects the former clients that nobody uses any more.
func (c *Clients) sweep() {
	if len(c.former) == 0 {
		return
	}
	at := c.now().Add(-formerGrace)
	c.former = slices.DeleteFunc(c.former, func(o *opened) bool {
		idle := o.use.idleSince(at)
		if idle {
			c.leaving.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), formerEnd)
				defer cancel()
				_ = o.client.Disconnect(ctx) // nobody uses it
			})
		}
		return idle
	})
}

// release disconnects the clients of a fencer.
func (c *Clients) release(ctx context.Context, f *Fencer) error {
	c.mu.Lock()
	var all []*opened
	for key, o := range c.open {
		if o.of == f {
			all = append(all, o)
			delete(c.open, key)
		}
	}
	c.former = slices.DeleteFunc(c.former, func(o *opened) bool {
		if o.of == f {
			all = append(all, o)
		}
		return o.of == f
	})
	c.mu.Unlock()
	return disconnect(ctx, all)
}

// tlsFiles are the files that an address names for TLS. The driver reads them once for each
// client.
func tlsFiles(uri string) (files []string) {
	_, query, _ := strings.Cut(uri, "?")
	values, _ := url.ParseQuery(query) // what can't be read the driver refuses
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch strings.ToLower(name) {
		case "tlscafile", "sslcertificateauthorityfile", "tlscertificatekeyfile", "sslclientcertificatekeyfile", "tlscertificatefile", "tlsprivatekeyfile":
			files = append(files, values[name]...)
		}
	}
	return files
}

// credential is the login of one of Drover's users on a shard.
func credential(s chunk.Shard, user, secret string) options.Credential {
	return options.Credential{
		AuthMechanism: "SCRAM-SHA-256", AuthSource: "admin", Username: user, Password: Password(secret, s.Name, user),
	}
}

// Set opens a shard. It does not talk to the server.
func (c *Clients) Set(s chunk.Shard) (*Set, error) {
	admin, err := c.Client(s, chunk.AdminUser)
	if err != nil {
		return nil, err
	}
	return &Set{shard: s, clients: c, first: admin}, nil
}

// Close disconnects every client. Later calls of Client fail.
func (c *Clients) Close(ctx context.Context) error {
	c.mu.Lock()
	all := c.former
	for _, o := range c.open {
		all = append(all, o)
	}
	c.open, c.former, c.closed = nil, nil, true
	c.mu.Unlock()
	err := disconnect(ctx, all)
	c.leaving.Wait()
	return err
}

// disconnect disconnects clients.
func disconnect(ctx context.Context, all []*opened) error {
	var errs []error
	for _, o := range all {
		if err := o.client.Disconnect(ctx); err != nil && !errors.Is(err, mongo.ErrClientDisconnected) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// isFailure reports whether err carries a failure already.
func isFailure(err error) bool {
	_, ok := errors.AsType[*failure.Error](err)
	return ok
}

// userDigest is the uid that the server puts into the session ids of a user of admin.
func userDigest(user string) bson.Binary {
	sum := sha256.Sum256([]byte(user + "@admin"))
	return bson.Binary{Data: sum[:]}
}
