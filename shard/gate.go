package shard

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// rollCallTime is how long a member may take to answer the gate. It is more than
// the window allows: the gate's question may have to open a connection first.
const rollCallTime = 2 * time.Second

// RollCall asks every data-bearing member for a word, on both of the fencer's
// connections to it. It tells apart, as [Fencer.Barrier] will, who is silent, so
// that a fence would fail, and who would be owed the barrier.
func (f *Fencer) RollCall(ctx context.Context) (silent []string, owed []Owed, err error) {
	cfg, view, err := f.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	members := cfg.members(view)
	answers := make([]bool, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		if excused(m) != "" {
			continue
		}
		wg.Go(func() { answers[i] = f.answers(ctx, m.Host, len(members) == 1) })
	}
	wg.Wait()
	for i, m := range members {
		switch reason := excused(m); {
		case reason != "":
			owed = append(owed, Owed{Host: m.Host, Reason: reason})
		case answers[i]:
		case f.down(ctx, cfg, m.ID):
			owed = append(owed, Owed{Host: m.Host, Reason: "down"})
		default:
			silent = append(silent, m.Host)
		}
	}
	return silent, owed, nil
}

// answers reports whether a member gives its word to both users that a fence needs.
func (f *Fencer) answers(ctx context.Context, host string, alone bool) bool {
	ctx, cancel := context.WithTimeout(ctx, rollCallTime)
	defer cancel()
	n, err := f.node(host, alone)
	if err != nil {
		return false
	}
	if _, err := readStatus(ctx, n.admin); err != nil {
		return false
	}
	_, err = run(ctx, n.data, "admin", bson.D{{Key: "connectionStatus", Value: 1}})
	return err == nil
}

// Open is a transaction or a cursor that an application has open on a placement.
type Open struct {
	Kind  string // "transaction" or "cursor"
	Where string // host/connection, or the host of an idle cursor
	Since time.Duration
}

// openEntry is what an entry of $currentOp says about open work.
type openEntry struct {
	Type        string     `bson:"type"`
	Host        string     `bson:"host"`
	Connection  int64      `bson:"connectionId"`
	NS          string     `bson:"ns"`
	Session     *session   `bson:"lsid"`
	Users       []userName `bson:"effectiveUsers"`
	Transaction struct {
		Micros int64 `bson:"timeOpenMicros"`
		Params struct {
			AutoCommit *bool `bson:"autocommit"`
		} `bson:"parameters"`
	} `bson:"transaction"`
	Cursor *struct {
		Created time.Time `bson:"createdDate"`
	} `bson:"cursor"`
}

// OpenWork lists what applications have open on a placement, the oldest first. ok
// is false where the server cannot list it.
func (s *Set) OpenWork(ctx context.Context, p chunk.Placement) (open []Open, ok bool, err error) {
	if !s.shard.Capabilities.ListsOperations {
		return nil, false, nil
	}
	cur, err := s.admin().Database("admin").Aggregate(ctx, bson.A{bson.D{{Key: "$currentOp", Value: bson.D{
		{Key: "allUsers", Value: true}, {Key: "idleSessions", Value: true}, {Key: "idleCursors", Value: true},
	}}}})
	if err != nil {
		return nil, false, s.wrap(err, "list open work")
	}
	var entries []openEntry
	if err := cur.All(ctx, &entries); err != nil {
		return nil, false, s.wrap(err, "list open work")
	}
	now, err := s.clock(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, e := range entries {
		if o, concerns := e.open(p, now); concerns {
			open = append(open, o)
		}
	}
	slices.SortFunc(open, func(a, b Open) int { return int(b.Since - a.Since) })
	return open, true, nil
}

// open judges one entry.
func (e openEntry) open(p chunk.Placement, now time.Time) (Open, bool) {
	where := e.Host
	if e.Connection != 0 {
		where = operation{Host: e.Host, Connection: e.Connection}.connection()
	}
	if e.Session != nil && e.Transaction.Params.AutoCommit != nil {
		id, ok := sessionPlacement(e.Session.ID.Data)
		return Open{Kind: "transaction", Where: where, Since: time.Duration(e.Transaction.Micros) * time.Microsecond}, ok && id == p.ID
	}
	if e.Cursor == nil || !strings.HasPrefix(e.NS, p.Database+".") || len(e.Users) > 0 && !slices.Contains(e.Users, userName{chunk.DataUser, "admin"}) {
		return Open{}, false
	}
	return Open{Kind: "cursor", Where: where, Since: max(0, now.Sub(e.Cursor.Created))}, true
}

// clock reads the primary's clock.
func (s *Set) clock(ctx context.Context) (time.Time, error) {
	st, err := readStatus(ctx, s.admin())
	return st.Date, s.wrap(err, "read the clock")
}
