package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// saboteur sits in the data path between the application and one proxy, and
// makes a few faults: that proves that the checker can fail. It knows nothing of the
// checker, nor the checker of it.
type saboteur struct {
	fault string
	proxy string
	from  time.Time     // not before
	done  *atomic.Int32 // faults made so far, by all of them

	mu     sync.Mutex
	reads  map[string][]byte // replies to finds, by filter
	behind map[string]bool   // filters whose document was written since
}

// strikes is how many faults are made: a later write of the application may mend
// what one of them spoiled.
const strikes = 40

// strike reports whether one more fault is to be made.
func (s *saboteur) strike() bool { return s.done.Add(1) <= strikes }

// startSaboteurs puts one before each proxy and gives their seed list.
func (d *demo) startSaboteurs(ctx context.Context) (string, error) {
	uri := "mongodb://"
	var done atomic.Int32
	for i, p := range d.proxies {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		s := &saboteur{
			fault: d.o.Sabotage, proxy: p, from: time.Now().Add(warmUp), done: &done,
			reads: map[string][]byte{}, behind: map[string]bool{},
		}
		d.closers = append(d.closers, func(context.Context) { _ = ln.Close() })
		go s.serve(ctx, ln)
		if i > 0 {
			uri += ","
		}
		uri += ln.Addr().String()
	}
	d.say("the data path is sabotaged: %s", d.o.Sabotage)
	return uri + "/", nil
}

func (s *saboteur) serve(ctx context.Context, ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			up, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.proxy)
			if err != nil {
				return
			}
			defer func() { _ = up.Close() }()
			_ = s.relay(c, up) // either side hung up
		}()
	}
}

// relay carries one request and its reply at a time.
func (s *saboteur) relay(c, up net.Conn) error {
	requests, replies := wire.NewReader(c), wire.NewReader(up)
	send := func(raw []byte) ([]byte, error) {
		if _, err := up.Write(raw); err != nil {
			return nil, err
		}
		m, err := replies.Next()
		return append([]byte(nil), m.Raw...), err
	}
	for {
		m, err := requests.Next()
		if err != nil {
			return err
		}
		raw := append([]byte(nil), m.Raw...)
		reply, err := s.answer(m.RequestID, raw, send)
		if err != nil {
			return err
		}
		if _, err := c.Write(reply); err != nil {
			return err
		}
	}
}

// answer sends a request on, or not, or twice.
func (s *saboteur) answer(id int32, raw []byte, send func([]byte) ([]byte, error)) ([]byte, error) {
	name, filter, increments := inspect(raw)
	due := time.Now().After(s.from)
	switch {
	case s.fault == "lose-write" && name == "update" && increments && due && s.strike():
		return reply(id, bson.D{{Key: "n", Value: int32(1)}, {Key: "nModified", Value: int32(1)}, {Key: "ok", Value: 1.0}})
	case s.fault == "double-write" && name == "update" && increments && due && s.strike():
		again, err := withoutSession(raw)
		if err != nil {
			return nil, err
		}
		if _, err := send(again); err != nil {
			return nil, err
		}
	case s.fault == "stale-read" && name == "find":
		if old := s.stale(filter, due); old != nil {
			binary.LittleEndian.PutUint32(old[8:], uint32(id)) //nolint:gosec // the same bits
			return old, nil
		}
	}
	out, err := send(raw)
	if err == nil && s.fault == "stale-read" {
		s.remember(name, filter, out)
	}
	return out, err
}

// stale gives an old reply to a find whose document was written since.
func (s *saboteur) stale(filter string, due bool) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if due && s.behind[filter] && s.reads[filter] != nil && s.strike() {
		return s.reads[filter]
	}
	return nil
}

func (s *saboteur) remember(name, filter string, out []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case name == "find" && s.reads[filter] == nil:
		s.reads[filter] = out
	case name == "update" && s.reads[filter] != nil:
		s.behind[filter] = true
	}
}

// inspect names a command, the document that it is about, and whether it is a
// single increment outside a transaction.
func inspect(raw []byte) (name, filter string, increments bool) {
	var m wire.Msg
	if !parse(raw, &m) {
		return "", "", false
	}
	elems, err := bson.Raw(m.Body).Elements()
	if err != nil || len(elems) == 0 {
		return "", "", false
	}
	name = elems[0].Key()
	if f, ok := bson.Raw(m.Body).Lookup("filter").DocumentOK(); ok {
		filter = string(f)
	}
	_, inTxn := bson.Raw(m.Body).Lookup("autocommit").BooleanOK()
	for _, q := range m.Sequences {
		doc, _ := wire.NextDocument(q.Docs)
		if f, ok := bson.Raw(doc).Lookup("q").DocumentOK(); ok {
			filter = string(f)
		}
		u, ok := bson.Raw(doc).Lookup("u").DocumentOK()
		increments = ok && !inTxn && u.Lookup("$inc").Type == bson.TypeEmbeddedDocument
	}
	return name, filter, increments
}

// parse reads an OP_MSG; anything else is false.
func parse(raw []byte, m *wire.Msg) bool {
	msg := wire.Message{Op: wire.Opcode(int32(binary.LittleEndian.Uint32(raw[12:]))), Raw: raw} //nolint:gosec // the same bits
	return msg.Op == wire.OpMsg && wire.ParseMsg(msg, m) == nil
}

// withoutSession is the same command as if another client had sent it.
func withoutSession(raw []byte) ([]byte, error) {
	var m wire.Msg
	if !parse(raw, &m) {
		return nil, errors.New("not a command")
	}
	elems, err := bson.Raw(m.Body).Elements()
	if err != nil {
		return nil, err
	}
	var body bson.D
	for _, e := range elems {
		if k := e.Key(); k != "lsid" && k != "txnNumber" {
			body = append(body, bson.E{Key: k, Value: e.Value()})
		}
	}
	doc, err := bson.Marshal(body)
	if err != nil {
		return nil, err
	}
	out := append([]byte(nil), raw[:16]...)
	out = append(out, 0, 0, 0, 0, 0)
	out = append(out, doc...)
	for _, q := range m.Sequences {
		out = append(out, q.Raw...)
	}
	binary.LittleEndian.PutUint32(out, uint32(len(out))) //nolint:gosec // below 48 MB
	return out, nil
}

// reply makes an OP_MSG out of d.
func reply(to int32, d bson.D) ([]byte, error) {
	doc, err := bson.Marshal(d)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 16, 21+len(doc))
	binary.LittleEndian.PutUint32(out[8:], uint32(to))          //nolint:gosec // the same bits
	binary.LittleEndian.PutUint32(out[12:], uint32(wire.OpMsg)) //nolint:gosec // the same bits
	out = append(out, 0, 0, 0, 0, 0)
	out = append(out, doc...)
	binary.LittleEndian.PutUint32(out, uint32(len(out))) //nolint:gosec // below 48 MB
	return out, nil
}
