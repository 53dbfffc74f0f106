package shardsim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// config is a set's configuration. It is never changed, only followed by another.
type config struct {
	name    string
	version int64
	term    int64
	members []member
}

// member is one member of a configuration.
type member struct {
	id         int
	host       string
	votes      int
	priority   float64
	hidden     bool
	delay      time.Duration
	arbiter    bool
	newlyAdded bool // has its vote only once its initial sync has ended
}

// counts is the vote that a member has now.
func (m *member) counts() int {
	if m.newlyAdded {
		return 0
	}
	return m.votes
}

// newer reports whether c follows o; (term, version) decides.
func (c *config) newer(o *config) bool {
	return o == nil || cmp.Or(cmp.Compare(c.term, o.term), cmp.Compare(c.version, o.version)) > 0
}

// member gives a host's entry, nil when it has none.
func (c *config) member(host string) *member {
	for i := range c.members {
		if c.members[i].host == host {
			return &c.members[i]
		}
	}
	return nil
}

// byID gives the entry of an id, nil when it has none.
func (c *config) byID(id int) *member {
	for i := range c.members {
		if c.members[i].id == id {
			return &c.members[i]
		}
	}
	return nil
}

// majority is how many votes decide.
func (c *config) majority() int {
	votes := 0
	for i := range c.members {
		votes += c.members[i].counts()
	}
	return votes/2 + 1
}

// next is a copy of c with the next version.
func (c *config) next() *config {
	n := *c
	n.version++
	n.members = slices.Clone(c.members)
	return &n
}

// inTerm is c as the primary of a term writes it at once.
func (c *config) inTerm(term int64) *config {
	n := *c
	n.term = term
	return &n
}

// document is the configuration as replSetGetConfig gives it.
func (c *config) document() bson.D {
	var members bson.A
	for _, m := range c.members {
		members = append(members, bson.D{
			{Key: "_id", Value: m.id}, {Key: "host", Value: m.host}, {Key: "arbiterOnly", Value: m.arbiter}, {Key: "buildIndexes", Value: true},
			{Key: "hidden", Value: m.hidden}, {Key: "priority", Value: m.priority}, {Key: "tags", Value: bson.D{}},
			{Key: "secondaryDelaySecs", Value: int64(m.delay / time.Second)}, {Key: "votes", Value: m.votes},
		})
	}
	return bson.D{
		{Key: "_id", Value: c.name}, {Key: "version", Value: int32(c.version)}, {Key: "term", Value: c.term}, {Key: "members", Value: members}, //nolint:gosec // versions are small
		{Key: "protocolVersion", Value: int64(1)}, {Key: "writeConcernMajorityJournalDefault", Value: true},
		{Key: "settings", Value: bson.D{
			{Key: "chainingAllowed", Value: true}, {Key: "heartbeatIntervalMillis", Value: 2000}, {Key: "heartbeatTimeoutSecs", Value: 10},
			{Key: "electionTimeoutMillis", Value: int(electionTimeout / time.Millisecond)},
		}},
	}
}

// givenConfig is a configuration as replSetReconfig takes it.
type givenConfig struct {
	Name    string `bson:"_id"`
	Version int64  `bson:"version"`
	Members []struct {
		ID       int      `bson:"_id"`
		Host     string   `bson:"host"`
		Arbiter  bool     `bson:"arbiterOnly"`
		Hidden   bool     `bson:"hidden"`
		Priority *float64 `bson:"priority"`
		Votes    *int     `bson:"votes"`
		Delay    int64    `bson:"secondaryDelaySecs"`
	} `bson:"members"`
}

// parse reads what was given; the primary sets the term.
func (g *givenConfig) parse(term int64) *config {
	c := &config{name: g.Name, version: g.Version, term: term}
	for _, m := range g.Members {
		x := member{id: m.ID, host: m.Host, votes: 1, priority: 1, hidden: m.Hidden, delay: time.Duration(m.Delay) * time.Second, arbiter: m.Arbiter}
		if m.Votes != nil {
			x.votes = *m.Votes
		}
		if m.Arbiter {
			x.priority = 0
		}
		if m.Priority != nil {
			x.priority = *m.Priority
		}
		c.members = append(c.members, x)
	}
	return c
}

// problem is why no set can be configured so, empty when one can.
func (c *config) problem() string {
	voters, electable := 0, 0
	for i, m := range c.members {
		for _, o := range c.members[:i] {
			if o.id == m.id || o.host == m.host {
				return fmt.Sprintf("member %d is named twice", m.id)
			}
		}
		switch {
		case m.votes != 0 && m.votes != 1:
			return "votes must be 0 or 1"
		case m.priority < 0 || m.priority > 1000:
			return "priority must be between 0 and 1000"
		case m.votes == 0 && m.priority != 0:
			return "priority must be 0 when non-voting (votes:0)"
		case (m.hidden || m.delay > 0 || m.arbiter) && m.priority != 0:
			return "priority must be 0 when hidden, delayed or an arbiter"
		case m.arbiter && m.votes != 1:
			return "arbiter must vote (cannot have 0 votes)"
		}
		voters += m.votes
		electable += number(m.priority > 0)
	}
	switch {
	case len(c.members) == 0 || len(c.members) > 50:
		return "a set has 1 to 50 members"
	case voters > 7 || voters == 0:
		return "a set has 1 to 7 voting members"
	case electable == 0:
		return "a set needs a member with priority above 0"
	}
	return ""
}

