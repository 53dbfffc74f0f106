package shard

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
)

// The ways in which a drain came to know that nothing is left.
const (
	DrainListed   = "listed"   // by the server's own list of operations and transactions
	DrainSessions = "sessions" // by the sessions that the proxies named
	DrainQuiet    = "quiet"    // by aborting every transaction of the server, and by watching that nothing lands
	DrainNone     = "none"     // nothing to abort, by the proxies' word
)

// DrainRequest says what to wait for and how far to go.
type DrainRequest struct {
	Placement chunk.Placement
	Budget    time.Duration // for operations to end by themselves; then they are killed
	Sessions  [][]byte      // upstream session ids (16 bytes) with an open transaction on the placement, by the proxies
	Silent    bool          // a proxy gave no word: a server that cannot list is watched
}

// DrainResult says what was found and which way was taken.
type DrainResult struct {
	Way     string
	Waited  int // operations that were under way
	Killed  int // operations that outlived the budget
	Aborted int // transactions
}

// operation is one entry of $currentOp.
type operation struct {
	Type        string        `bson:"type"`
	Host        string        `bson:"host"`
	Connection  int64         `bson:"connectionId"`
	ID          bson.RawValue `bson:"opid"`
	Active      bool          `bson:"active"`
	NS          string        `bson:"ns"`
	Command     bson.Raw      `bson:"command"`
	Users       []userName    `bson:"effectiveUsers"`
	Session     *session      `bson:"lsid"`
	Transaction bson.Raw      `bson:"transaction"`
}

// userName names a user the way the server does.
type userName struct {
	User string `bson:"user"`
	DB   string `bson:"db"`
}

// session is a logical session id.
type session struct {
	ID  bson.Binary `bson:"id"`
	UID bson.Binary `bson:"uid"`
}

// Drain waits until nothing that passed the check before the fence can still write
// to the placement, and aborts its open transactions.
//
// Before: the barrier holds on every member, so what begins now is refused. After:
// every operation of the data-plane user that could concern the placement is gone,
// each of its transactions is aborted and seen to be gone. Where the server cannot
// list operations, the proxies' word takes the place of that (the request's
// Sessions), or without it [Set.awaitQuiet]; the result says so. If interrupted: run
// again.
func (s *Set) Drain(ctx context.Context, q DrainRequest) (DrainResult, error) {
	if !s.shard.Capabilities.ListsOperations {
		return s.drainBlind(ctx, q)
	}
	res := DrainResult{Way: DrainListed}
	for range 2 { // the second look finds what the first abort let through
		if err := s.waitOperations(ctx, chunk.DataUser, q, &res); err != nil {
			return res, err
		}
		n, err := s.AbortTransactions(ctx, q.Placement.ID)
		res.Aborted += n
		if err != nil {
			return res, err
		}
	}
	return res, nil
}

// DrainUser waits until nothing that another of Drover's users, the loader or the
// applier, had begun before its role was dropped can still write to the placement.
// Where the server cannot list operations it knows nothing and says so: there, the
// caller's own knowledge that its workers have stopped takes its place.
func (s *Set) DrainUser(ctx context.Context, user string, q DrainRequest) (DrainResult, error) {
	if !s.shard.Capabilities.ListsOperations {
		return DrainResult{Way: DrainNone}, nil
	}
	res := DrainResult{Way: DrainListed}
	return res, s.waitOperations(ctx, user, q, &res)
}

// drainBlind aborts what the proxies named; or everything, and sees that nothing
// lands any more.
func (s *Set) drainBlind(ctx context.Context, q DrainRequest) (DrainResult, error) {
	res := DrainResult{Way: DrainNone}
	if q.Silent {
		res.Way = DrainQuiet
		if err := s.AbortAll(ctx); err != nil {
			return res, err
		}
		return res, s.awaitQuiet(ctx, q.Placement)
	}
	if len(q.Sessions) > 0 {
		res.Way, res.Aborted = DrainSessions, len(q.Sessions)
		return res, s.AbortSessions(ctx, q.Sessions)
	}
	return res, nil
}

// waitOperations waits for the operations that are under way now. What begins
// later has met the new privileges.
func (s *Set) waitOperations(ctx context.Context, user string, q DrainRequest, res *DrainResult) error {
	ops, err := s.operations(ctx)
	if err != nil {
		return err
	}
	waiting := map[string]operation{}
	for _, o := range ops {
		if o.concerns(user, q.Placement) {
			waiting[o.key()] = o
		}
	}
	res.Waited += len(waiting)
	killAt := time.Now().Add(q.Budget)
	killed := map[string]bool{}
	return poll(ctx, func() (bool, error) {
		if len(waiting) == 0 {
			return true, nil
		}
		now, err := s.operations(ctx)
		if err != nil {
			return false, err
		}
		running := map[string]bool{}
		for _, o := range now {
			running[o.key()] = true
		}
		for k, o := range waiting {
			if !running[k] {
				delete(waiting, k)
				continue
			}
			if time.Now().After(killAt) && !killed[k] {
				killed[k] = true
				res.Killed++
				if err := s.killOperation(ctx, o); err != nil {
					return false, err
				}
			}
		}
		return len(waiting) == 0, nil
	})
}

// operations lists what the server is doing and which transactions are open.
func (s *Set) operations(ctx context.Context) ([]operation, error) {
	cur, err := s.admin().Database("admin").Aggregate(ctx, bson.A{bson.D{{Key: "$currentOp", Value: bson.D{
		{Key: "allUsers", Value: true}, {Key: "idleSessions", Value: true},
	}}}})
	if err != nil {
		return nil, s.wrap(err, "list operations")
	}
	var ops []operation
	if err := cur.All(ctx, &ops); err != nil {
		return nil, s.wrap(err, "list operations")
	}
	return ops, nil
}

