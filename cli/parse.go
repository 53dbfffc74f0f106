package cli

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// indexSpecs reads --index flags: COLLECTION:SPEC.
func indexSpecs(flags []string) (map[string][]bson.Raw, error) {
	out := map[string][]bson.Raw{}
	for _, s := range flags {
		name, spec, ok := strings.Cut(s, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf(`--index %q: want COLLECTION:SPEC, as bookings:{"key":{"ref":1},"name":"ref"}`, s)
		}
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(spec), false, &d); err != nil {
			return nil, fmt.Errorf("--index %q: %w", s, err)
		}
		raw, err := bson.Marshal(d)
		if err != nil {
			return nil, fmt.Errorf("--index %q: %w", s, err)
		}
		if bson.Raw(raw).Lookup("key").Type != bson.TypeEmbeddedDocument || bson.Raw(raw).Lookup("name").Type != bson.TypeString {
			return nil, fmt.Errorf("--index %q: the specification needs key and name", s)
		}
		out[name] = append(out[name], raw)
	}
	return out, nil
}

// splitRanges reads --split flags: one value each, in order.
func splitRanges(flags []string) ([]chunk.Range, error) {
	points := make([]chunk.Key, 0, len(flags))
	for _, s := range flags {
		var d struct {
			V bson.RawValue `bson:"v"`
		}
		if err := bson.UnmarshalExtJSON([]byte(`{"v":`+s+`}`), false, &d); err != nil {
			return nil, fmt.Errorf(`--split %q: want one value as extended JSON, as "m" or {"$oid":"..."}, or an array with values of the first fields: %w`, s, err)
		}
		p, err := chunk.Ranged.Border(d.V)
		if err != nil {
			return nil, fmt.Errorf("--split %q: %w", s, err)
		}
		points = append(points, p)
	}
	ranges, err := chunk.RangesAt(points)
	if err != nil {
		return nil, fmt.Errorf("--split: %w", err)
	}
	return ranges, nil
}
