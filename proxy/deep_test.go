package proxy

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// nested gives a document that holds itself so many times: {name: {name: ...}}, or in
// arrays {name: [{name: ...}]}.
func nested(name string, array bool, levels int) []byte {
	each := 4 + 1 + len(name) + 1 + 1 // length, type, name with its end, end
	if array {
		each += 4 + 1 + 2 + 1
	}
	length := func(level int) uint32 { return uint32(5 + each*level) }
	dst := make([]byte, 0, length(levels))
	for level := levels; level > 0; level-- {
		dst = binary.LittleEndian.AppendUint32(dst, length(level))
		if array {
			dst = append(append(append(dst, byte(bson.TypeArray)), name...), 0)
			dst = binary.LittleEndian.AppendUint32(dst, length(level-1)+8)
			dst = append(dst, byte(bson.TypeEmbeddedDocument), '0', 0)
			continue
		}
		dst = append(append(append(dst, byte(bson.TypeEmbeddedDocument)), name...), 0)
	}
	dst = append(dst, emptyDocument...)
	for range levels {
		if array {
			dst = append(dst, 0)
		}
		dst = append(dst, 0)
	}
	return dst
}

// A document may be nested as deeply as its bytes allow. What looked into it level by level
// took stack for each, up to where Go ends the process, with everybody's connections.
func TestDeepDocumentsCostNothing(t *testing.T) {
	t.Parallel()

	f, a, b := newScripted(t, 2, func(*sent) bson.D { return bson.D{{Key: "n", Value: 1}} })
	p := f.start(Config{})
	const most = wire.MaxDocument - 4096
	and, key := nested("$and", true, most/19), nested("origin", false, most/13)
	told := func(command, field string, sections ...[]byte) code {
		c := dialRaw(t, p)
		msg := append(wire.BeginMsg(nil, 1, 0, 0), document(func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, command, "legs")
			if field != "" {
				dst = bsoncore.AppendDocumentElement(dst, field, sections[0])
				sections = nil
			}
			dst = bsoncore.AppendDocumentElement(dst, "sort", raw(t, bson.D{{Key: "a", Value: 1}}))
			return bsoncore.AppendStringElement(dst, "$db", testDatabase)
		})...)
		for _, s := range sections {
			msg = append(msg, s...)
		}
		wire.SetLength(msg, 0)
		_, err := c.nc.Write(msg)
		require.NoError(t, err)
		_, got := c.read()
		return codeOf(got)
	}
	statement := func(name string, field string, deep []byte) []byte {
		at, section := wire.BeginSequence(nil, name)
		section = append(section, document(func(dst []byte) []byte { return bsoncore.AppendDocumentElement(dst, field, deep) })...)
		wire.EndSequence(section, at, 0)
		return section
	}
	require.Equal(t, codeOverflow, told("find", "filter", and))
	require.Equal(t, codeOverflow, told("find", "filter", nested("$or", true, most/18)))
	require.Equal(t, codeOverflow, told("find", "projection", nested("a", false, most/8)))
	require.Equal(t, codeOverflow, told("count", "query", key))
	require.Equal(t, codeOverflow, told("update", "", statement("updates", "q", and)))
	require.Equal(t, codeOverflow, told("delete", "", statement("deletes", "q", and)))
	require.Empty(t, append(a.commands(), b.commands()...))
	require.Equal(t, code(-1), told("insert", "", statement("documents", "x", and)), "no error: the shard is asked")
	require.Equal(t, int64(1), numberAt(dialRaw(t, p).run(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}), "ok"))
}
