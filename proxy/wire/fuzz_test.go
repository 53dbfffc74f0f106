package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// seeds are messages as drivers send them.
func seeds(t testing.TB) [][]byte {
	t.Helper()
	find := marshal(t, bson.D{
		{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "limit", Value: int64(1)},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}}, {Key: "$db", Value: "d"},
	})
	insert := marshal(t, bson.D{{Key: "insert", Value: "c"}, {Key: "ordered", Value: true}, {Key: "txnNumber", Value: int64(1)}, {Key: "$db", Value: "d"}})
	doc := marshal(t, bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "a", Value: bson.A{1, "x", nil}}})
	query := AppendHeader(nil, 1, 0, OpQuery)
	query = append(query, 0, 0, 0, 0)
	query = append(query, "admin.$cmd\x00\x00\x00\x00\x00\xff\xff\xff\xff"...)
	query = append(query, marshal(t, bson.D{{Key: "isMaster", Value: 1}, {Key: "helloOk", Value: true}})...)
	SetLength(query, 0)
	out := [][]byte{
		message(find, 0, ""), message(insert, 0, "documents", doc, doc), message(insert, MoreToCome, "documents", doc),
		checksummed(message(find, ExhaustAllowed, "")), query, AppendReply(nil, 1, 2, doc),
	}
	for _, c := range []Compressor{Noop, Snappy, Zlib, Zstd} {
		packed, err := Compress(message(insert, 0, "documents", doc), c)
		require.NoError(t, err)
		out = append(out, packed)
	}
	return out
}

// FuzzReader checks that whatever a client sends,
//   - nothing panics and every error but the end of the stream is a malformed message;
//   - a message that is read has the length that it says;
//   - what is parsed points into the message;
//   - a message that is built again from its parts is read as the same parts.
func FuzzReader(f *testing.F) {
	all := []byte{}
	for _, s := range seeds(f) {
		f.Add(s)
		all = append(all, s...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			m, err := r.Next()
			if err != nil {
				ok := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrMalformed())
				require.True(t, ok, "%v", err)
				return
			}
			require.GreaterOrEqual(t, len(m.Raw), HeaderLength)
			fuzzMessage(t, m)
		}
	})
}

// fuzzMessage looks at one message that was read.
func fuzzMessage(t *testing.T, m Message) {
	t.Helper()
	if q, err := ParseQuery(m); err == nil {
		fuzzCommand(t, q.Body)
	}
	var msg Msg
	if err := ParseMsg(m, &msg); err != nil {
		require.ErrorIs(t, err, ErrMalformed())
		return
	}
	fuzzCommand(t, msg.Body)
	out := BeginMsg(nil, m.RequestID, m.ResponseTo, msg.Flags&^ChecksumPresent)
	out = append(out, msg.Body...)
	for _, s := range msg.Sequences {
		out = append(out, s.Raw...)
		for docs := s.Docs; len(docs) > 0; {
			var doc []byte
			doc, docs = NextDocument(docs)
			require.True(t, Whole(doc))
		}
	}
	SetLength(out, 0)
	again, err := NewReader(bytes.NewReader(out)).Next()
	require.NoError(t, err)
	var second Msg
	require.NoError(t, ParseMsg(again, &second))
	require.Equal(t, msg.Body, second.Body)
	require.Len(t, second.Sequences, len(msg.Sequences))
	for i := range msg.Sequences {
		require.Equal(t, msg.Sequences[i].Raw, second.Sequences[i].Raw)
	}
}

// fuzzCommand looks at one body.
func fuzzCommand(t *testing.T, body []byte) {
	t.Helper()
	var c Command
	if err := ParseCommand(body, &c); err != nil {
		require.ErrorIs(t, err, ErrMalformed())
		return
	}
	require.True(t, c.LSID == nil || len(c.LSID) == 16)
	total := 5
	for w := Walk(body); w.Next(); {
		total += len(w.Raw)
		_, _ = w.Number()
		_, _, _, _ = w.Truth(), w.Text(), w.Binary(), w.Document()
	}
	require.Equal(t, len(body), total)
}
