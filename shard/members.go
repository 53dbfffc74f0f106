package shard

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/internal/failure"
)

// Member is one data-bearing member of a set.
type Member struct {
	ID       int
	Host     string
	Priority float64
	Votes    int
	Hidden   bool
	Delayed  bool
	State    string // "PRIMARY", "SECONDARY"...; by the view of the node that was asked
	Healthy  bool
	Lag      time.Duration // behind the primary
}

// Identity tells one reign of one primary process from every other.
type Identity struct {
	Host    string
	Term    int64
	Process bson.ObjectID
}

// Status is a set as its primary sees it.
type Status struct {
	Identity
	At              time.Time // by the primary's clock
	Elected         time.Time // when the primary took over, zero where the server does not say
	ElectionTimeout time.Duration
	Members         []Member // data-bearing ones
}

// hello is what Drover reads of a hello reply.
type hello struct {
	SetName         string   `bson:"setName"`
	Me              string   `bson:"me"`
	Primary         bool     `bson:"isWritablePrimary"`
	Msg             string   `bson:"msg"`
	Hosts           []string `bson:"hosts"`
	MaxWireVersion  int32    `bson:"maxWireVersion"`
	TopologyVersion struct {
		Process bson.ObjectID `bson:"processId"`
		Counter int64         `bson:"counter"`
	} `bson:"topologyVersion"`
}

// readHello asks a node who it is.
func readHello(ctx context.Context, c *mongo.Client) (h hello, err error) {
	r, err := run(ctx, c, "admin", bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return h, err
	}
	return h, bson.Unmarshal(r, &h)
}

// setConfig is what Drover reads of a set's configuration.
type setConfig struct {
	Config struct {
		Version int64 `bson:"version"`
		Members []struct {
			ID       int     `bson:"_id"`
			Host     string  `bson:"host"`
			Arbiter  bool    `bson:"arbiterOnly"`
			Hidden   bool    `bson:"hidden"`
			Priority float64 `bson:"priority"`
			Votes    int     `bson:"votes"`
			Delay    int64   `bson:"secondaryDelaySecs"`
		} `bson:"members"`
		Settings struct {
			ElectionTimeoutMillis int64 `bson:"electionTimeoutMillis"`
		} `bson:"settings"`
	} `bson:"config"`
}

// setStatus is what Drover reads of replSetGetStatus: one node's view.
type setStatus struct {
	Date    time.Time `bson:"date"`
	Term    int64     `bson:"term"`
	Optimes struct {
		Applied struct {
			TS bson.Timestamp `bson:"ts"`
		} `bson:"appliedOpTime"`
	} `bson:"optimes"`
	Election struct {
		Date time.Time `bson:"lastElectionDate"`
	} `bson:"electionCandidateMetrics"`
	Members []memberStatus `bson:"members"`
}

// memberStatus is one member in one node's view.
type memberStatus struct {
	ID                int       `bson:"_id"`
	Name              string    `bson:"name"`
	Health            float64   `bson:"health"`
	State             string    `bson:"stateStr"`
	OptimeDate        time.Time `bson:"optimeDate"`
	ElectionDate      time.Time `bson:"electionDate"` // of a primary
	LastHeartbeatRecv time.Time `bson:"lastHeartbeatRecv"`
	ConfigVersion     int64     `bson:"configVersion"`
	Self              bool      `bson:"self"`
}

// self is the node whose view it is.
func (v setStatus) self() memberStatus {
	for _, m := range v.Members {
		if m.Self {
			return m
		}
	}
	return memberStatus{ID: -1}
}

// elected is when the node that answers became primary, by either of the two
// places where servers say so.
func (v setStatus) elected() time.Time {
	if !v.Election.Date.IsZero() {
		return v.Election.Date
	}
	return v.self().ElectionDate
}

// applied reports whether the node has applied what was done at a time.
func (v setStatus) applied(at bson.Timestamp) bool { return !v.Optimes.Applied.TS.Before(at) }

// readConfig reads the configuration a node holds.
func readConfig(ctx context.Context, c *mongo.Client) (cfg setConfig, err error) {
	r, err := run(ctx, c, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}})
	if err != nil {
		return cfg, err
	}
	return cfg, bson.Unmarshal(r, &cfg)
}

// readStatus reads a node's view of the set.
func readStatus(ctx context.Context, c *mongo.Client) (st setStatus, err error) {
	r, err := run(ctx, c, "admin", bson.D{{Key: "replSetGetStatus", Value: 1}})
	if err != nil {
		return st, err
	}
	return st, bson.Unmarshal(r, &st)
}

// electionTimeout is the set's, or MongoDB's default.
func (c setConfig) electionTimeout() time.Duration {
	if ms := c.Config.Settings.ElectionTimeoutMillis; ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return 10 * time.Second
}

