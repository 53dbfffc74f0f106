package workflows

import (
	"encoding/hex"
	"fmt"
	"slices"

	"drover/contract"
)

// checkReshape says what is wrong with the split or merge that is asked for; what
// only the metadata can tell is checked when it is registered.
func checkReshape(in *contract.MigrateInput) error {
	r := in.Reshape
	switch {
	case r == nil:
		return nil
	case len(r.At) > 0 && r.Parts > 0:
		return fmt.Errorf("reshape names both points to cut at and %d parts; want one of them", r.Parts)
	case r.Parts < 0:
		return fmt.Errorf("reshape.parts is %d; want 2 or more", r.Parts)
	case len(r.With) == 0 && len(r.At) == 0 && r.Parts < 2:
		return fmt.Errorf("reshape neither merges nor cuts: name chunks in with, points in at, or 2 or more parts")
	case r.By != "" && r.By != contract.BySize && r.By != contract.ByHeat:
		return fmt.Errorf("reshape.by is %q; want %q or %q", r.By, contract.BySize, contract.ByHeat)
	case r.By != "" && (r.Parts < 2 || r.Even):
		return fmt.Errorf("reshape.by is %q, which chooses the points of 2 or more parts that are not of equal width", r.By)
	case slices.Contains(r.With, in.Chunk):
		return fmt.Errorf("reshape.with names %s, which is the chunk itself", in.Chunk)
	}
	fresh := max(len(r.At)+1, r.Parts, 1)
	if len(r.Shards) > 0 && len(r.Shards) != fresh {
		return fmt.Errorf("reshape.shards names %d shards for %d new chunks; want one for each, or none and to", len(r.Shards), fresh)
	}
	for _, at := range r.At {
		if b, err := hex.DecodeString(at); err != nil || len(b) == 0 {
			return fmt.Errorf("reshape.at %q is no point of a key space; want hexadecimal as drover chunk list shows it", at)
		}
	}
	seen := map[string]bool{}
	for _, id := range r.With {
		if seen[string(id)] {
			return fmt.Errorf("reshape.with names %s twice", id)
		}
		seen[string(id)] = true
	}
	return nil
}
