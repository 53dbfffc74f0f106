package chunk

// KeySpace tells how a shard-key value becomes a point.
type KeySpace string

// The key spaces.
const (
	Hashed KeySpace = "hashed" // a 64-bit hash of the value; equal BSON values hash equal
	Ranged KeySpace = "range"  // BSON order of the value
)

// Key is a point of a key space in an encoding that compares bytewise.
type Key string

// Bounds of every key space.
const (
	KeyMin Key = ""     // at or below every point
	KeyMax Key = "\xff" // above every point
)

// Range is half-open: Lo is in it, Hi is not.
type Range struct{ Lo, Hi Key }

// Contains reports whether k lies in r.
func (r Range) Contains(k Key) bool { return r.Lo <= k && k < r.Hi }

// Overlaps reports whether r and o have a point in common.
func (r Range) Overlaps(o Range) bool {
	return r.Lo < o.Hi && o.Lo < r.Hi && r.Lo < r.Hi && o.Lo < o.Hi
}
