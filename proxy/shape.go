package proxy

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

const (
	// maxShapes bounds the shapes that are counted apart; the rest is counted
	// together.
	maxShapes = 2000
	// maxShape bounds a shape's text, and maxShapeDepth how deep it looks.
	maxShape      = 512
	maxShapeDepth = 6
)

// otherShape stands for the shapes that there is no room for.
const otherShape = "(other shapes)"

// Shape is what was counted about requests that differ in values only.
type Shape struct {
	Database string        `json:"database"`
	Shape    string        `json:"shape"`
	Count    int64         `json:"count"`
	Failed   int64         `json:"failed"`
	Time     time.Duration `json:"time_ns"`
}

// shapeCount counts one shape.
type shapeCount struct {
	database, text string
	n, failed, ns  atomic.Int64
}

// shapes counts requests by shape.
type shapes struct {
	seed maphash.Seed

	mu    sync.RWMutex
	all   map[uint64]*shapeCount
	other shapeCount
}

// newShapes makes an empty count.
func newShapes() *shapes {
	s := &shapes{seed: maphash.MakeSeed(), all: map[uint64]*shapeCount{}}
	s.other.text = otherShape
	return s
}

// count counts one request.
func (s *shapes) count(q *request, failed bool, took time.Duration) {
	q.client.scratch = append(append(q.client.scratch[:0], q.cmd.DB...), 0)
	q.client.scratch = q.appendShape(q.client.scratch)
	text := q.client.scratch[len(q.cmd.DB)+1:]
	key := maphash.Bytes(s.seed, q.client.scratch)
	s.mu.RLock()
	c := s.all[key]
	full := len(s.all) >= maxShapes
	s.mu.RUnlock()
	if c == nil && full {
		c = &s.other
	}
	if c == nil {
		s.mu.Lock()
		if c = s.all[key]; c == nil {
			c = &shapeCount{database: string(q.cmd.DB), text: string(text)}
			s.all[key] = c
		}
		s.mu.Unlock()
	}
	c.n.Add(1)
	c.ns.Add(int64(took))
	if failed {
		c.failed.Add(1)
	}
}

// Shapes gives the n shapes that took most time.
func (p *Proxy) Shapes(n int) []Shape {
	p.shapes.mu.RLock()
	all := make([]*shapeCount, 0, len(p.shapes.all)+1)
	all = append(all, &p.shapes.other)
	for _, c := range p.shapes.all {
		all = append(all, c)
	}
	p.shapes.mu.RUnlock()
	out := make([]Shape, 0, len(all))
	for _, c := range all {
		if count := c.n.Load(); count > 0 {
			out = append(out, Shape{c.database, c.text, count, c.failed.Load(), time.Duration(c.ns.Load())})
		}
	}
	slices.SortFunc(out, func(a, b Shape) int { return cmp.Compare(b.Time, a.Time) })
	return out[:min(n, len(out))]
}

// shape gives a request's text without any value: fields and operators only.
func (q *request) shape() string { return string(q.appendShape(nil)) }

// appendShape appends the shape.
func (q *request) appendShape(dst []byte) []byte {
	from := len(dst)
	dst = append(append(append(dst, q.cmd.Name...), ' '), q.cmd.Collection()...)
	w := wire.Walk(q.cmd.Body)
	w.Next() // the command itself
	for w.Next() {
		switch string(w.Key) {
		case "filter", "query", "sort", "update", "pipeline", "projection", "fields":
			dst = append(append(append(dst, ' '), w.Key...), ' ')
			dst = appendShapeOf(dst, from, w.Element, 0)
		case "updates", "deletes":
			if inner := wire.Walk(w.Document()); inner.Next() {
				dst = appendStatementShape(dst, from, inner.Document())
			}
		case "key":
			dst = append(append(dst, " key "...), w.Text()...)
		}
	}
	for _, s := range q.sequences {
		if (string(s.Name) == "updates" || string(s.Name) == "deletes") && len(s.Docs) > 0 {
			doc, _ := wire.NextDocument(s.Docs)
			dst = appendStatementShape(dst, from, doc)
		}
	}
	return dst
}

// appendStatementShape appends the shape of a batch's first statement.
func appendStatementShape(dst []byte, from int, doc bson.Raw) []byte {
	for w := wire.Walk(doc); w.Next(); {
		if w.Is("q") || w.Is("u") {
			dst = append(append(append(dst, ' '), w.Key...), ' ')
			dst = appendShapeOf(dst, from, w.Element, 0)
		}
	}
	return dst
}

// appendShapeOf appends a value's shape: names of fields and operators, and ? for
// whatever is data.
func appendShapeOf(dst []byte, from int, e wire.Element, depth int) []byte {
	doc := e.Document()
	if doc == nil || depth > maxShapeDepth || len(dst)-from > maxShape {
		return append(dst, '?')
	}
	array := e.Type == bson.TypeArray
	open, end := byte('{'), byte('}')
	if array {
		open, end = '[', ']'
	}
	at := len(dst)
	dst = append(dst, open)
	first := true
	for w := wire.Walk(doc); w.Next() && len(dst)-from <= maxShape; {
		if array && w.Document() == nil {
			// A list of data: how long it is, is data too.
			return append(dst[:at], '?')
		}
		if !first {
			dst = append(dst, ' ')
		}
		first = false
		if !array {
			dst = append(append(dst, w.Key...), ':')
		}
		dst = appendShapeOf(dst, from, w.Element, depth+1)
	}
	return append(dst, end)
}
