package shardsim

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// hello answers the first question of every connection, and monitors' questions.
func (n *node) hello(cmd bson.Raw) bson.D {
	if v, err := cmd.LookupErr("topologyVersion"); err == nil && n.unchanged(v) {
		n.awaitTopology(cmd)
	}
	r := bson.D{
		{Key: "helloOk", Value: true}, {Key: "maxBsonObjectSize", Value: 16 << 20}, {Key: "maxMessageSizeBytes", Value: 48_000_000},
		{Key: "maxWriteBatchSize", Value: 100_000}, {Key: "localTime", Value: n.set.now}, {Key: "logicalSessionTimeoutMinutes", Value: 30},
		{Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 25}, {Key: "readOnly", Value: false},
		n.topologyVersion(),
	}
	if mechanisms, err := cmd.LookupErr("saslSupportedMechs"); err == nil && mechanisms.Type == bson.TypeString {
		r = append(r, bson.E{Key: "saslSupportedMechs", Value: bson.A{"SCRAM-SHA-256"}})
	}
	if n.config == nil || n.role == removed {
		return append(append(bson.D{
			{Key: "isWritablePrimary", Value: false}, {Key: "ismaster", Value: false}, {Key: "secondary", Value: false}, {Key: "isreplicaset", Value: true},
		}, r...), ok()...)
	}
	return append(append(n.topology(), r...), ok()...)
}

// topologyVersion tells one state of one process from every other.
func (n *node) topologyVersion() bson.E {
	return bson.E{Key: "topologyVersion", Value: bson.D{{Key: "processId", Value: n.process}, {Key: "counter", Value: n.counter}}}
}

// topology is the part of hello that tells of the set.
func (n *node) topology() bson.D {
	hosts, passives, arbiters := bson.A{}, bson.A{}, bson.A{}
	for _, m := range n.config.members {
		switch {
		case m.hidden:
		case m.arbiter:
			arbiters = append(arbiters, m.host)
		case m.priority == 0:
			passives = append(passives, m.host)
		default:
			hosts = append(hosts, m.host)
		}
	}
	m := n.config.member(n.host)
	r := bson.D{
		{Key: "setName", Value: n.config.name}, {Key: "setVersion", Value: int32(n.config.version)}, {Key: "me", Value: n.host}, //nolint:gosec // versions are small
		{Key: "hosts", Value: hosts}, {Key: "passives", Value: passives}, {Key: "arbiters", Value: arbiters},
		{Key: "isWritablePrimary", Value: n.role == primary}, {Key: "ismaster", Value: n.role == primary}, {Key: "secondary", Value: n.role == secondary},
		{Key: "hidden", Value: m != nil && m.hidden}, {Key: "arbiterOnly", Value: n.role == arbiter}, {Key: "passive", Value: m != nil && m.priority == 0},
		{Key: "lastWrite", Value: bson.D{{Key: "opTime", Value: n.opTimeDocument()}, {Key: "lastWriteDate", Value: n.optimeDate()}}},
	}
	if p := n.set.head(); p != nil && n.set.hears(n, p) && p.term == n.term {
		r = append(r, bson.E{Key: "primary", Value: p.host})
	}
	if n.role == primary {
		var id bson.ObjectID
		id[0] = 0x7f
		for i := range 8 {
			id[4+i] = byte(n.term >> (8 * (7 - i))) //nolint:gosec // one byte of it
		}
		r = append(r, bson.E{Key: "electionId", Value: id})
	}
	return r
}

// unchanged reports whether a monitor knows all there is.
func (n *node) unchanged(v bson.RawValue) bool {
	d, isDoc := v.DocumentOK()
	if !isDoc {
		return false
	}
	id, _ := d.Lookup("processId").ObjectIDOK()
	counter, _ := d.Lookup("counter").AsInt64OK()
	return id == n.process && counter == n.counter
}

// awaitTopology lets a monitor wait for a change, in the caller's time: it is part
// of the transport.
func (n *node) awaitTopology(cmd bson.Raw) {
	ms, _ := cmd.Lookup("maxAwaitTimeMS").AsInt64OK()
	timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer timer.Stop()
	counter, process := n.counter, n.process
	for n.counter == counter && n.process == process {
		changed := n.set.changed
		n.set.mu.Unlock()
		expired := false
		select {
		case <-changed:
		case <-timer.C:
			expired = true
		case <-n.set.done:
			expired = true
		}
		n.set.mu.Lock()
		if expired {
			return
		}
	}
}

// opTimeDocument is a node's optime as replies show it.
func (n *node) opTimeDocument() bson.D {
	ts, term := n.optime()
	return bson.D{{Key: "ts", Value: ts}, {Key: "t", Value: term}}
}

// status answers replSetGetStatus: this node's view.
func (n *node) status() bson.D {
	if n.config == nil {
		return failed(codeNotYetInitialized, "no replset config has been received")
	}
	s := n.set
	var members bson.A
	for _, m := range n.config.members {
		members = append(members, n.statusOf(m))
	}
	commit, commitTerm := n.commitPoint()
	r := bson.D{
		{Key: "set", Value: n.config.name}, {Key: "date", Value: s.now}, {Key: "myState", Value: int(n.role)}, {Key: "term", Value: n.term},
		{Key: "heartbeatIntervalMillis", Value: int64(2000)}, {Key: "majorityVoteCount", Value: n.config.majority()},
		{Key: "optimes", Value: bson.D{
			{Key: "lastCommittedOpTime", Value: bson.D{{Key: "ts", Value: commit}, {Key: "t", Value: commitTerm}}},
			{Key: "appliedOpTime", Value: n.opTimeDocument()}, {Key: "durableOpTime", Value: n.opTimeDocument()},
		}},
	}
	if n.role == primary {
		r = append(r, bson.E{Key: "electionCandidateMetrics", Value: bson.D{{Key: "lastElectionDate", Value: n.elected}, {Key: "electionTerm", Value: n.term}}})
	}
	return append(append(r, bson.E{Key: "members", Value: members}), ok()...)
}

