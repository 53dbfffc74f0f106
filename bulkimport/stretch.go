package bulkimport

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"drover/chunk"
	"drover/internal/failure"
)

// stretch is a part of the order that one loader loads by itself.
type stretch struct {
	within    chunk.Range
	documents Documents // about, see [stretches]
}

// How an order is cut: a loader that dies has one stretch to do again, most of
// which the target has already; and there is enough for several loaders.
const (
	stretchBytes   = 32 * MiB
	leastStretches = 8
)

// stretches cuts the order of runs into stretches that are about equal in bytes,
// where the frames allow it. The same runs are always cut alike.
func stretches(runs []stored) []stretch {
	var frames []Frame
	var total Bytes
	for _, r := range runs {
		frames = append(frames, r.manifest.Frames...)
		total += r.manifest.Bytes
	}
	slices.SortStableFunc(frames, func(a, b Frame) int { return compareKeys(chunk.Key(a.First), chunk.Key(b.First)) })
	each := max(1, min(stretchBytes, total/leastStretches))

	cut := []stretch{{within: chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}}}
	var size Bytes
	for _, f := range frames {
		current := &cut[len(cut)-1]
		if at := chunk.Key(f.First); size >= each && at > current.within.Lo {
			current.within.Hi = at
			cut = append(cut, stretch{within: chunk.Range{Lo: at, Hi: chunk.KeyMax}})
			current, size = &cut[len(cut)-1], 0
		}
		size += f.Bytes
		current.documents += f.Documents
	}
	return cut
}

// loadedStretch is the durable record of a loaded stretch, an object in S3.
type loadedStretch struct {
	Lo        []byte    `json:"lo"`
	Hi        []byte    `json:"hi"`
	Documents Documents `json:"documents"`
	Bytes     Bytes     `json:"bytes"`
	Parked    Documents `json:"parked"`
}

// recordKey names the record of a stretch. It depends on the objects that were
// merged: a slice that was read anew makes every record void.
func recordKey(runs []stored, s stretch) string {
	sum := sha256.New()
	for _, r := range runs {
		_, _ = fmt.Fprintf(sum, "%s\n", r.slice.Object.Key)
	}
	_, _ = fmt.Fprintf(sum, "%x %x", s.within.Lo, s.within.Hi)
	first := runs[0].slice
	return fmt.Sprintf("%sloaded-%x.json", collectionPrefix(first.Migration, first.Collection), sum.Sum(nil)[:12])
}

// beginKey names the record that is written before the first document of a
// collection is loaded.
func beginKey(m chunk.MigrationID, collection string) string {
	return collectionPrefix(m, collection) + "loading.json"
}

// recorded reads the record of a stretch; ok is false when it is not loaded.
func (b Bucket) recorded(ctx context.Context, key string) (done loadedStretch, ok bool, err error) {
	content, err := b.get(ctx, key)
	if failure.HasCode(err, "import.object_missing") {
		return done, false, nil
	}
	if err != nil {
		return done, false, err
	}
	if err := json.Unmarshal(content, &done); err != nil {
		return done, false, damaged(key, "it cannot be read: "+err.Error())
	}
	return done, true, nil
}

// record writes the record of a stretch.
func (b Bucket) record(ctx context.Context, key string, done loadedStretch) error {
	content, err := json.Marshal(done)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	return b.put(ctx, key, "application/json", content)
}