// reconfigure is replSetReconfig on the primary. It does what mongod does, in its
// order: the checks, then the change, then a majority has it.
func (n *node) reconfigure(cmd bson.Raw) bson.D {
	var given struct {
		Config  givenConfig `bson:"replSetReconfig"`
		Force   bool        `bson:"force"`
		MaxTime int64       `bson:"maxTimeMS"`
	}
	if err := bson.Unmarshal(cmd, &given); err != nil {
		return failed(codeBadValue, err.Error())
	}
	if given.Force {
		return failed(codeIllegalOperation, "force may roll acknowledged writes back")
	}
	if n.role != primary {
		return failed(codeNotPrimary, "replSetReconfig should only be run on a writable PRIMARY")
	}
	s, old, term := n.set, n.config, n.term
	next := given.Config.parse(term)
	limit := time.Duration(given.MaxTime) * time.Millisecond
	if !s.await(limit, func() bool { return n.role != primary || n.installed(old) }) {
		return failed(codeNotCommitted, "the current configuration is not committed")
	}
	if r := n.acceptable(old, next); r != nil {
		return r
	}
	n.adopt(next)
	s.step(0)
	if !s.await(limit, func() bool { return n.config != next || n.role != primary || n.installed(next) }) {
		return failed(codeMaxTime, "the configuration is in force, and a majority has not installed it yet")
	}
	if n.role != primary || n.term != term {
		return failed(codeStateChange, "stepped down while the configuration was installed")
	}
	return ok()
}

// installed reports whether a majority of its voters has a configuration, and all
// that was acknowledged before.
func (n *node) installed(c *config) bool {
	have := 0
	for i := range c.members {
		m := &c.members[i]
		if o := n.set.find(m.host); m.counts() == 1 && o != nil && n.set.hears(n, o) && o.config != nil && !c.newer(o.config) {
			have++
		}
	}
	return have >= c.majority()
}

// acceptable refuses what mongod refuses.
func (n *node) acceptable(old, next *config) bson.D {
	switch {
	case n.config != old || n.role != primary:
		return failed(codeIncompatibleConfig, "the configuration has changed meanwhile")
	case next.name != old.name:
		return failed(codeIncompatibleConfig, "New and old configurations differ in replica set name")
	case next.version <= old.version:
		return failed(codeIncompatibleConfig, fmt.Sprintf("New replica set configuration version must be greater than old, but %d is not greater than %d", next.version, old.version))
	case next.problem() != "":
		return failed(codeInvalidConfig, next.problem())
	}
	if me := next.member(n.host); me == nil || me.priority == 0 {
		return failed(codeNodeNotElectable, "this node is not electable under the new configuration")
	}
	voting := 0
	for i := range next.members {
		m := &next.members[i]
		was := old.byID(m.id)
		switch {
		case was == nil:
			m.newlyAdded = m.votes == 1 && !m.arbiter
			voting += m.votes
		case was.arbiter != m.arbiter:
			return failed(codeIncompatibleConfig, "arbiterOnly of a member cannot be changed")
		default:
			m.newlyAdded = was.newlyAdded && m.votes == 1
			voting += number(was.votes != m.votes)
		}
		if other := old.member(m.host); other != nil && other.id != m.id {
			return failed(codeIncompatibleConfig, "the same host has another _id")
		}
	}
	for i := range old.members {
		if m := &old.members[i]; next.byID(m.id) == nil {
			voting += m.votes
		}
	}
	if voting > 1 {
		return failed(codeIncompatibleConfig, "Non force replica set reconfig can only add or remove at most 1 voting member")
	}
	return n.quorumCheck(next)
}

// quorumCheck asks the members of a new configuration before it is installed.
func (n *node) quorumCheck(next *config) bson.D {
	votes, electable := 0, 0
	for i := range next.members {
		m := &next.members[i]
		o := n.set.find(m.host)
		if o == nil || !n.set.hears(n, o) {
			continue
		}
		if o.config != nil && o.config.name != next.name {
			return failed(codeIncompatibleConfig, "our set name did not match that of "+m.host)
		}
		if o.config != nil && !next.newer(o.config) {
			return failed(codeIncompatibleConfig, m.host+" has a newer configuration")
		}
		votes += m.counts()
		electable += number(m.priority > 0)
	}
	if votes < next.majority() || electable == 0 {
		return failed(codeNodeNotFound, "Quorum check failed because not enough voting nodes responded")
	}
	return nil
}