// statusOf is how this node sees one member. Who has not been heard of for the
// heartbeats' timeout is down.
func (n *node) statusOf(m member) bson.D {
	r := bson.D{{Key: "_id", Value: m.id}, {Key: "name", Value: m.host}}
	if m.host == n.host {
		return append(r,
			bson.E{Key: "health", Value: 1.0}, bson.E{Key: "state", Value: int(n.role)}, bson.E{Key: "stateStr", Value: n.role.String()},
			bson.E{Key: "optime", Value: n.opTimeDocument()}, bson.E{Key: "optimeDate", Value: n.optimeDate()},
			bson.E{Key: "configVersion", Value: n.config.version}, bson.E{Key: "configTerm", Value: n.config.term}, bson.E{Key: "self", Value: true})
	}
	o, heard := n.set.find(m.host), n.heard[m.host]
	if o == nil || heard.IsZero() || !n.mute && n.set.now.Sub(heard) >= 2*time.Second {
		return append(r,
			bson.E{Key: "health", Value: 0.0}, bson.E{Key: "state", Value: 8}, bson.E{Key: "stateStr", Value: "(not reachable/healthy)"},
			bson.E{Key: "optimeDate", Value: time.Unix(0, 0)}, bson.E{Key: "lastHeartbeatRecv", Value: heard}, bson.E{Key: "configVersion", Value: int64(-1)})
	}
	var version, term int64 = -2, -1
	if o.config != nil {
		version, term = o.config.version, o.config.term
	}
	return append(r,
		bson.E{Key: "health", Value: 1.0}, bson.E{Key: "state", Value: int(o.role)}, bson.E{Key: "stateStr", Value: o.role.String()},
		bson.E{Key: "optime", Value: o.opTimeDocument()}, bson.E{Key: "optimeDate", Value: o.optimeDate()},
		bson.E{Key: "lastHeartbeat", Value: heard}, bson.E{Key: "lastHeartbeatRecv", Value: heard}, bson.E{Key: "pingMs", Value: int64(0)},
		bson.E{Key: "configVersion", Value: version}, bson.E{Key: "configTerm", Value: term})
}

// stepDown answers replSetStepDown: once somebody is caught up who may stand, the
// office is handed over.
func (n *node) stepDown(cmd bson.Raw) bson.D {
	secs := seconds(cmd, "replSetStepDown", 60)
	catchUp := seconds(cmd, "secondaryCatchUpPeriodSecs", 10)
	if n.role != primary {
		return failed(codeNotPrimary, "not primary so can't step down")
	}
	term := n.term
	var heir *node
	ready := n.set.await(max(catchUp, time.Second), func() bool {
		heir = n.heir()
		return n.role != primary || n.term != term || heir != nil
	})
	if !ready {
		return failed(codeExceededTimeLimit, "No electable secondaries caught up as of now")
	}
	if n.role != primary || n.term != term {
		return failed(codeNotPrimary, "not primary so can't step down")
	}
	n.resign()
	n.frozen = n.set.now.Add(secs)
	n.set.elect(heir)
	n.set.step(0)
	return ok()
}

// heir gives who takes over at a step-down: caught up, by priority.
func (n *node) heir() *node {
	var best *node
	for _, m := range n.config.members {
		o := n.set.find(m.host)
		if o == nil || o == n || !o.mayStand() || !n.set.hears(n, o) || o.behind(n) {
			continue
		}
		if best == nil || m.priority > n.config.member(best.host).priority {
			best = o
		}
	}
	return best
}

// freeze answers replSetFreeze.
func (n *node) freeze(cmd bson.Raw) bson.D {
	secs := seconds(cmd, "replSetFreeze", 0)
	if n.role == primary {
		return failed(codeNotSecondary, "cannot freeze node when primary or running for election")
	}
	n.frozen = time.Time{}
	if secs > 0 {
		n.frozen = n.set.now.Add(secs)
	}
	return ok()
}

// resizeOplog answers replSetResizeOplog.
func (n *node) resizeOplog(cmd bson.Raw) bson.D {
	mb, isNumber := cmd.Lookup("size").AsFloat64OK()
	if v, isInt := cmd.Lookup("size").AsInt64OK(); isInt && !isNumber {
		mb, isNumber = float64(v), true
	}
	if !isNumber || mb < 990 {
		return failed(codeBadValue, "BSON field 'size' value must be >= 990")
	}
	n.oplogMB = int(mb)
	return ok()
}

// seconds reads a number of seconds of a command.
func seconds(cmd bson.Raw, field string, otherwise int64) time.Duration {
	if v, err := cmd.LookupErr(field); err == nil {
		if n, isNumber := v.AsInt64OK(); isNumber {
			otherwise = n
		}
	}
	return time.Duration(otherwise) * time.Second
}
