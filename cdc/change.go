package cdc

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
)

// change is a change event taken apart, its documents still raw.
type change struct {
	event    event.Event
	session  []byte // lsid's id and uid, empty outside transactions
	numbered bool   // txnNumber is there
	document bson.Raw
	raw      bson.Raw
}

// parseChange takes a change event apart. It reads the envelope only: what
// stands in documents is never looked into.
func parseChange(raw bson.Raw) (change, error) {
	c := change{raw: raw}
	elements, err := raw.Elements()
	if err != nil {
		return c, fmt.Errorf("read change event: %w", err)
	}
	for _, el := range elements {
		if err := c.field(el.Key(), el.Value()); err != nil {
			return c, fmt.Errorf("read %s of change event: %w", el.Key(), err)
		}
	}
	e := &c.event
	if !c.numbered { // a session without a transaction
		c.session = nil
	}
	if e.Op == "" || e.ClusterTime.IsZero() {
		return c, fmt.Errorf("change event lacks operationType or clusterTime")
	}
	if e.Op.OnDocument() && (len(e.Key) == 0 || e.Database == "" || e.Collection == "") {
		return c, fmt.Errorf("%s event lacks documentKey or ns", e.Op)
	}
	if !e.Op.OnDocument() {
		e.Description = raw
	}
	if e.Wall.IsZero() {
		e.Wall = time.Unix(int64(e.ClusterTime.T), 0)
	}
	return c, nil
}

// field takes one field of the envelope. What it does not know stays in raw.
func (c *change) field(key string, v bson.RawValue) error {
	e := &c.event
	var ok bool
	switch key {
	case "operationType":
		var op string
		op, ok = v.StringValueOK()
		e.Op = event.Op(op)
	case "clusterTime":
		e.ClusterTime.T, e.ClusterTime.I, ok = v.TimestampOK()
	case "wallTime":
		e.Wall, ok = v.TimeOK()
	case "ns":
		ok = c.namespace(v)
	case "documentKey":
		e.Key, ok = documentOf(v)
	case "fullDocument":
		c.document, ok = documentOf(v)
		e.Document = c.document
	case "updateDescription":
		e.Change, ok = documentOf(v)
	case "collectionUUID":
		_, e.CollectionUUID, ok = v.BinaryOK()
	case "lsid":
		e.Session, ok = documentOf(v)
		c.session = sessionKey(e.Session)
	case "txnNumber":
		e.TxnNumber, ok = v.AsInt64OK()
		c.numbered = ok
	default:
		return nil
	}
	if !ok && v.Type != bson.TypeNull {
		return fmt.Errorf("unexpected type %s", v.Type)
	}
	return nil
}

// namespace takes ns; events on a whole database have no coll.
func (c *change) namespace(v bson.RawValue) bool {
	ns, ok := v.DocumentOK()
	if !ok {
		return false
	}
	c.event.Database, _ = ns.Lookup("db").StringValueOK()
	c.event.Collection, _ = ns.Lookup("coll").StringValueOK()
	return true
}

// documentOf gives a document's bytes, nil for any other type.
func documentOf(v bson.RawValue) (bson.Raw, bool) {
	d, ok := v.DocumentOK()
	return d, ok
}

// sessionKey joins lsid.id and lsid.uid: together they name a session whatever
// the order of the fields.
func sessionKey(lsid bson.Raw) []byte {
	_, id, ok := lsid.Lookup("id").BinaryOK()
	if !ok {
		return nil
	}
	_, uid, _ := lsid.Lookup("uid").BinaryOK()
	return append(append(make([]byte, 0, len(id)+len(uid)), id...), uid...)
}
