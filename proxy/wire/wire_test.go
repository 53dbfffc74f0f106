package wire

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// marshal encodes a document.
func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := bson.Marshal(v)
	require.NoError(t, err)
	return b
}

// message builds an OP_MSG of a body and perhaps one sequence.
func message(body []byte, flags uint32, name string, docs ...[]byte) []byte {
	out := BeginMsg(nil, 7, 0, flags)
	out = append(out, body...)
	if name != "" {
		at, next := BeginSequence(out, name)
		for _, d := range docs {
			next = append(next, d...)
		}
		EndSequence(next, at, 0)
		out = next
	}
	SetLength(out, 0)
	return out
}

// checksummed adds a checksum.
func checksummed(msg []byte) []byte {
	out := bytes.Clone(msg)
	out[HeaderLength] |= byte(ChecksumPresent)
	binary.LittleEndian.PutUint32(out, uint32(len(out)+4))
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// read reads one message and parses it.
func read(t testing.TB, b []byte) (Msg, error) {
	t.Helper()
	m, err := NewReader(bytes.NewReader(b)).Next()
	if err != nil {
		return Msg{}, err
	}
	var out Msg
	err = ParseMsg(m, &out)
	return out, err
}

func TestMessage(t *testing.T) {
	t.Parallel()

	body := marshal(t, bson.D{{Key: "insert", Value: "c"}, {Key: "$db", Value: "d"}})
	doc := marshal(t, bson.D{{Key: "_id", Value: 1}})

	t.Run("BodyAndSequence", func(t *testing.T) {
		t.Parallel()
		m, err := read(t, message(body, MoreToCome, "documents", doc, doc))
		require.NoError(t, err)
		require.Equal(t, MoreToCome, m.Flags)
		require.Equal(t, body, m.Body)
		require.Equal(t, "documents", string(m.Sequences[0].Name))
		first, rest := NextDocument(m.Sequences[0].Docs)
		require.Equal(t, doc, first)
		require.Equal(t, doc, rest)
	})
	t.Run("SequenceBeforeBody", func(t *testing.T) {
		t.Parallel()
		out := AppendHeader(nil, 1, 0, OpMsg)
		out = append(out, 0, 0, 0, 0)
		at, out := BeginSequence(out, "documents")
		out = append(out, doc...)
		EndSequence(out, at, 0)
		out = append(append(out, 0), body...)
		SetLength(out, 0)
		m, err := read(t, out)
		require.NoError(t, err)
		require.Equal(t, body, m.Body)
		require.Len(t, m.Sequences, 1)
	})
	t.Run("Checksum", func(t *testing.T) {
		t.Parallel()
		good := checksummed(message(body, 0, "documents", doc))
		m, err := read(t, good)
		require.NoError(t, err)
		require.Equal(t, body, m.Body)
		for i := HeaderLength + 1; i < len(good); i++ {
			bad := bytes.Clone(good)
			bad[i] ^= 1
			_, err := read(t, bad)
			require.ErrorIs(t, err, ErrMalformed(), "byte %d", i)
		}
		// 16 header, 4 flags, 1 kind, 5 body, 4 checksum is the shortest there is.
		_, err = read(t, checksummed(message([]byte{5, 0, 0, 0, 0}, 0, "")))
		require.NoError(t, err)
	})
}

func TestMessageRefused(t *testing.T) {
	t.Parallel()

	body := marshal(t, bson.D{{Key: "insert", Value: "c"}, {Key: "$db", Value: "d"}})
	doc := marshal(t, bson.D{{Key: "_id", Value: 1}})

	t.Run("Form", func(t *testing.T) {
		t.Parallel()
		twice := message(body, 0, "documents", doc)
		twice = append(twice, twice[HeaderLength+5+len(body):]...)
		SetLength(twice, 0)
		bodies := append(append(message(body, 0, ""), 0), body...)
		SetLength(bodies, 0)
		kind := message(body, 0, "")
		kind[HeaderLength+4] = 2
		nobody := AppendHeader(nil, 1, 0, OpMsg)
		nobody = append(nobody, 0, 0, 0, 0)
		SetLength(nobody, 0)
		for name, b := range map[string][]byte{
			"two sequences of one name": twice, "two bodies": bodies, "kind 2": kind, "no body": nobody,
			"unknown required flag":  message(body, 1<<2, ""),
			"body without its end":   append(message(body[:len(body)-1], 0, ""), 1),
			"checksum without bytes": message(nil, ChecksumPresent, ""),
		} {
			_, err := read(t, b)
			require.ErrorIs(t, err, ErrMalformed(), name)
		}
	})
	t.Run("Length", func(t *testing.T) {
		t.Parallel()
		for _, n := range []int32{-1, 0, 15, MaxMessage + 1} {
			b := message(body, 0, "")
			binary.LittleEndian.PutUint32(b, uint32(n))
			_, err := read(t, b)
			require.ErrorIs(t, err, ErrMalformed(), "%d", n)
		}
		b := message(body, 0, "")
		_, err := read(t, b[:len(b)-1])
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		_, err = read(t, b[:3])
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		_, err = read(t, nil)
		require.ErrorIs(t, err, io.EOF)
	})
}

// A length of 48 MB that is followed by nothing must not take 48 MB.
func TestLengthAloneCostsNothing(t *testing.T) {
	t.Parallel()

	b := AppendHeader(nil, 1, 0, OpMsg)
	binary.LittleEndian.PutUint32(b, MaxMessage)
	r := NewReader(bytes.NewReader(b))
	_, err := r.Next()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.LessOrEqual(t, cap(r.buf), firstAllotment)
}

func TestLargeMessage(t *testing.T) {
	t.Parallel()

	doc := marshal(t, bson.D{{Key: "x", Value: strings.Repeat("x", 1<<20)}})
	b := message([]byte{5, 0, 0, 0, 0}, 0, "documents", doc, doc, doc)
	r := NewReader(io.MultiReader(bytes.NewReader(b), bytes.NewReader(message(doc, 0, ""))))
	m, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, b, m.Raw)
	m, err = r.Next()
	require.NoError(t, err)
	require.Equal(t, message(doc, 0, ""), m.Raw)
}

