package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Query is the view of an OP_QUERY: what old clients begin a connection with.
type Query struct {
	Database []byte
	Body     []byte // the command, unwrapped from $query
}

// ParseQuery reads a command that came as OP_QUERY on "<database>.$cmd".
func ParseQuery(m Message) (Query, error) {
	b := m.Body()
	if m.Op != OpQuery || len(b) < 4 {
		return Query{}, fmt.Errorf("opcode %d of %d bytes: %w", m.Op, len(b), errMalformed)
	}
	b = b[4:] // flags mean nothing to a command
	end := bytes.IndexByte(b, 0)
	if end < 0 || len(b) < end+1+8 {
		return Query{}, fmt.Errorf("namespace of a query: %w", errMalformed)
	}
	database, ok := bytes.CutSuffix(b[:end], []byte(".$cmd"))
	if !ok {
		return Query{}, fmt.Errorf("query of a collection: %w", errMalformed)
	}
	b = b[end+1+8:]
	n := prefixed(b, 0, 5)
	if n < 0 || n > maxCommand || !Whole(b[:n]) {
		return Query{}, fmt.Errorf("document of a query: %w", errMalformed)
	}
	q := Query{Database: database, Body: b[:n:n]}
	for _, wrapper := range []string{"$query", "query"} {
		if e, found := Find(q.Body, wrapper); found && e.Document() != nil {
			q.Body = e.Document()
		}
	}
	return q, nil
}

// AppendReply appends a whole OP_REPLY with one document.
func AppendReply(dst []byte, requestID, responseTo int32, doc []byte) []byte {
	at := len(dst)
	dst = AppendHeader(dst, requestID, responseTo, OpReply)
	dst = binary.LittleEndian.AppendUint32(dst, 8) // AwaitCapable, as every server has set since 1.6
	dst = append(dst, make([]byte, 12)...)         // cursor id, starting from
	dst = binary.LittleEndian.AppendUint32(dst, 1)
	dst = append(dst, doc...)
	SetLength(dst[at:], 0)
	return dst
}
