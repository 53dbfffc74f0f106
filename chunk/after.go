package chunk

import "math/big"

// After gives the least bound above a point of the key space: the range from a
// point to what is after it holds that point alone.
func (s KeySpace) After(k Key) Key {
	if s != Hashed {
		return k + "\x00"
	}
	n := hashNumber(k)
	n.Add(n, big.NewInt(1))
	if !n.IsUint64() {
		return KeyMax
	}
	return hashKey(n.Uint64())
}
