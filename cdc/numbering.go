package cdc

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
)

// heartbeatID is the _id of the one heartbeat document of a shard. It is
// replaced each time, so that the collection does not grow; other markers are
// inserted once under their own key.
const heartbeatID = "heartbeat"

// numbering turns a shard's changes into the records of its log. It is a pure
// function of the position it started from and the changes: whoever resumes
// from a saved position makes the same records.
type numbering struct {
	position Position
	reprieve *Reprieve // of the change that is being taken
}

// record is one value for one partition.
type record struct {
	partition int32
	value     []byte
}

// outcome is what one change comes to.
type outcome struct {
	event     *event.Event
	records   []record
	straggler chunk.PlacementID // not 0: the change should not exist
	reprieve  *Reprieve         // stragglers that are none after all
}

// boundary reports whether everything before c may be saved without c: c does
// not go on with the transaction of the change before it.
func (n *numbering) boundary(c *change) bool {
	return !n.position.Open.holds(c.session, c.event.TxnNumber)
}

// take numbers one change. token resumes after it.
func (n *numbering) take(c *change, token bson.Raw) (outcome, error) {
	p := &n.position
	if n.boundary(c) {
		p.Open = transaction{}
		if len(c.session) > 0 {
			p.Open = transaction{Session: bytes.Clone(c.session), Number: c.event.TxnNumber}
		}
	}
	e := &c.event
	p.Seq++
	e.Seq, p.Time, p.Token = p.Seq, e.ClusterTime, bytes.Clone(token)
	n.reprieve = nil

	if e.Database == chunk.SystemDatabase {
		return n.own(c)
	}
	e.Label = n.labelOf(c)
	out := outcome{event: e}
	if !e.Op.OnDocument() {
		n.forget(e)
	} else if placement, ok := n.shut(e.Database); ok && e.Label == 0 {
		out.straggler = placement
	}
	var err error
	out.records, err = n.records(e)
	return out, err
}

// own handles changes of Drover's database. Only markers go into the log.
func (n *numbering) own(c *change) (outcome, error) {
	e := &c.event
	switch e.Collection {
	case chunk.CheckpointsCollection:
		n.label(c)
	case chunk.FencesCollection:
		n.fence(c)
	case chunk.MarkersCollection:
		m, ok := n.marker(c)
		if !ok {
			break
		}
		marked := &event.Event{
			Seq: e.Seq, ClusterTime: e.ClusterTime, Wall: e.Wall, Op: event.Mark,
			Database: e.Database, Collection: e.Collection, Key: e.Key, Marker: m,
		}
		records, err := n.records(marked)
		return outcome{event: marked, records: records, reprieve: n.reprieve}, err
	}
	return outcome{event: e, reprieve: n.reprieve}, nil
}

// keepLabels is how many replicators' transactions are remembered.
const keepLabels = 64

// label marks a transaction as a replicator's: only replicators may write
// checkpoints, and a lane's transaction writes its checkpoint first.
func (n *numbering) label(c *change) {
	if len(c.session) == 0 || !c.event.Op.OnDocument() || n.labelOf(c) != 0 {
		return
	}
	id, _ := c.event.ID().StringValueOK()
	m, ok := checkpointOwner(id)
	if !ok {
		return
	}
	p := &n.position
	p.Labels = append(slices.Clone(p.Labels), transaction{Session: bytes.Clone(c.session), Number: c.event.TxnNumber, Label: m})
	p.Labels = p.Labels[max(0, len(p.Labels)-keepLabels):]
}

// labelOf gives the migration whose replicator made c, 0 for none. Transactions
// are told by session and number alone: a server may deliver others' changes in
// between.
func (n *numbering) labelOf(c *change) chunk.MigrationID {
	if len(c.session) == 0 {
		return 0
	}
	for _, t := range slices.Backward(n.position.Labels) {
		if t.holds(c.session, c.event.TxnNumber) {
			return t.Label
		}
	}
	return 0
}

// checkpointOwner parses the migration out of a checkpoint's _id, "m7/d0/p3".
func checkpointOwner(id string) (chunk.MigrationID, bool) {
	first, _, _ := strings.Cut(id, "/")
	digits, ok := strings.CutPrefix(first, "m")
	if !ok {
		return 0, false
	}
	m, err := strconv.ParseInt(digits, 10, 64)
	return chunk.MigrationID(m), err == nil && m > 0
}

// fence takes note of a fence document that opens its placement again: the
// way back of an attempt that had already written its final marker.
func (n *numbering) fence(c *change) {
	v := c.event.ID()
	id, ok := v.AsInt64OK()
	if !ok {
		return
	}
	fields := c.document
	switch c.event.Op {
	case event.Insert, event.Replace:
	case event.Update:
		fields, _ = bson.Raw(c.event.Change).Lookup("updatedFields").DocumentOK()
	default: // deleted with its placement
		n.gone(chunk.PlacementID(id))
		return
	}
	if state, _ := fields.Lookup("state").StringValueOK(); state != "open" {
		return
	}
	placement := chunk.PlacementID(id)
	opened, known := fields.Lookup("opened").AsInt64OK()
	if i := slices.IndexFunc(n.position.Closed, of(placement)); !known && i >= 0 {
		opened = int64(n.position.Closed[i].Attempt) // whoever it was: it is open
	}
	n.open(placement, chunk.AttemptID(opened))
}

