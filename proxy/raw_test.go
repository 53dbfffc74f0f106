package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/proxy/wire"
)

// rawClient speaks the wire protocol by hand.
type rawClient struct {
	t  testing.TB
	nc net.Conn
	r  *wire.Reader
	id int32
}

// dialRaw connects to a proxy.
func dialRaw(t testing.TB, p *Proxy) *rawClient {
	t.Helper()
	nc, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(60*time.Second)))
	return &rawClient{t: t, nc: nc, r: wire.NewReader(nc)}
}

// encode builds a request and gives its id.
func (c *rawClient) encode(flags uint32, doc bson.D) []byte {
	c.id++
	out := wire.BeginMsg(nil, c.id, 0, flags)
	out = append(out, raw(c.t, doc)...)
	wire.SetLength(out, 0)
	return out
}

// send sends a request without waiting.
func (c *rawClient) send(flags uint32, doc bson.D) int32 {
	c.t.Helper()
	_, err := c.nc.Write(c.encode(flags, doc))
	require.NoError(c.t, err)
	return c.id
}

// read reads one reply.
func (c *rawClient) read() (responseTo int32, doc bson.Raw) {
	c.t.Helper()
	m, err := c.r.Next()
	require.NoError(c.t, err)
	var msg wire.Msg
	require.NoError(c.t, wire.ParseMsg(m, &msg))
	require.Zero(c.t, msg.Flags)
	require.NoError(c.t, bson.Raw(msg.Body).Validate())
	return m.ResponseTo, bytes.Clone(msg.Body)
}

// run sends a request and reads its reply.
func (c *rawClient) run(doc bson.D) bson.Raw {
	c.t.Helper()
	id := c.send(0, doc)
	to, reply := c.read()
	require.Equal(c.t, id, to)
	return reply
}

// ended waits for the connection's end.
func (c *rawClient) ended() {
	c.t.Helper()
	_, err := c.nc.Read(make([]byte, 1))
	require.ErrorIs(c.t, err, io.EOF)
}

func TestHandshake(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 0, 0)
	p := f.start(Config{})
	admin := bson.E{Key: "$db", Value: "admin"}

	t.Run("Mongos", func(t *testing.T) {
		for _, name := range []string{"hello", "isMaster", "ismaster"} {
			got := dialRaw(t, p).run(bson.D{{Key: name, Value: 1}, {Key: "helloOk", Value: true}, {Key: "topologyVersion", Value: bson.D{}}, {Key: "maxAwaitTimeMS", Value: 10_000}, admin})
			require.Equal(t, "isdbgrid", got.Lookup("msg").StringValue())
			require.True(t, got.Lookup("helloOk").Boolean())
			require.Equal(t, int32(30), got.Lookup("logicalSessionTimeoutMinutes").Int32())
			require.GreaterOrEqual(t, got.Lookup("maxWireVersion").Int32(), int32(17))
			for _, leak := range []string{"setName", "hosts", "me", "primary", "topologyVersion", "serviceId", "$clusterTime"} {
				require.Zero(t, got.Lookup(leak).Type, leak)
			}
		}
	})
	t.Run("LoadBalanced", func(t *testing.T) {
		got := dialRaw(t, p).run(bson.D{{Key: "hello", Value: 1}, {Key: "loadBalanced", Value: true}, admin})
		require.InDelta(t, 0, got.Lookup("ok").Double(), 0)
		require.Contains(t, got.Lookup("errmsg").StringValue(), "loadBalanced")

		c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + p.Addr() + "/?loadBalanced=true"))
		require.NoError(t, err)
		defer func() { _ = c.Disconnect(t.Context()) }()
		require.ErrorContains(t, c.Ping(t.Context(), nil), "loadBalanced")
	})
	t.Run("OldClient", func(t *testing.T) {
		c := dialRaw(t, p)
		for name, doc := range map[string]bson.D{
			"isMaster": {{Key: "isMaster", Value: 1}},
			"wrapped":  {{Key: "$query", Value: bson.D{{Key: "ismaster", Value: 1}}}},
			"find":     {{Key: "find", Value: "x"}},
		} {
			b := wire.AppendHeader(nil, 9, 0, wire.OpQuery)
			b = append(b, 0, 0, 0, 0)
			b = append(b, "admin.$cmd\x00\x00\x00\x00\x00\xff\xff\xff\xff"...)
			b = append(b, raw(t, doc)...)
			wire.SetLength(b, 0)
			_, err := c.nc.Write(b)
			require.NoError(t, err)
			m, err := c.r.Next()
			require.NoError(t, err)
			require.Equal(t, wire.OpReply, m.Op)
			require.Equal(t, int32(9), m.ResponseTo)
			got := bson.Raw(m.Body()[20:])
			require.NoError(t, got.Validate())
			if name == "find" {
				require.Equal(t, int32(352), got.Lookup("code").Int32())
				continue
			}
			require.Equal(t, "isdbgrid", got.Lookup("msg").StringValue())
		}
	})
}

