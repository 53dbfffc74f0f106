package cdc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/klauspost/compress/zstd"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
	"drover/internal/failure"
)

// Manifest describes one archived segment: the records of one partition from
// First to Last, without a hole, as blocks that can be read one by one. A block
// is a zstd frame of records, each a uvarint length and the record's value.
type Manifest struct {
	Topic     string         `json:"topic"`
	TopicID   string         `json:"topic_id"`
	Partition int32          `json:"partition"`
	First     int64          `json:"first_offset"`
	Last      int64          `json:"last_offset"`
	FirstSeq  int64          `json:"first_seq"`
	LastSeq   int64          `json:"last_seq"`
	FirstTime bson.Timestamp `json:"first_cluster_time"`
	LastTime  bson.Timestamp `json:"last_cluster_time"`
	Count     int64          `json:"count"`
	Raw       int64          `json:"raw_bytes"`
	Bytes     int64          `json:"bytes"`
	SHA256    string         `json:"sha256"`
	Blocks    []Block        `json:"blocks"`
}

// Block is one frame of a segment.
type Block struct {
	Offset   int64 `json:"offset"`   // of its first record
	Seq      int64 `json:"seq"`      // of its first record
	Position int64 `json:"position"` // in the segment
	Length   int64 `json:"length"`
}

// blockBytes is how much of records goes into a block.
const blockBytes = 1 << 20

// segment is being filled.
type segment struct {
	manifest Manifest
	encoder  *zstd.Encoder
	block    []byte // records of the block that is open
	open     Block
	body     []byte
}

// newSegment makes an empty one.
func newSegment(topic, topicID string, partition int32) (*segment, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("make zstd encoder: %w", err)
	}
	return &segment{encoder: encoder, manifest: Manifest{Topic: topic, TopicID: topicID, Partition: partition}}, nil
}

// add takes the next record.
func (s *segment) add(offset int64, value []byte) error {
	e, err := event.Decode(value)
	if err != nil {
		return badRecord(s.manifest.Topic, s.manifest.Partition, offset, err)
	}
	m := &s.manifest
	if m.Count == 0 {
		m.First, m.FirstSeq, m.FirstTime = offset, e.Seq, e.ClusterTime
	} else if offset != m.Last+1 {
		return failure.New(failure.Mismatch, "archive.gap", "%s/%d: offset %d after %d", m.Topic, m.Partition, offset, m.Last)
	}
	if len(s.block) == 0 {
		s.open = Block{Offset: offset, Seq: e.Seq}
	}
	s.block = binary.AppendUvarint(s.block, uint64(len(value)))
	s.block = append(s.block, value...)
	m.Last, m.LastSeq, m.LastTime = offset, e.Seq, e.ClusterTime
	m.Count++
	m.Raw += int64(len(value))
	if len(s.block) >= blockBytes {
		s.closeBlock()
	}
	return nil
}

// closeBlock compresses what is open.
func (s *segment) closeBlock() {
	if len(s.block) == 0 {
		return
	}
	s.open.Position = int64(len(s.body))
	s.body = s.encoder.EncodeAll(s.block, s.body)
	s.open.Length = int64(len(s.body)) - s.open.Position
	s.manifest.Blocks = append(s.manifest.Blocks, s.open)
	s.block = s.block[:0]
}

// finish gives the segment's bytes and manifest.
func (s *segment) finish() ([]byte, Manifest) {
	s.closeBlock()
	sum := sha256.Sum256(s.body)
	s.manifest.Bytes, s.manifest.SHA256 = int64(len(s.body)), hex.EncodeToString(sum[:])
	return s.body, s.manifest
}

// size is about how large the segment is by now.
func (s *segment) size() int64 { return int64(len(s.body) + len(s.block)) }

// tiled reports whether the blocks lie one behind the other, in order, and are the whole
// segment. Whoever reads them relies on it.
func (m *Manifest) tiled() bool {
	const most = 2 * (blockBytes + maxRecordBytes) // nothing grows so much by being compressed
	end, after := int64(0), m.First-1
	for _, b := range m.Blocks {
		if b.Position != end || b.Length <= 0 || b.Length > most || b.Offset <= after || b.Offset > m.Last {
			return false
		}
		end, after = end+b.Length, b.Offset
	}
	return len(m.Blocks) > 0 && m.Blocks[0].Offset == m.First && end == m.Bytes && m.Count == m.Last-m.First+1
}

// start gives the index of the block that holds offset.
func (m *Manifest) start(offset int64) int {
	i := 0
	for i+1 < len(m.Blocks) && m.Blocks[i+1].Offset <= offset {
		i++
	}
	return i
}

// records calls fn for each record of a block, given its compressed bytes.
func (m *Manifest) records(decoder *zstd.Decoder, block int, compressed []byte, fn func(offset int64, e *event.Event) error) error {
	raw, err := decoder.DecodeAll(compressed, nil)
	if err != nil {
		return m.damaged("block %d: %w", block, err)
	}
	offset, end := m.Blocks[block].Offset, m.Last+1
	if block+1 < len(m.Blocks) {
		end = m.Blocks[block+1].Offset
	}
	for r := bytes.NewReader(raw); r.Len() > 0; offset++ {
		n, err := binary.ReadUvarint(r)
		if err != nil || n > uint64(r.Len()) { //nolint:gosec // a length
			return m.damaged("block %d ends in the middle of offset %d", block, offset)
		}
		at := len(raw) - r.Len()
		e, err := event.Decode(raw[at : at+int(n)]) //nolint:gosec // checked above
		if err != nil {
			return m.damaged("offset %d: %w", offset, err)
		}
		if _, err := r.Seek(int64(n), 1); err != nil { //nolint:gosec // checked above
			return m.damaged("offset %d: %w", offset, err)
		}
		if err := fn(offset, e); err != nil {
			return err
		}
	}
	if offset != end {
		return m.damaged("block %d ends at offset %d, not %d", block, offset, end)
	}
	return nil
}

// damaged says that a segment is not what its manifest says.
func (m *Manifest) damaged(format string, args ...any) error {
	return failure.New(failure.Mismatch, "archive.damaged", "segment %d to %d of %s/%d: %w",
		m.First, m.Last, m.Topic, m.Partition, fmt.Errorf(format, args...)).
		WithHint("restore the object from a copy, or copy the chunk again")
}
