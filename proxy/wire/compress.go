package wire

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/golang/snappy"
	"github.com/klauspost/compress/zstd"
)

// Compressor is a compressor's number in OP_COMPRESSED. Zero means none, also on
// the wire.
type Compressor uint8

// The compressors.
const (
	Noop   Compressor = 0
	Snappy Compressor = 1
	Zlib   Compressor = 2
	Zstd   Compressor = 3
)

// compressedHead is the length of what stands before the packed bytes.
const compressedHead = 9

// CompressorNamed gives the compressor that hello calls name.
func CompressorNamed(name string) (Compressor, bool) {
	switch name {
	case "snappy":
		return Snappy, true
	case "zlib":
		return Zlib, true
	case "zstd":
		return Zstd, true
	default:
		return Noop, false
	}
}

// zstdDecoder unpacks whole messages and may be used by many at once; the bound
// on memory holds for each message.
var zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxMessage), zstd.WithDecoderLowmem(true))
})

// zstdEncoder packs whole messages and may be used by many at once.
var zstdEncoder = sync.OnceValues(func() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true))
})

// unpack replaces a compressed message by what is in it.
func (r *Reader) unpack(m Message) (Message, error) {
	b := m.Body()
	if len(b) < compressedHead {
		return Message{}, fmt.Errorf("compressed message of %d bytes: %w", len(b), errMalformed)
	}
	op := Opcode(binary.LittleEndian.Uint32(b))           //nolint:gosec // an unknown one is refused later
	size := int(int32(binary.LittleEndian.Uint32(b[4:]))) //nolint:gosec // a negative size is caught below
	if op == OpCompressed || size < 0 || size > MaxMessage-HeaderLength {
		return Message{}, fmt.Errorf("compressed message that unpacks to %d bytes: %w", size, errMalformed)
	}
	m.Op, m.Compressor = op, Compressor(b[8])
	out := AppendHeader(r.unpacked[:0], m.RequestID, m.ResponseTo, op)
	out, err := decompress(out, b[compressedHead:], size, m.Compressor)
	if err != nil {
		return Message{}, err
	}
	if len(out) != HeaderLength+size {
		return Message{}, fmt.Errorf("compressed message is %d bytes, not %d: %w", len(out)-HeaderLength, size, errMalformed)
	}
	SetLength(out, 0)
	r.unpacked, m.Raw = out, out
	return m, nil
}

// The most that a packed byte can stand for. A size beyond it is a lie, which must not
// cost the memory that it asks for.
const (
	snappyRatio = 22
	zlibRatio   = 1032
)

// decompress appends what b unpacks to, of which it takes no more than size
// bytes and one.
func decompress(dst, b []byte, size int, c Compressor) ([]byte, error) {
	if ratio := map[Compressor]int{Snappy: snappyRatio, Zlib: zlibRatio}[c]; ratio > 0 && size > ratio*(len(b)+compressedHead) {
		return nil, fmt.Errorf("%d bytes that unpack to %d: %w", len(b), size, errMalformed)
	}
	switch c {
	case Noop:
		return append(dst, b...), nil
	case Snappy:
		if n, err := snappy.DecodedLen(b); err != nil || n != size {
			return nil, fmt.Errorf("snappy length %d, not %d: %w", n, size, errMalformed)
		}
		dst = slices.Grow(dst, size)
		out, err := snappy.Decode(dst[len(dst):len(dst)+size], b)
		if err != nil {
			return nil, fmt.Errorf("snappy: %w: %w", err, errMalformed)
		}
		return dst[:len(dst)+len(out)], nil
	case Zlib:
		zr, err := zlib.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, fmt.Errorf("zlib: %w: %w", err, errMalformed)
		}
		buf := bytes.NewBuffer(slices.Grow(dst, size+bytes.MinRead))
		if _, err := buf.ReadFrom(io.LimitReader(zr, int64(size)+1)); err != nil {
			return nil, fmt.Errorf("zlib: %w: %w", err, errMalformed)
		}
		return buf.Bytes(), nil
	case Zstd:
		d, err := zstdDecoder()
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
		out, err := d.DecodeAll(b, dst)
		if err != nil {
			return nil, fmt.Errorf("zstd: %w: %w", err, errMalformed)
		}
		return out, nil
	default:
		return nil, fmt.Errorf("compressor %d: %w", c, errMalformed)
	}
}

// Compress gives msg, a whole message, as OP_COMPRESSED.
func Compress(msg []byte, c Compressor) ([]byte, error) {
	body := msg[HeaderLength:]
	out := make([]byte, HeaderLength, HeaderLength+compressedHead+len(body)/2)
	copy(out, msg[:12])
	binary.LittleEndian.PutUint32(out[12:], uint32(OpCompressed))
	out = append(out, msg[12:16]...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(body))) //nolint:gosec // far below the limit
	out = append(out, byte(c))
	switch c {
	case Snappy:
		out = append(out, snappy.Encode(nil, body)...)
	case Zlib:
		buf := bytes.NewBuffer(out)
		zw := zlib.NewWriter(buf)
		if _, err := zw.Write(body); err != nil {
			return nil, fmt.Errorf("zlib: %w", err)
		}
		if err := zw.Close(); err != nil {
			return nil, fmt.Errorf("zlib: %w", err)
		}
		out = buf.Bytes()
	case Zstd:
		e, err := zstdEncoder()
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
		out = e.EncodeAll(body, out)
	default:
		out = append(out, body...)
	}
	SetLength(out, 0)
	return out, nil
}
