package bulkimport

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
)

// Format of an object: BSON documents one after another, sorted, as a sequence
// of zstd frames (the object as a whole is one valid zstd stream). The manifest
// says where each frame begins and with which key, so that a loader of one
// stretch of the order fetches only the frames that it needs.

// manifestVersion is the format above.
const manifestVersion = 1

// frameBytes is the size of a frame before compression. A merge holds one or
// two for each slice of the collection.
const frameBytes = 128 * KiB

// Frame is one zstd frame of an object.
type Frame struct {
	Offset    int64     `json:"offset"`
	Length    int64     `json:"length"`
	Documents Documents `json:"documents"`
	Bytes     Bytes     `json:"bytes"`
	First     []byte    `json:"first"` // [Order.Key] of its first document
	Checksum  uint64    `json:"xxhash,string"`
}

// Manifest describes one object; it stands beside it in S3.
type Manifest struct {
	Version    int               `json:"version"`
	Migration  chunk.MigrationID `json:"migration"`
	Collection string            `json:"collection"`
	Slice      int               `json:"slice"`
	Lo         []byte            `json:"lo,omitempty"` // BSON {_id: value}
	Hi         []byte            `json:"hi,omitempty"`
	From       Time              `json:"from"`
	To         Time              `json:"to"`
	Order      Order             `json:"order"`
	Documents  Documents         `json:"documents"`
	Bytes      Bytes             `json:"bytes"`
	SHA256     string            `json:"sha256"`
	Frames     []Frame           `json:"frames"`
}

// Time is a cluster time in a manifest.
type Time struct {
	T uint32 `json:"t"`
	I uint32 `json:"i"`
}

// ManifestKey gives the key of the manifest of an object.
func ManifestKey(object string) string { return object + ".manifest.json" }

// Prefix is what all S3 keys of a migration's import begin with.
func Prefix(m chunk.MigrationID) string { return fmt.Sprintf("snapshots/m%d/", m) }

// collectionPrefix is what the keys of one collection begin with.
func collectionPrefix(m chunk.MigrationID, collection string) string {
	return Prefix(m) + url.PathEscape(collection) + "/"
}

// entry is one document with its place in the order.
type entry struct {
	key chunk.Key
	doc bson.Raw
}

// run is a slice's object before it is written.
type run struct {
	object   Object
	manifest Manifest
	content  []byte
}

// buildRun sorts a slice's documents and makes its object.
func buildRun(s Slice, order Order, read snapshot) (run, error) {
	entries := make([]entry, 0, len(read.docs))
	for _, doc := range read.docs {
		key, err := order.Key(doc)
		if err != nil {
			return run{}, fmt.Errorf("order of a document of %s: %w", s, err)
		}
		entries = append(entries, entry{key, doc})
	}
	slices.SortFunc(entries, func(a, b entry) int { return compareKeys(a.key, b.key) })

	r := run{manifest: Manifest{
		Version: manifestVersion, Migration: s.Migration, Collection: s.Collection, Slice: s.Number, Lo: s.Lo, Hi: s.Hi,
		From: Time(read.from), To: Time(read.to), Order: order,
	}}
	sum, err := r.compress(entries)
	if err != nil {
		return run{}, fmt.Errorf("compress %s: %w", s, err)
	}
	r.manifest.SHA256 = hex.EncodeToString(sum)
	// What tells two reads of one slice apart is content and window together.
	identity := sha256.Sum256(fmt.Appendf(nil, "%x %v %v %s %x", sum, read.from, read.to, order, s.Hi))
	r.object = Object{
		Key:       fmt.Sprintf("%s%06d-%x", collectionPrefix(s.Migration, s.Collection), s.Number, identity[:8]),
		Documents: r.manifest.Documents, Bytes: r.manifest.Bytes, Hash: sum, From: read.from, To: read.to,
	}
	return r, nil
}

// compareKeys orders keys.
func compareKeys(a, b chunk.Key) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// compress fills content and frames with entries and returns the hash of the
// documents.
func (r *run) compress(entries []entry) (hash []byte, err error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, encoder.Close()) }()
	sum := sha256.New()
	raw := make([]byte, 0, frameBytes)
	var f Frame
	flush := func() {
		if f.Documents == 0 {
			return
		}
		f.Offset, f.Bytes, f.Checksum = int64(len(r.content)), Bytes(len(raw)), xxhash.Sum64(raw)
		r.content = encoder.EncodeAll(raw, r.content)
		f.Length = int64(len(r.content)) - f.Offset
		r.manifest.Frames = append(r.manifest.Frames, f)
		sum.Write(raw)
		r.manifest.Documents += f.Documents
		r.manifest.Bytes += f.Bytes
		f, raw = Frame{}, raw[:0]
	}
	for _, e := range entries {
		if f.Documents > 0 && Bytes(len(raw)+len(e.doc)) > frameBytes {
			flush()
		}
		if f.Documents == 0 {
			f.First = []byte(e.key)
		}
		raw = append(raw, e.doc...)
		f.Documents++
	}
	flush()
	return sum.Sum(nil), nil
}