// marker gives the marker that c brings, and what the position must know of it.
func (n *numbering) marker(c *change) (*chunk.Marker, bool) {
	e := &c.event
	id, _ := e.ID().StringValueOK()
	if e.Op != event.Insert && (e.Op != event.Replace || id != heartbeatID) {
		return nil, false
	}
	var m chunk.Marker
	if err := bson.Unmarshal(c.document, &m); err != nil || m.Kind == "" {
		return nil, false
	}
	p := &n.position
	switch m.Kind {
	case chunk.HeartbeatMarker:
		if log, _ := c.document.Lookup("log").StringValueOK(); log == p.Log {
			p.Round, p.Marker = m.Round, ""
		}
		return &m, true
	case chunk.FinalMarker:
		n.close(m.Placement, m.Attempt, m.Database)
	case chunk.OpenMarker:
		n.open(m.Placement, m.Attempt)
	}
	p.Marker = id
	return &m, true
}

// closedIn gives the placement that a database holds, if that is past its final
// marker. One that was adopted is known by the name that its marker brought.
func (n *numbering) closedIn(database string) (chunk.PlacementID, bool) {
	placement, named := chunk.PlacementOf(database)
	for _, c := range n.position.Closed {
		if named && c.Placement == placement || c.Database != "" && c.Database == database {
			return c.Placement, true
		}
	}
	return 0, false
}

// shut gives the placement that a database holds, if nobody may write to it: it is past
// its final marker, or was dropped. A number is never used again.
func (n *numbering) shut(database string) (chunk.PlacementID, bool) {
	if placement, ok := n.closedIn(database); ok {
		return placement, true
	}
	placement, named := chunk.PlacementOf(database)
	return placement, named && slices.Contains(n.position.Gone, int64(placement))
}

// of matches what is known of one placement.
func of(placement chunk.PlacementID) func(closed) bool {
	return func(c closed) bool { return c.Placement == placement }
}

// close takes note of a final marker. One that comes late, of an attempt that was
// overtaken or has opened the placement again, closes nothing. One of a further
// round of the same attempt takes back what was reported since the last: the lanes
// have to apply it before they pass this one.
func (n *numbering) close(placement chunk.PlacementID, a chunk.AttemptID, database string) {
	p := &n.position
	if i := slices.IndexFunc(p.Opened, of(placement)); i >= 0 && p.Opened[i].Attempt >= a {
		return
	}
	if i := slices.IndexFunc(p.Closed, of(placement)); i >= 0 && p.Closed[i].Attempt > a {
		return
	}
	n.reopen(placement, a)
	p.Closed = append(p.Closed, closed{Placement: placement, Attempt: a, Seq: p.Seq, Database: database})
}

// open takes note that attempt a lets applications onto placement.
func (n *numbering) open(placement chunk.PlacementID, a chunk.AttemptID) {
	p := &n.position
	if i := slices.IndexFunc(p.Closed, of(placement)); i >= 0 && p.Closed[i].Attempt > a {
		return // late: a newer attempt has closed it
	}
	n.reopen(placement, a)
	if i := slices.IndexFunc(p.Opened, of(placement)); i >= 0 {
		a = max(a, p.Opened[i].Attempt)
	}
	p.Opened = append(slices.DeleteFunc(slices.Clone(p.Opened), of(placement)), closed{Placement: placement, Attempt: a})
}

// reopen forgets that placement was past its final marker. What came behind the
// marker of the same attempt is no straggler: that attempt was never published with
// it, or the lanes have yet to pass a later one.
func (n *numbering) reopen(placement chunk.PlacementID, a chunk.AttemptID) {
	p := &n.position
	if i := slices.IndexFunc(p.Closed, of(placement)); i >= 0 && p.Closed[i].Attempt == a {
		n.reprieve = &Reprieve{Shard: p.Shard, Placement: placement, Attempt: a, From: p.Closed[i].Seq, To: p.Seq}
	}
	p.Closed = slices.DeleteFunc(slices.Clone(p.Closed), of(placement))
}

// gone forgets a placement that is dropped.
func (n *numbering) gone(placement chunk.PlacementID) {
	p := &n.position
	p.Closed = slices.DeleteFunc(slices.Clone(p.Closed), of(placement))
	p.Opened = slices.DeleteFunc(slices.Clone(p.Opened), of(placement))
}

// keepGone is how many placements are remembered whose databases were dropped.
const keepGone = 256 // each is in every position that is saved

// forget drops what is known of a placement whose database is dropped, but for that.
func (n *numbering) forget(e *event.Event) {
	if e.Op != "dropDatabase" {
		return
	}
	named, ok := chunk.PlacementOf(e.Database)
	if placement, closed := n.closedIn(e.Database); closed {
		n.gone(placement)
	} else if ok {
		n.gone(named)
	}
	if p := &n.position; ok && !slices.Contains(p.Gone, int64(named)) {
		p.Gone = append(slices.Clone(p.Gone), int64(named))
		p.Gone = p.Gone[max(0, len(p.Gone)-keepGone):]
	}
}

// records gives e's records: one, or for a marker and DDL one for each
// partition. Every record names the one before it in its partition.
func (n *numbering) records(e *event.Event) ([]record, error) {
	first, last := int32(0), n.position.Partitions-1
	if !e.Broadcast() {
		p, err := e.Partition(n.position.Partitions, n.position.Spread)
		if err != nil {
			return nil, err
		}
		first, last = p, p
	}
	out := make([]record, 0, last-first+1)
	for p := first; p <= last; p++ {
		e.Prev, n.position.Last[p] = n.position.Last[p], e.Seq
		if e.Op == event.Mark {
			e.Count, n.position.Counts[p] = n.position.Counts[p], 0
		} else {
			n.position.Counts[p]++
		}
		value, err := e.Encode()
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", e.Seq, err)
		}
		out = append(out, record{partition: p, value: value})
	}
	return out, nil
}