// key is the operation's identity while it runs.
func (o operation) key() string { return o.connection() + "/" + o.ID.String() }

// connection names where the operation came in.
func (o operation) connection() string { return fmt.Sprintf("%s/%d", o.Host, o.Connection) }

// pureReads are the commands that change nothing. Anything else is a write.
var pureReads = []string{
	"find", "getMore", "count", "distinct", "listCollections", "listIndexes", "collStats", "dbStats",
	"killCursors", "hello", "isMaster", "ismaster", "ping", "connectionStatus", "endSessions", "saslStart", "saslContinue",
}

// concerns reports whether an operation is a user's and may still write to a
// placement. The user is looked up before the command is known, so one without
// a visible command counts; so does one that may name databases of its own.
func (o operation) concerns(user string, p chunk.Placement) bool {
	if !o.Active || !slices.Contains(o.Users, userName{user, "admin"}) {
		return false
	}
	elements, err := o.Command.Elements()
	if err != nil || len(elements) == 0 {
		return true
	}
	if slices.Contains(pureReads, elements[0].Key()) {
		return false
	}
	if o.Session != nil {
		if id, ok := sessionPlacement(o.Session.ID.Data); ok && len(o.Transaction) > 0 && id != p.ID {
			return false // a statement or a commit of another placement's transaction
		}
	}
	db := text(o.Command, "$db")
	return db == "" || db == p.Database || db == "admin" || elements[0].Key() == "aggregate"
}

// sessionPlacement reads the placement out of an upstream session id.
func sessionPlacement(id []byte) (chunk.PlacementID, bool) {
	if len(id) != 16 {
		return 0, false
	}
	return chunk.PlacementID(binary.BigEndian.Uint64(id)), true //nolint:gosec // the same 64 bits that the proxy wrote
}

// killOperation ends one operation.
func (s *Set) killOperation(ctx context.Context, o operation) error {
	_, err := s.adminRun(ctx, bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: o.ID}})
	return s.wrap(err, "kill operation %s", o.key())
}

// AbortTransactions aborts every open transaction of the placement and sees that
// it is gone. It gives their number. The server must be able to list them.
func (s *Set) AbortTransactions(ctx context.Context, p chunk.PlacementID) (int, error) {
	aborted := map[string]bool{}
	err := poll(ctx, func() (bool, error) {
		open, err := s.transactionsOf(ctx, p)
		if err != nil || len(open) == 0 {
			return err == nil, err
		}
		for _, x := range open {
			aborted[string(x.ID.Data)] = true
		}
		return false, s.killSessions(ctx, open)
	})
	return len(aborted), err
}

// transactionsOf lists the sessions that have a transaction open on a placement.
func (s *Set) transactionsOf(ctx context.Context, p chunk.PlacementID) ([]session, error) {
	ops, err := s.operations(ctx)
	if err != nil {
		return nil, err
	}
	var open []session
	for _, o := range ops {
		if o.Session == nil || len(o.Transaction) == 0 {
			continue
		}
		if number, err := o.Transaction.LookupErr("parameters", "autocommit"); err != nil || number.Type != bson.TypeBoolean {
			continue // a retryable write has transaction parameters without autocommit
		}
		if id, ok := sessionPlacement(o.Session.ID.Data); ok && id == p {
			open = append(open, *o.Session)
		}
	}
	return open, nil
}

// AbortSessions aborts the transactions of exactly these upstream sessions of the
// data-plane user, open or not.
func (s *Set) AbortSessions(ctx context.Context, ids [][]byte) error {
	var sessions []session
	for _, id := range ids {
		if len(id) != 16 {
			return failure.New(failure.Invalid, "shard.bad_session", "a session id has 16 bytes, not %d", len(id))
		}
		sessions = append(sessions, session{ID: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id}, UID: userDigest(chunk.DataUser)})
	}
	return s.killSessions(ctx, sessions)
}

// killSessions aborts the transactions of sessions, by {id, uid} where the server
// takes that: {id} alone would mean a session of the admin user.
func (s *Set) killSessions(ctx context.Context, sessions []session) error {
	if len(sessions) == 0 {
		return nil // an empty list would mean every session there is
	}
	list := make(bson.A, 0, len(sessions))
	for _, x := range sessions {
		d := bson.D{{Key: "id", Value: x.ID}}
		if s.shard.Capabilities.KillsSessionsByUser {
			d = append(d, bson.E{Key: "uid", Value: x.UID})
		}
		list = append(list, d)
	}
	_, err := s.adminRun(ctx, bson.D{{Key: "killSessions", Value: list}})
	return s.wrap(err, "abort %d transactions", len(sessions))
}

// AbortAll aborts every open transaction of the data-plane user, whatever it
// concerns; on a server that does not tell sessions' users apart, every one. It is
// the last resort where a proxy is silent and the server cannot list: the others'
// clients get a transient transaction error and run theirs again.
func (s *Set) AbortAll(ctx context.Context) error {
	pattern := bson.A{}
	if s.shard.Capabilities.KillsSessionsByUser {
		pattern = bson.A{bson.D{{Key: "uid", Value: userDigest(chunk.DataUser)}}}
	}
	_, err := s.adminRun(ctx, bson.D{{Key: "killAllSessionsByPattern", Value: pattern}})
	return s.wrap(err, "abort all transactions")
}