// store writes the object and then the manifest: a manifest speaks of a whole
// object.
func (r *run) store(ctx context.Context, b Bucket) error {
	manifest, err := json.Marshal(r.manifest)
	if err != nil {
		return fmt.Errorf("encode manifest of %s: %w", r.object.Key, err)
	}
	if err := b.put(ctx, r.object.Key, "application/zstd", r.content); err != nil {
		return err
	}
	return b.put(ctx, ManifestKey(r.object.Key), "application/json", manifest)
}

// loadManifest reads a stored slice's manifest and checks that it is the one
// that was recorded.
func loadManifest(ctx context.Context, b Bucket, s Slice) (Manifest, error) {
	content, err := b.get(ctx, ManifestKey(s.Object.Key))
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	if err := json.Unmarshal(content, &m); err != nil {
		return m, damaged(s.Object.Key, "its manifest cannot be read: "+err.Error())
	}
	same := m.Version == manifestVersion && m.Migration == s.Migration && m.Collection == s.Collection && m.Slice == s.Number &&
		m.Documents == s.Object.Documents && m.Bytes == s.Object.Bytes && m.SHA256 == hex.EncodeToString(s.Object.Hash) &&
		m.From == Time(s.Object.From) && m.To == Time(s.Object.To) && bytes.Equal(m.Lo, s.Lo) && bytes.Equal(m.Hi, s.Hi)
	if !same || !m.tiled() {
		return m, damaged(s.Object.Key, "its manifest is not the one that was recorded")
	}
	return m, nil
}

// tiled reports whether the frames lie one behind the other, in order, and together hold
// what the object does. Whoever reads them relies on it.
func (m Manifest) tiled() bool {
	var end int64
	var documents Documents
	var size Bytes
	for n, f := range m.Frames {
		if f.Offset != end || f.Length <= 0 || f.Documents <= 0 || f.Bytes <= 0 || n > 0 && bytes.Compare(m.Frames[n-1].First, f.First) > 0 {
			return false
		}
		end, documents, size = end+f.Length, documents+f.Documents, size+f.Bytes
	}
	return documents == m.Documents && size == m.Bytes
}

// damaged is an object that is not what was stored.
func damaged(key, what string) error {
	return failure.New(failure.Mismatch, "import.object_damaged", "s3 object %s: %s", key, what).
		WithHint("somebody changed the bucket: abort this migration and start another one")
}

// open decompresses a frame and takes it apart; compressed holds just the frame.
func (f Frame) open(decoder *zstd.Decoder, key string, order Order, compressed []byte) ([]entry, error) {
	raw, err := decoder.DecodeAll(compressed, make([]byte, 0, f.Bytes))
	if err != nil {
		return nil, damaged(key, err.Error())
	}
	if Bytes(len(raw)) != f.Bytes || xxhash.Sum64(raw) != f.Checksum {
		return nil, damaged(key, fmt.Sprintf("wrong checksum of the frame at %d", f.Offset))
	}
	entries := make([]entry, 0, f.Documents)
	for len(raw) > 0 {
		doc, rest, ok := cutDocument(raw)
		if !ok {
			return nil, damaged(key, fmt.Sprintf("no documents in the frame at %d", f.Offset))
		}
		k, err := order.Key(doc)
		if err != nil {
			return nil, fmt.Errorf("order of a document in %s: %w", key, err)
		}
		entries = append(entries, entry{k, doc})
		raw = rest
	}
	if Documents(len(entries)) != f.Documents || string(entries[0].key) != string(f.First) {
		return nil, damaged(key, fmt.Sprintf("%d documents in the frame at %d, or another first one", len(entries), f.Offset))
	}
	return entries, nil
}

// cutDocument takes the first document off b.
func cutDocument(b []byte) (doc bson.Raw, rest []byte, ok bool) {
	if len(b) < 5 {
		return nil, nil, false
	}
	n := int(int32(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)) //nolint:gosec // BSON's length is an int32
	if n < 5 || n > len(b) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}
