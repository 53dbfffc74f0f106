package remediation

import (
	"encoding/binary"
	"slices"
	"time"
)

// codec gives vertices canonical keys: two that differ only in the names of
// hosts or in their order have one key. It numbers what it meets, so it serves
// one search.
type codec struct {
	zones, instances []string
	priorities       []float64
	delays           []time.Duration
	oplogs           []int
	packed           []uint64
	buf              []byte
}

// number gives the number of v among those seen, and sees it.
func numberOf[T comparable](seen *[]T, v T) uint64 {
	for i, s := range *seen {
		if s == v {
			return uint64(i) //nolint:gosec // an index
		}
	}
	*seen = append(*seen, v)
	return uint64(len(*seen) - 1) //nolint:gosec // an index
}

// member packs all of m but its host.
func (c *codec) member(m *Member) uint64 {
	k := numberOf(&c.zones, m.Zone)
	k = k<<8 | numberOf(&c.instances, m.Instance)
	k = k<<8 | numberOf(&c.priorities, m.Priority)
	k = k<<8 | numberOf(&c.oplogs, m.OplogMB)
	k = k<<8 | numberOf(&c.delays, m.Delay)
	k = k<<3 | uint64(m.State)
	k = k<<3 | flags(m)
	return k<<1 | uint64(m.Votes) //nolint:gosec // 0 or 1
}

// spare packs all of s but its host.
func (c *codec) spare(s *Spare) uint64 {
	return numberOf(&c.zones, s.Zone)<<8 | numberOf(&c.instances, s.Instance)
}

// key gives v's canonical key.
func (c *codec) key(v Vertex) string {
	c.packed = c.packed[:0]
	for i := range v.Members {
		c.packed = append(c.packed, c.member(&v.Members[i]))
	}
	slices.Sort(c.packed)
	n := len(c.packed)
	for i := range v.Spares {
		c.packed = append(c.packed, c.spare(&v.Spares[i]))
	}
	slices.Sort(c.packed[n:])
	c.buf = append(c.buf[:0], byte(n))
	for _, k := range c.packed {
		c.buf = binary.BigEndian.AppendUint64(c.buf, k)
	}
	return string(c.buf)
}
