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

	if e.Database == chunk.SystemDatabase {
		return n.own(c)
	}
	e.Label = n.labelOf(c)
	out := outcome{event: e}
	if !e.Op.OnDocument() {
		n.forget(e)
	} else if placement, ok := chunk.PlacementOf(e.Database); ok && e.Label == 0 && n.closed(placement) {
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
		return outcome{event: marked, records: records}, err
	}
	return outcome{event: e}, nil
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
	var state string
	switch c.event.Op {
	case event.Insert, event.Replace:
		state, _ = c.document.Lookup("state").StringValueOK()
	case event.Update:
		state, _ = bson.Raw(c.event.Change).Lookup("updatedFields", "state").StringValueOK()
	case event.Delete:
		state = "open"
	}
	if state == "open" {
		n.open(chunk.PlacementID(id))
	}
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
		n.open(m.Placement)
		p.Closed = append(p.Closed, closed{Placement: m.Placement, Attempt: m.Attempt})
	case chunk.OpenMarker:
		n.open(m.Placement)
	}
	p.Marker = id
	return &m, true
}

// closed reports whether placement is past its final marker.
func (n *numbering) closed(placement chunk.PlacementID) bool {
	return slices.ContainsFunc(n.position.Closed, func(c closed) bool { return c.Placement == placement })
}

// open forgets that placement was past its final marker.
func (n *numbering) open(placement chunk.PlacementID) {
	n.position.Closed = slices.DeleteFunc(slices.Clone(n.position.Closed), func(c closed) bool { return c.Placement == placement })
}

// forget drops what is known of a placement whose database is dropped.
func (n *numbering) forget(e *event.Event) {
	if placement, ok := chunk.PlacementOf(e.Database); ok && e.Op == "dropDatabase" {
		n.open(placement)
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
