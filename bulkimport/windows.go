package bulkimport

import (
	"cmp"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
)

// Windows tells for every document in which window its slice was read. It is a
// value: it can be stored and sent.
type Windows struct {
	Collections map[string][]Window `bson:"collections" json:"collections"` // in order of Lo, the first one open
}

// Window is the window of one slice: up to the next one's Lo.
type Window struct {
	Lo   []byte         `bson:"lo" json:"lo"` // [chunk.EncodeValue] of the lower boundary, empty for the first
	From bson.Timestamp `bson:"from" json:"from"`
	To   bson.Timestamp `bson:"to" json:"to"`
}

// NewWindows makes the windows of stored slices, and refuses slices that do not
// cover every _id exactly once.
func NewWindows(stored []Slice) (Windows, error) {
	w := Windows{Collections: map[string][]Window{}}
	ranges := map[string][]chunk.Range{}
	for _, s := range stored {
		if s.State != Stored && s.State != Loaded {
			return w, failure.New(failure.Transient, "import.unfinished", "%s is not stored", s)
		}
		r, err := s.keyRange()
		if err != nil {
			return w, err
		}
		ranges[s.Collection] = append(ranges[s.Collection], r)
		w.Collections[s.Collection] = append(w.Collections[s.Collection], Window{Lo: []byte(r.Lo), From: s.Object.From, To: s.Object.To})
	}
	for name, list := range ranges {
		slices.SortFunc(list, func(a, b chunk.Range) int { return compareKeys(a.Lo, b.Lo) })
		at := chunk.KeyMin
		for _, r := range list {
			if r.Lo != at || r.Hi <= r.Lo {
				return w, failure.New(failure.Mismatch, "import.slices_broken", "the slices of %s have a gap or overlap at %x", name, r.Lo).
					WithHint("the metadata of this migration is damaged: abort it and start another one")
			}
			at = r.Hi
		}
		if at != chunk.KeyMax {
			return w, failure.New(failure.Mismatch, "import.slices_broken", "the slices of %s end at %x", name, at)
		}
		slices.SortFunc(w.Collections[name], func(a, b Window) int { return cmp.Compare(string(a.Lo), string(b.Lo)) })
	}
	return w, nil
}

// Window gives the window of the slice that _id lies in. An event at or before
// lo is in the copy already, one after hi is not; in between it may be. A
// collection that was not imported has no window: its documents all come from
// events.
func (w Windows) Window(collection string, id bson.RawValue) (lo, hi bson.Timestamp, err error) {
	list := w.Collections[collection]
	if len(list) == 0 {
		return lo, hi, nil
	}
	key, err := chunk.EncodeValue(id)
	if err != nil {
		return lo, hi, fmt.Errorf("window of a document of %s: %w", collection, err)
	}
	n, found := slices.BinarySearchFunc(list, string(key), func(v Window, key string) int { return cmp.Compare(string(v.Lo), key) })
	if !found {
		n--
	}
	return list[n].From, list[n].To, nil
}

// Latest gives the end of the latest window: after it every event is applied
// strictly.
func (w Windows) Latest() bson.Timestamp {
	var latest bson.Timestamp
	for _, list := range w.Collections {
		for _, one := range list {
			if one.To.After(latest) {
				latest = one.To
			}
		}
	}
	return latest
}
