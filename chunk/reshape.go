package chunk

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Errors of a reshaping of the key space, for [errors.Is].
var (
	ErrNotContiguous = errors.New("the ranges do not lie side by side")
	ErrNotCovered    = errors.New("the new ranges do not cover what the old ones hold")
	ErrNotDivisible  = errors.New("the range has no point between its ends")
)

// Intersect gives the points that r and o have in common; ok is false where
// there are none.
func (r Range) Intersect(o Range) (both Range, ok bool) {
	both = Range{Lo: max(r.Lo, o.Lo), Hi: min(r.Hi, o.Hi)}
	return both, both.Lo < both.Hi
}

// Covers reports whether every point of o is one of r.
func (r Range) Covers(o Range) bool { return r.Lo <= o.Lo && o.Hi <= r.Hi }

// SplitAt gives the ranges that meet at the given points, which must ascend and
// lie strictly within r.
func (r Range) SplitAt(points ...Key) ([]Range, error) {
	out := make([]Range, 0, len(points)+1)
	lo := r.Lo
	for i, p := range points {
		if p <= lo || p >= r.Hi {
			return nil, fmt.Errorf("%w: split point %d (%x) does not lie between %x and %x", ErrNotDivisible, i+1, string(p), string(lo), string(r.Hi))
		}
		out = append(out, Range{Lo: lo, Hi: p})
		lo = p
	}
	return append(out, Range{Lo: lo, Hi: r.Hi}), nil
}

// SplitEvenly cuts a range of a hashed key space into n of equal width, as hashes
// are spread evenly. Any other key space is refused: its values must be known.
func (s KeySpace) SplitEvenly(r Range, n int) ([]Range, error) {
	if s != Hashed {
		return nil, fmt.Errorf("%w: only a hashed key space can be cut without knowing its values", ErrNotDivisible)
	}
	if n < 2 {
		return nil, fmt.Errorf("%w: into %d", ErrNotDivisible, n)
	}
	lo, hi := hashNumber(r.Lo), hashNumber(r.Hi)
	width := new(big.Int).Sub(hi, lo)
	points := make([]Key, 0, n-1)
	for i := 1; i < n; i++ {
		at := new(big.Int).Mul(width, big.NewInt(int64(i)))
		at.Div(at, big.NewInt(int64(n))).Add(at, lo)
		points = append(points, hashKey(at.Uint64()))
	}
	return r.SplitAt(points...)
}

// hashNumber reads an end of a hashed range as a number; [KeyMax] is 2 to the 64th.
func hashNumber(k Key) *big.Int {
	if k == KeyMin {
		return new(big.Int)
	}
	if k == KeyMax {
		return new(big.Int).Lsh(big.NewInt(1), 64)
	}
	return new(big.Int).SetBytes([]byte(k)[1:])
}

// Weighed is a sampled document: where it lies and how much it weighs.
type Weighed struct {
	At    Key
	Bytes int64
}

// SplitBySize cuts r into n ranges of about equal weight by a sample of what is
// in it. A point never divides equal keys; where the sample has too few different
// ones it is refused with [ErrNotDivisible].
func (r Range) SplitBySize(sample []Weighed, n int) ([]Range, error) {
	if n < 2 {
		return nil, fmt.Errorf("%w: into %d", ErrNotDivisible, n)
	}
	inside := slices.DeleteFunc(slices.Clone(sample), func(w Weighed) bool { return !r.Contains(w.At) })
	slices.SortFunc(inside, func(a, b Weighed) int { return cmp.Compare(a.At, b.At) })
	var total int64
	for _, w := range inside {
		total += w.Bytes
	}
	points := make([]Key, 0, n-1)
	var before int64
	for i, w := range inside {
		// A point is the lower end of what is right of it: a share of the weight lies
		// left of it by then, and something lies there that is not equal to it.
		due := total * int64(len(points)+1) / int64(n)
		if i > 0 && len(points) < n-1 && w.At > inside[i-1].At && before >= due {
			points = append(points, w.At)
		}
		before += w.Bytes
	}
	if len(points) != n-1 {
		return nil, fmt.Errorf("%w: %d sampled documents lie at too few different keys for %d ranges", ErrNotDivisible, len(inside), n)
	}
	return r.SplitAt(points...)
}

// Union gives the range that ranges side by side make together.
func Union(ranges []Range) (Range, error) {
	if len(ranges) == 0 {
		return Range{}, fmt.Errorf("%w: there are none", ErrNotContiguous)
	}
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b Range) int { return cmp.Compare(a.Lo, b.Lo) })
	all := sorted[0]
	if all.Lo >= all.Hi {
		return Range{}, fmt.Errorf("%w: one is empty", ErrNotContiguous)
	}
	for _, r := range sorted[1:] {
		if r.Lo != all.Hi || r.Hi <= r.Lo {
			return Range{}, fmt.Errorf("%w: %x does not follow %x", ErrNotContiguous, string(r.Lo), string(all.Hi))
		}
		all.Hi = r.Hi
	}
	return all, nil
}

// Pair is one source and one target of a reshaping that have points in common.
type Pair struct {
	Source, Target int // in the lists that were given
	Range          Range
}

// Reshape gives the pairs between old ranges and new ones, in the order of the
// key space. Both lists must make the same range together, without gap or overlap.
func Reshape(old, fresh []Range) ([]Pair, error) {
	was, err := Union(old)
	if err != nil {
		return nil, fmt.Errorf("sources: %w", err)
	}
	becomes, err := Union(fresh)
	if err != nil {
		return nil, fmt.Errorf("targets: %w", err)
	}
	if was != becomes {
		return nil, fmt.Errorf("%w: %x to %x became %x to %x", ErrNotCovered, string(was.Lo), string(was.Hi), string(becomes.Lo), string(becomes.Hi))
	}
	var pairs []Pair
	for i, o := range old {
		for j, f := range fresh {
			if both, ok := o.Intersect(f); ok {
				pairs = append(pairs, Pair{Source: i, Target: j, Range: both})
			}
		}
	}
	slices.SortFunc(pairs, func(a, b Pair) int { return cmp.Compare(a.Range.Lo, b.Range.Lo) })
	return pairs, nil
}

// Keep tells which documents of a database lie in some ranges of its key space.
// It places a document exactly as everything else does, so that what is on a
// border has one side.
type Keep struct {
	Space     KeySpace
	ShardKeys map[string]string // by collection
	Ranges    []Range
	Not       bool // those that lie in none of them
}

// Has reports whether a document of a collection lies there. A collection that
// has no shard key is an error: nobody can tell.
func (k *Keep) Has(collection string, doc bson.Raw) (bool, error) {
	path, ok := k.ShardKeys[collection]
	if !ok {
		return false, fmt.Errorf("collection %s has no shard key", collection)
	}
	at, err := k.Space.DocumentPoint(doc, path)
	if err != nil {
		return false, fmt.Errorf("place a document of %s: %w", collection, err)
	}
	in := slices.ContainsFunc(k.Ranges, func(r Range) bool { return r.Contains(at) })
	return in != k.Not, nil
}

// Touches reports whether an update that changes the value at a dotted path may
// change the shard key of a collection: the path itself, one above it or one
// below it.
func (k *Keep) Touches(collection, path string) bool {
	key, ok := k.ShardKeys[collection]
	if !ok {
		return true
	}
	for field := range strings.SplitSeq(key, ",") {
		if touchesField(field, path) {
			return true
		}
	}
	return false
}
