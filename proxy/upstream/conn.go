package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/socket"
	"drover/proxy/wire"
)

// BrokenError is a connection that died. Sent says whether any part of the
// request may have reached the shard: only then may it have run.
type BrokenError struct {
	Shard string
	Sent  bool
	err   error
}

func (e *BrokenError) Error() string {
	if e.Sent {
		return fmt.Sprintf("connection to %s lost, outcome unknown: %v", e.Shard, e.err)
	}
	return fmt.Sprintf("%s cannot be reached: %v", e.Shard, e.err)
}

// Unwrap gives the cause.
func (e *BrokenError) Unwrap() error { return e.err }

// Ran reports whether err leaves open whether a request ran.
func Ran(err error) bool {
	broken, ok := errors.AsType[*BrokenError](err)
	return ok && broken.Sent
}

// Conn is one authenticated connection to a shard's primary. One goroutine
// uses it at a time.
type Conn struct {
	pool       *Pool
	nc         net.Conn
	reader     *wire.Reader
	generation uint64
	idleSince  time.Time
	lastID     int32
	broken     bool
	limited    atomic.Bool // a deadline is set on nc
	hello      helloReply

	// Out is scratch for the request that is being built.
	Out []byte
}

// helloReply is what a member says about itself.
type helloReply struct {
	Primary        bool          `bson:"isWritablePrimary"`
	Me             string        `bson:"me"`
	PrimaryHost    string        `bson:"primary"`
	Hosts          []string      `bson:"hosts"`
	SetName        string        `bson:"setName"`
	Msg            string        `bson:"msg"`
	SetVersion     int64         `bson:"setVersion"`
	ElectionID     bson.ObjectID `bson:"electionId"`
	MinWireVersion int32         `bson:"minWireVersion"`
	MaxWireVersion int32         `bson:"maxWireVersion"`
	OK             float64       `bson:"ok"`
	ErrMsg         string        `bson:"errmsg"`
}

// errRouter keeps proxies from being chained: a request takes one hop, to the member
// that has the data.
var errRouter = errors.New("it is a proxy or a mongos, and no member of a shard")

// dial connects to host and shakes hands, without authenticating.
func dial(ctx context.Context, cfg *Config, host string) (*Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.DialTimeout, errDialTimeout)
	defer cancel()

	dialer := net.Dialer{KeepAlive: 30 * time.Second}
	nc, err := dialer.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", host, err)
	}
	nc = socket.Wrap(nc)
	if cfg.TLS != nil {
		tc := cfg.TLS()
		if tc.ServerName == "" {
			tc.ServerName, _, _ = net.SplitHostPort(host)
		}
		nc = tls.Client(nc, tc)
	}
	c := &Conn{nc: nc, reader: wire.NewReader(nc)}
	raw, err := c.command(ctx, bson.D{
		{Key: "hello", Value: 1},
		{Key: "client", Value: bson.D{
			{Key: "application", Value: bson.D{{Key: "name", Value: cfg.AppName}}},
			{Key: "driver", Value: bson.D{{Key: "name", Value: "drover"}, {Key: "version", Value: "1"}}},
			{Key: "os", Value: bson.D{{Key: "type", Value: "unknown"}}},
		}},
		{Key: "$db", Value: "admin"},
	})
	if err == nil {
		err = bson.Unmarshal(raw, &c.hello)
	}
	if err == nil && c.hello.OK != 1 {
		err = errors.New(c.hello.ErrMsg)
	}
	if err == nil && c.hello.Msg == "isdbgrid" {
		err = errRouter
	}
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("hello of %s: %w", host, err)
	}
	return c, nil
}

// command runs one small command of our own; doc ends with $db.
func (c *Conn) command(ctx context.Context, doc bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", doc[0].Key, err)
	}
	return c.Command(ctx, body)
}

// Command runs one command whose body is complete and gives a copy of the
// reply. It is for rare commands of our own.
func (c *Conn) Command(ctx context.Context, body []byte) (bson.Raw, error) {
	deadline, _ := ctx.Deadline()
	stop := context.AfterFunc(ctx, c.interrupt)
	defer stop()

	c.Begin()
	c.Out = append(c.Out, body...)
	reply, err := c.Exchange(deadline)
	if err != nil {
		return nil, err
	}
	return bson.Raw(append([]byte(nil), reply...)), nil
}

// Break gives the connection up: nobody knows what it carries.
func (c *Conn) Break() {
	c.broken = true
	c.Release()
}

// interrupt makes the current read or write fail.
func (c *Conn) interrupt() {
	_ = c.nc.SetDeadline(time.Unix(1, 0))
	c.limited.Store(true) // after it: whoever sees it sets another deadline
}

// Begin starts a request in Out: header, flags and the kind of the body section
// stand there; the caller appends the body and perhaps sequences.
func (c *Conn) Begin() {
	c.lastID++
	c.Out = wire.BeginMsg(c.Out[:0], c.lastID, 0, 0)
}

// keptScratch bounds the scratch that an idle connection keeps.
const keptScratch = 256 * 1024

// Exchange sends what Out holds, followed by tail, and reads the reply's body,
// which is valid until the connection is used again or released. A zero
// deadline is none.
func (c *Conn) Exchange(deadline time.Time, tail ...[]byte) (bson.Raw, error) {
	// Interrupt sets a deadline of its own, which the next one must replace.
	if !deadline.IsZero() || c.limited.Swap(false) {
		c.limited.Store(!deadline.IsZero())
		if err := c.nc.SetDeadline(deadline); err != nil {
			return nil, c.fail(false, err)
		}
	}
	extra := 0
	for _, t := range tail {
		extra += len(t)
	}
	wire.SetLength(c.Out, extra)
	if err := c.send(tail, extra); err != nil {
		return nil, c.fail(true, err)
	}
	m, err := c.reader.Next()
	if err != nil {
		return nil, c.fail(true, err)
	}
	if m.ResponseTo != c.lastID {
		return nil, c.fail(true, fmt.Errorf("reply to %d, asked %d", m.ResponseTo, c.lastID))
	}
	var msg wire.Msg
	if err := wire.ParseMsg(m, &msg); err != nil {
		return nil, c.fail(true, err)
	}
	if msg.Flags&wire.MoreToCome != 0 {
		return nil, c.fail(true, errors.New("reply announces another one"))
	}
	return msg.Body, nil
}

// copiedTail is the most bytes of tails that are copied behind Out: one write of it all
// costs less than one of pieces.
const copiedTail = 16 * 1024

// send writes Out and tail, which has size bytes; a large one is not copied.
func (c *Conn) send(tail [][]byte, size int) error {
	if size > copiedTail {
		buffers := make(net.Buffers, 0, len(tail)+1)
		buffers = append(buffers, c.Out)
		buffers = append(buffers, tail...)
		_, err := buffers.WriteTo(c.nc)
		return err //nolint:wrapcheck // wrapped by fail
	}
	for _, t := range tail {
		c.Out = append(c.Out, t...)
	}
	_, err := c.nc.Write(c.Out)
	return err //nolint:wrapcheck // wrapped by fail
}

// fail marks the connection as unusable.
func (c *Conn) fail(sent bool, err error) error {
	c.broken = true
	shard := ""
	if c.pool != nil {
		shard = c.pool.cfg.Name
	}
	return &BrokenError{Shard: shard, Sent: sent, err: err}
}

// versions keeps the wire versions that a shard's primary last named.
type versions struct{ minWire, maxWire atomic.Int32 }