func TestCompressed(t *testing.T) {
	t.Parallel()

	plain := message(marshal(t, bson.D{{Key: "ping", Value: strings.Repeat("x", 1000)}}), 0, "")
	for _, c := range []Compressor{Noop, Snappy, Zlib, Zstd} {
		packed, err := Compress(plain, c)
		require.NoError(t, err)
		m, err := NewReader(bytes.NewReader(packed)).Next()
		require.NoError(t, err)
		require.Equal(t, c, m.Compressor)
		require.Equal(t, plain, m.Raw)

		for _, size := range []uint32{0, uint32(len(plain) - HeaderLength - 1), uint32(len(plain) - HeaderLength + 1), MaxMessage, 1 << 31} {
			lying := bytes.Clone(packed)
			binary.LittleEndian.PutUint32(lying[HeaderLength+4:], size)
			_, err = NewReader(bytes.NewReader(lying)).Next()
			require.ErrorIs(t, err, ErrMalformed(), "%d says %d", c, size)
		}
	}
	nested, err := Compress(plain, Noop)
	require.NoError(t, err)
	nested, err = Compress(nested, Noop)
	require.NoError(t, err)
	_, err = NewReader(bytes.NewReader(nested)).Next()
	require.ErrorIs(t, err, ErrMalformed())
}

func TestCommand(t *testing.T) {
	t.Parallel()

	id := bytes.Repeat([]byte{7}, 16)
	var c Command
	require.NoError(t, ParseCommand(marshal(t, bson.D{
		{Key: "find", Value: "my_admin_log"}, {Key: "filter", Value: bson.D{{Key: "$db", Value: "inner"}}},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id}}}},
		{Key: "txnNumber", Value: int64(3)}, {Key: "autocommit", Value: false}, {Key: "startTransaction", Value: true},
		{Key: "maxTimeMS", Value: 50.0}, {Key: "comment", Value: "hi"}, {Key: "$db", Value: "d"},
	}), &c))
	require.Equal(t, "find", string(c.Name))
	require.Equal(t, "my_admin_log", string(c.Collection()))
	require.Equal(t, "d", string(c.DB))
	require.Equal(t, id, c.LSID)
	require.True(t, c.HasTxnNumber && c.Transaction && c.Start)
	require.Equal(t, int64(3), c.TxnNumber)
	require.Equal(t, int64(50), c.MaxTimeMS)
	require.Equal(t, bson.TypeString, c.Comment.Type)

	require.NoError(t, ParseCommand(marshal(t, bson.D{{Key: "aggregate", Value: 1}}), &c))
	require.Nil(t, c.Collection())
	for name, doc := range map[string]bson.D{
		"empty":             {},
		"two $db":           {{Key: "ping", Value: 1}, {Key: "$db", Value: "a"}, {Key: "$db", Value: "b"}},
		"two lsid":          {{Key: "ping", Value: 1}, {Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Data: id}}}}, {Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Data: id}}}}},
		"$db no string":     {{Key: "ping", Value: 1}, {Key: "$db", Value: 1}},
		"short lsid":        {{Key: "ping", Value: 1}, {Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Data: id[1:]}}}}},
		"negative txn":      {{Key: "ping", Value: 1}, {Key: "txnNumber", Value: -1}},
		"txn not a number":  {{Key: "ping", Value: 1}, {Key: "txnNumber", Value: "1"}},
		"lsid not document": {{Key: "ping", Value: 1}, {Key: "lsid", Value: 1}},
	} {
		require.ErrorIs(t, ParseCommand(marshal(t, doc), &c), ErrMalformed(), name)
	}
}

