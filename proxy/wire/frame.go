// Package wire frames MongoDB's wire protocol and gives a view of a command over
// its raw bytes. It knows nothing of routing and decodes no document.
//
// Behaviour:
//   - OP_MSG with body and document sequences in any order, a checksum that is
//     verified, moreToCome and exhaustAllowed as flags for the caller;
//   - OP_QUERY only as drivers begin a connection with, answered by OP_REPLY;
//   - OP_COMPRESSED around either (noop, snappy, zlib, zstd), with the size it
//     unpacks to bounded before anything is unpacked;
//   - a length is believed only as far as bytes have arrived.
//
// Not supported: legacy opcodes (OP_INSERT and so on), the security token
// section of hosted deployments, OP_QUERY for anything but a handshake.
package wire

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Opcode tells how a message's body is laid out.
type Opcode int32

// The opcodes that are in use.
const (
	OpReply      Opcode = 1
	OpQuery      Opcode = 2004
	OpCompressed Opcode = 2012
	OpMsg        Opcode = 2013
)

// Limits of the protocol.
const (
	HeaderLength   = 16
	MaxMessage     = 48_000_000       // bytes of a message, as mongod has it
	MaxDocument    = 16 * 1024 * 1024 // bytes of a document that a client stores
	maxCommand     = MaxDocument + 16*1024
	keptBuffer     = 256 * 1024 // a larger buffer is not kept between messages
	firstAllotment = 64 * 1024  // believed at once; the rest as it arrives
	credit         = 16         // a length is believed whole when this part of it has arrived
)

// Message is one whole message. Its bytes belong to the Reader and are valid
// until the next one is read.
type Message struct {
	RequestID  int32
	ResponseTo int32
	Op         Opcode
	Compressor Compressor // what it came packed with
	Raw        []byte     // header and body, unpacked
}

// Body is the message without its header.
func (m Message) Body() []byte { return m.Raw[HeaderLength:] }

// Reader cuts a stream into messages.
type Reader struct {
	br       *bufio.Reader
	buf      []byte
	unpacked []byte
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader { return &Reader{br: bufio.NewReaderSize(r, 16*1024)} }

// Buffered is the number of bytes that have arrived and were not asked for.
func (r *Reader) Buffered() int { return r.br.Buffered() }

// Await returns when a byte can be read, or the stream ends.
func (r *Reader) Await() error {
	_, err := r.br.Peek(1)
	return err //nolint:wrapcheck // the stream's own error is what the caller looks at
}

// Shed gives up large buffers, and with them the last message.
func (r *Reader) Shed() {
	if cap(r.buf) > keptBuffer {
		r.buf = nil
	}
	if cap(r.unpacked) > keptBuffer {
		r.unpacked = nil
	}
}

// Next reads one message. [io.EOF] comes only between messages.
func (r *Reader) Next() (Message, error) {
	r.Shed()
	head, err := r.br.Peek(HeaderLength)
	if err != nil {
		if err == io.EOF && len(head) > 0 { // bufio gives it bare
			err = io.ErrUnexpectedEOF
		}
		return Message{}, err //nolint:wrapcheck // the stream's own error is what the caller looks at
	}
	length := int(int32(binary.LittleEndian.Uint32(head))) //nolint:gosec // a negative length is caught below
	if length < HeaderLength || length > MaxMessage {
		return Message{}, fmt.Errorf("message length %d: %w", length, errMalformed)
	}
	if err := r.fill(length); err != nil {
		return Message{}, err
	}
	m := Message{
		RequestID:  int32(binary.LittleEndian.Uint32(r.buf[4:])),   //nolint:gosec // ids are any 32 bits
		ResponseTo: int32(binary.LittleEndian.Uint32(r.buf[8:])),   //nolint:gosec // ids are any 32 bits
		Op:         Opcode(binary.LittleEndian.Uint32(r.buf[12:])), //nolint:gosec // an unknown one is refused later
		Raw:        r.buf,
	}
	if m.Op == OpCompressed {
		return r.unpack(m)
	}
	return m, nil
}

// fill reads length bytes into r.buf. It takes memory as the bytes arrive, so
// that a length alone costs nothing; little of a message is copied meanwhile.
func (r *Reader) fill(length int) error {
	if cap(r.buf) >= length {
		r.buf = r.buf[:length]
		_, err := io.ReadFull(r.br, r.buf)
		return unexpected(err)
	}
	have := 0
	for have < length {
		size := min(length, max(firstAllotment, 4*have))
		if length <= credit*have {
			size = length
		}
		grown := make([]byte, size)
		copy(grown, r.buf[:have])
		r.buf = grown
		if _, err := io.ReadFull(r.br, r.buf[have:]); err != nil {
			return unexpected(err)
		}
		have = size
	}
	return nil
}

// unexpected turns the end of the stream inside a message into an error.
func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // io.ReadFull gives it bare
		return io.ErrUnexpectedEOF
	}
	return err
}

// AppendHeader begins a message of unknown length; [SetLength] ends it.
func AppendHeader(dst []byte, requestID, responseTo int32, op Opcode) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(requestID))  //nolint:gosec // any 32 bits
	dst = binary.LittleEndian.AppendUint32(dst, uint32(responseTo)) //nolint:gosec // any 32 bits
	return binary.LittleEndian.AppendUint32(dst, uint32(op))        //nolint:gosec // any 32 bits
}

// SetLength writes the length of the message that msg holds, plus extra bytes
// that follow from elsewhere, into its header.
func SetLength(msg []byte, extra int) {
	binary.LittleEndian.PutUint32(msg, uint32(len(msg)+extra)) //nolint:gosec // far below the limit
}
