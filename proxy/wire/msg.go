package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Flag bits of OP_MSG.
const (
	ChecksumPresent uint32 = 1 << 0
	MoreToCome      uint32 = 1 << 1
	ExhaustAllowed  uint32 = 1 << 16

	// requiredFlags are the bits a receiver must know or refuse.
	requiredFlags uint32 = 0xffff
)

// castagnoli is the polynomial of OP_MSG's checksum.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sequence is a document sequence: an array of the command that travels beside it.
type Sequence struct {
	Name []byte
	Docs []byte // documents, one after the other
	Raw  []byte // the whole section with its kind byte
}

// Msg is the view of an OP_MSG. It points into the message's bytes.
type Msg struct {
	Flags     uint32
	Body      []byte
	Sequences []Sequence
}

// ParseMsg reads m, which must be an OP_MSG, into out and reuses out's memory.
func ParseMsg(m Message, out *Msg) error {
	out.Body, out.Sequences = nil, out.Sequences[:0]
	b := m.Body()
	if m.Op != OpMsg || len(b) < 4 {
		return fmt.Errorf("opcode %d of %d bytes: %w", m.Op, len(b), errMalformed)
	}
	out.Flags = binary.LittleEndian.Uint32(b)
	if unknown := out.Flags & requiredFlags &^ (ChecksumPresent | MoreToCome); unknown != 0 {
		return fmt.Errorf("required flags %#x: %w", unknown, errMalformed)
	}
	b = b[4:]
	if out.Flags&ChecksumPresent != 0 {
		if len(b) < 4 {
			return fmt.Errorf("checksum is missing: %w", errMalformed)
		}
		end := len(m.Raw) - 4
		if crc32.Checksum(m.Raw[:end], castagnoli) != binary.LittleEndian.Uint32(m.Raw[end:]) {
			return fmt.Errorf("checksum does not match: %w", errMalformed)
		}
		b = b[:len(b)-4]
	}
	for len(b) > 0 {
		n, err := out.section(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	if out.Body == nil {
		return fmt.Errorf("no body: %w", errMalformed)
	}
	return nil
}

// section reads the section that b begins with and gives its length.
func (m *Msg) section(b []byte) (int, error) {
	if len(b) < 5 {
		return 0, fmt.Errorf("section of %d bytes: %w", len(b), errMalformed)
	}
	n := prefixed(b[1:], 0, 5)
	if n < 0 {
		return 0, fmt.Errorf("section length: %w", errMalformed)
	}
	payload := b[1 : 1+n]
	switch b[0] {
	case 0:
		if m.Body != nil || n > maxCommand || !Whole(payload) {
			return 0, fmt.Errorf("body section of %d bytes: %w", n, errMalformed)
		}
		m.Body = payload
	case 1:
		end := bytes.IndexByte(payload[4:], 0)
		if end < 0 {
			return 0, fmt.Errorf("name of a document sequence: %w", errMalformed)
		}
		s := Sequence{Name: payload[4 : 4+end], Docs: payload[5+end:], Raw: b[:1+n]}
		for i := range m.Sequences {
			if bytes.Equal(m.Sequences[i].Name, s.Name) {
				return 0, fmt.Errorf("two document sequences of one name: %w", errMalformed)
			}
		}
		if err := checkDocuments(s.Docs); err != nil {
			return 0, err
		}
		m.Sequences = append(m.Sequences, s)
	default:
		return 0, fmt.Errorf("section kind %d: %w", b[0], errMalformed)
	}
	return 1 + n, nil
}

// checkDocuments reports whether b is whole documents, one after the other.
func checkDocuments(b []byte) error {
	for len(b) > 0 {
		n := prefixed(b, 0, 5)
		if n < 0 || n > maxCommand || b[n-1] != 0 {
			return fmt.Errorf("document of a sequence: %w", errMalformed)
		}
		b = b[n:]
	}
	return nil
}

// NextDocument cuts the first document off docs, which a Sequence holds.
func NextDocument(docs []byte) (doc, rest []byte) {
	n := binary.LittleEndian.Uint32(docs)
	return docs[:n:n], docs[n:]
}

// BeginMsg starts an OP_MSG with one body section; the caller appends the body
// and perhaps sequences and then calls [SetLength].
func BeginMsg(dst []byte, requestID, responseTo int32, flags uint32) []byte {
	dst = AppendHeader(dst, requestID, responseTo, OpMsg)
	dst = binary.LittleEndian.AppendUint32(dst, flags)
	return append(dst, 0)
}

// BeginSequence starts a document sequence; [EndSequence] takes the index back.
func BeginSequence(dst []byte, name string) (at int, out []byte) {
	dst = append(dst, 1)
	at = len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, name...)
	return at, append(dst, 0)
}

// EndSequence writes the length of a sequence, plus extra bytes of documents
// that follow from elsewhere.
func EndSequence(dst []byte, at, extra int) {
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at+extra)) //nolint:gosec // far below the limit
}