func TestQuery(t *testing.T) {
	t.Parallel()

	build := func(ns string, doc []byte) Message {
		b := AppendHeader(nil, 1, 0, OpQuery)
		b = append(b, 0, 0, 0, 0)
		b = append(append(b, ns...), 0)
		b = append(b, make([]byte, 8)...)
		b = append(b, doc...)
		SetLength(b, 0)
		m, err := NewReader(bytes.NewReader(b)).Next()
		require.NoError(t, err)
		return m
	}
	inner := marshal(t, bson.D{{Key: "isMaster", Value: 1}})
	q, err := ParseQuery(build("admin.$cmd", inner))
	require.NoError(t, err)
	require.Equal(t, "admin", string(q.Database))
	require.Equal(t, inner, q.Body)
	q, err = ParseQuery(build("admin.$cmd", marshal(t, bson.D{{Key: "$query", Value: bson.Raw(inner)}})))
	require.NoError(t, err)
	require.Equal(t, inner, q.Body)
	for _, ns := range []string{"admin.system", "$cmd", ""} {
		_, err = ParseQuery(build(ns, inner))
		require.ErrorIs(t, err, ErrMalformed(), ns)
	}
}

func TestWalkEveryType(t *testing.T) {
	t.Parallel()

	doc := marshal(t, bson.D{
		{Key: "double", Value: 1.5}, {Key: "string", Value: "a\x00b"}, {Key: "doc", Value: bson.D{{Key: "x", Value: 1}}},
		{Key: "array", Value: bson.A{1, "2"}}, {Key: "binary", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
		{Key: "undefined", Value: bson.Undefined{}}, {Key: "oid", Value: bson.NewObjectID()}, {Key: "bool", Value: true},
		{Key: "date", Value: bson.DateTime(1)}, {Key: "null", Value: nil}, {Key: "regex", Value: bson.Regex{Pattern: "a", Options: "i"}},
		{Key: "pointer", Value: bson.DBPointer{DB: "d", Pointer: bson.NewObjectID()}}, {Key: "code", Value: bson.JavaScript("x")},
		{Key: "symbol", Value: bson.Symbol("s")}, {Key: "scope", Value: bson.CodeWithScope{Code: "x", Scope: bson.D{}}},
		{Key: "int32", Value: int32(1)}, {Key: "timestamp", Value: bson.Timestamp{T: 1}}, {Key: "int64", Value: int64(1)},
		{Key: "decimal", Value: bson.NewDecimal128(1, 2)}, {Key: "min", Value: bson.MinKey{}}, {Key: "max", Value: bson.MaxKey{}},
	})
	want, err := bson.Raw(doc).Elements()
	require.NoError(t, err)
	w := Walk(doc)
	for _, e := range want {
		require.True(t, w.Next())
		require.Equal(t, []byte(e), w.Raw)
		require.Equal(t, e.Key(), string(w.Key))
		require.Equal(t, e.Value().Value, w.Value)
	}
	require.False(t, w.Next())
	require.NoError(t, w.Err())
	for i := range doc {
		cut := bytes.Clone(doc[:i])
		if i >= 4 {
			binary.LittleEndian.PutUint32(cut, uint32(i))
		}
		w := Walk(cut)
		for w.Next() {
		}
		require.Error(t, w.Err(), "%d of %d bytes", i, len(doc))
	}
}

// What is nested too deeply is found wherever it is, also behind a part that is broken.
func TestDeep(t *testing.T) {
	t.Parallel()

	deep := func(levels int) bson.D {
		doc := bson.D{}
		for range levels {
			doc = bson.D{{Key: "a", Value: bson.A{1, "x", doc, nil}}, {Key: "b", Value: 2}}
		}
		return doc
	}
	encode := func(doc bson.D) []byte {
		b, err := bson.Marshal(doc)
		require.NoError(t, err)
		return b
	}
	require.False(t, Deep(encode(bson.D{{Key: "v", Value: bson.A{deep(90), deep(95), make([]byte, 5000)}}})))
	require.True(t, Deep(encode(bson.D{{Key: "v", Value: bson.A{deep(90), deep(105), 1}}})))
	broken := encode(bson.D{{Key: "v", Value: bson.A{bson.D{{Key: "x", Value: "text"}}, deep(105)}}})
	at := bytes.Index(broken, []byte("text"))
	broken[at-4] = 99 // the string's length
	require.True(t, Deep(broken))
	require.False(t, Deep([]byte{1, 2, 3}))
}