func TestProbes(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 0, 0)
	p := f.start(Config{})
	admin := bson.E{Key: "$db", Value: "admin"}

	t.Run("Compression", func(t *testing.T) {
		c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + p.Addr() + "/?compressors=zstd,snappy"))
		require.NoError(t, err)
		defer func() { _ = c.Disconnect(t.Context()) }()
		require.NoError(t, c.Ping(t.Context(), nil))
		got := dialRaw(t, p).run(bson.D{{Key: "hello", Value: 1}, {Key: "compression", Value: bson.A{"zlib", "lzma"}}, admin})
		require.JSONEq(t, `["zlib"]`, got.Lookup("compression").Array().String())
	})
	t.Run("Probes", func(t *testing.T) {
		c := dialRaw(t, p)
		for _, name := range []string{"ping", "buildInfo", "buildinfo", "connectionStatus", "whatsmyuri", "getCmdLineOpts", "listDatabases", "startSession", "hostInfo", "serverStatus"} {
			require.InDelta(t, 1, c.run(bson.D{{Key: name, Value: 1}, admin}).Lookup("ok").Double(), 0, name)
		}
		require.InDelta(t, 1, c.run(bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}, admin}).Lookup("ok").Double(), 0)
		got := c.run(bson.D{{Key: "atlasVersion", Value: 1}, admin})
		require.Equal(t, int32(59), got.Lookup("code").Int32())
		require.Equal(t, "CommandNotFound", got.Lookup("codeName").StringValue())
		got = c.run(bson.D{{Key: "saslStart", Value: 1}, admin})
		require.Equal(t, int32(18), got.Lookup("code").Int32())
		got = c.run(bson.D{{Key: "find", Value: "my_admin_log"}, {Key: "$db", Value: "nowhere"}})
		require.Equal(t, "nowhere.my_admin_log", got.Lookup("cursor", "ns").StringValue())
		got = c.run(bson.D{{Key: "insert", Value: "x"}, {Key: "documents", Value: bson.A{bson.D{}}}, {Key: "$db", Value: "nowhere"}})
		require.Equal(t, int32(26), got.Lookup("code").Int32())
	})
}

// A malformed message costs its connection and nothing else.
func TestMalformedCostsItsConnection(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 0, 0)
	p := f.start(Config{})
	good := dialRaw(t, p)
	ping := bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}
	for name, b := range map[string][]byte{
		"length": {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"opcode": {16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xd2, 7, 0, 0},
		"empty":  {16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0},
		"http":   []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
	} {
		bad := dialRaw(t, p)
		_, err := bad.nc.Write(b)
		require.NoError(t, err)
		bad.ended()
		require.InDelta(t, 1, good.run(ping).Lookup("ok").Double(), 0, name)
	}
}

func TestChecksum(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 0, 0)
	p := f.start(Config{})
	c := dialRaw(t, p)
	msg := c.encode(wire.ChecksumPresent, bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
	binary.LittleEndian.PutUint32(msg, uint32(len(msg)+4))
	sum := crc32.Checksum(msg, crc32.MakeTable(crc32.Castagnoli))
	good := binary.LittleEndian.AppendUint32(bytes.Clone(msg), sum)
	_, err := c.nc.Write(good)
	require.NoError(t, err)
	_, reply := c.read()
	require.InDelta(t, 1, reply.Lookup("ok").Double(), 0)
	_, err = c.nc.Write(binary.LittleEndian.AppendUint32(bytes.Clone(msg), sum+1))
	require.NoError(t, err)
	c.ended()
}

// Requests that come before their turn are answered in order.
func TestPipelined(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 0, 0)
	p := f.start(Config{})
	c := dialRaw(t, p)
	var all []byte
	for range 50 {
		all = append(all, c.encode(0, bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})...)
	}
	_, err := c.nc.Write(all)
	require.NoError(t, err)
	for i := range int32(50) {
		to, _ := c.read()
		require.Equal(t, i+1, to)
	}
}

// A panic costs one connection.
func TestPanicCostsItsConnection(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 3)
	p := New(Config{ID: "proxy-1"}, f.ports())
	p.commands["panicForTest"] = &command{metrics: p.metrics.command("panicForTest"), run: func(_ context.Context, p *Proxy, _ *request) error {
		p.parallel(p.routing.all(), func(i int) {
			if i == 1 {
				panic("for a test")
			}
		})
		return nil
	}}
	f.run(p)
	good, bad := dialRaw(t, p), dialRaw(t, p)
	bad.send(0, bson.D{{Key: "panicForTest", Value: 1}, {Key: "$db", Value: "admin"}})
	bad.ended()
	require.InDelta(t, 1, good.run(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}).Lookup("ok").Double(), 0)
}

// dialed remembers the addresses that a driver dials.
type dialed struct {
	mu  sync.Mutex
	all map[string]bool
}

// DialContext implements the driver's dialer.
func (d *dialed) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d.mu.Lock()
	d.all[address] = true
	d.mu.Unlock()
	return (&net.Dialer{}).DialContext(ctx, network, address)
}