// members joins the configuration with one node's view of it.
func (c setConfig) members(view setStatus) []Member {
	var primary time.Time
	for _, m := range view.Members {
		if m.State == "PRIMARY" {
			primary = m.OptimeDate
		}
	}
	var out []Member
	for _, m := range c.Config.Members {
		if m.Arbiter {
			continue
		}
		x := Member{ID: m.ID, Host: m.Host, Priority: m.Priority, Votes: m.Votes, Hidden: m.Hidden, Delayed: m.Delay > 0}
		for _, v := range view.Members {
			if v.ID == m.ID {
				x.State, x.Healthy = v.State, v.Health > 0
				x.Lag = max(0, primary.Sub(v.OptimeDate))
			}
		}
		out = append(out, x)
	}
	return out
}

// Status asks the primary about the set.
func (s *Set) Status(ctx context.Context) (Status, error) {
	var out Status
	id, view, err := s.identity(ctx)
	if err != nil {
		return out, err
	}
	cfg, err := readConfig(ctx, s.admin())
	if err != nil {
		return out, s.wrap(err, "read configuration")
	}
	return Status{
		Identity: id, At: view.Date, Elected: view.elected(), ElectionTimeout: cfg.electionTimeout(), Members: cfg.members(view),
	}, nil
}

// Identity asks who the primary is. Two equal answers mean that nobody else
// reigned in between: the term would be another, or the process.
func (s *Set) Identity(ctx context.Context) (Identity, error) {
	id, _, err := s.identity(ctx)
	return id, err
}

// identity gives the primary's view along with its identity.
func (s *Set) identity(ctx context.Context) (Identity, setStatus, error) {
	h, err := readHello(ctx, s.admin())
	if err != nil {
		return Identity{}, setStatus{}, s.wrap(err, "read primary")
	}
	view, err := readStatus(ctx, s.admin())
	if err != nil {
		return Identity{}, setStatus{}, s.wrap(err, "read status")
	}
	if !h.Primary {
		return Identity{}, view, failure.New(failure.Transient, "shard.no_primary", "%s of shard %s is not primary", h.Me, s.Name()).
			WithHint("an election is under way, or the shard has no majority")
	}
	return Identity{Host: h.Me, Term: view.Term, Process: h.TopologyVersion.Process}, view, nil
}

// memberClient gives the client of a user that talks to one member only. A set of
// one member is reached by the registered address: what it calls itself may not
// be known here.
func (s *Set) memberClient(user, host string, alone bool) (*mongo.Client, error) {
	if alone {
		host = ""
	}
	return s.clients.member(s.shard, user, host)
}

// Reader gives a client for reading bulk data, connected to one member only: a
// healthy secondary when there is one, the one least behind; else the primary, if
// that is allowed, or nobody else could ever be asked: in a set of one member.
func (s *Set) Reader(ctx context.Context, allowPrimary bool) (*mongo.Client, Member, error) {
	st, err := s.Status(ctx)
	if err != nil {
		return nil, Member{}, err
	}
	var best *Member
	for i, m := range st.Members {
		if m.State != "SECONDARY" || !m.Healthy || m.Delayed {
			continue
		}
		if best == nil || m.Lag < best.Lag {
			best = &st.Members[i]
		}
	}
	for i, m := range st.Members {
		if best == nil && (allowPrimary || len(st.Members) == 1) && m.State == "PRIMARY" {
			best = &st.Members[i]
		}
	}
	if best == nil {
		return nil, Member{}, failure.New(failure.Transient, "shard.no_secondary", "shard %s has no healthy secondary to read from", s.Name()).
			WithHint("bring one back; a move that was started with --allow-primary-reads reads the primary meanwhile")
	}
	c, err := s.memberClient(chunk.ReaderUser, best.Host, len(st.Members) == 1)
	return c, *best, err
}

// OperationTime gives the operation time of the node that a client talks to: what
// it has applied is not older.
func OperationTime(ctx context.Context, c *mongo.Client) (bson.Timestamp, error) {
	r, err := run(ctx, c, "admin", bson.D{{Key: "ping", Value: 1}})
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("read operation time: %w", err)
	}
	t := operationTime(r)
	if t.IsZero() {
		return t, failure.New(failure.Invalid, "shard.not_replica_set", "the server gives no operation time")
	}
	return t, nil
}

// Room is the disk of the primary. Known is false where the server does not say.
type Room struct {
	Total, Used int64
	Known       bool
}

// Free is what is left.
func (r Room) Free() int64 { return r.Total - r.Used }

// Room asks how much disk there is.
func (s *Set) Room(ctx context.Context) (Room, error) {
	r, err := run(ctx, s.admin(), chunk.SystemDatabase, bson.D{{Key: "dbStats", Value: 1}})
	if err != nil {
		return Room{}, s.wrap(err, "read disk space")
	}
	room := Room{Total: lookup(r, "fsTotalSize"), Used: lookup(r, "fsUsedSize")}
	room.Known = room.Total > 0
	return room, nil
}
