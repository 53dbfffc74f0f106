package replication

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// edit is an update in the making: a document changed by a model that knows
// nothing of the fold, with the description that a change stream would give.
type edit struct {
	r         *rand.Rand
	taken     []string // paths that were named: none may lead through another
	updated   bson.D
	removed   bson.A
	truncated bson.A
	paths     bson.D
}

// editDocument makes a random update of a document; nil when it changes nothing.
func editDocument(r *rand.Rand, doc bson.D) (bson.D, bson.D) {
	e := &edit{r: r}
	out := e.document(clone(doc).(bson.D), nil, 1+r.IntN(4))
	if len(e.updated)+len(e.removed)+len(e.truncated) == 0 {
		return nil, nil
	}
	change := bson.D{{Key: "updatedFields", Value: e.updated}, {Key: "removedFields", Value: e.removed}, {Key: "truncatedArrays", Value: e.truncated}}
	if r.IntN(2) == 0 {
		change = append(change, bson.E{Key: "disambiguatedPaths", Value: e.paths})
	}
	return out, change
}

// clone copies a value as deep as documents and arrays go.
func clone(v any) any {
	switch v := v.(type) {
	case bson.D:
		d := make(bson.D, 0, len(v))
		for _, f := range v {
			d = append(d, bson.E{Key: f.Key, Value: clone(f.Value)})
		}
		return d
	case bson.A:
		a := make(bson.A, 0, len(v))
		for _, x := range v {
			a = append(a, clone(x))
		}
		return a
	default:
		return v
	}
}

// name notes a path, as it is written and as it is meant.
func (e *edit) name(path []any) (string, bool) {
	parts := make([]string, len(path))
	odd := false
	for i, p := range path {
		parts[i] = fmt.Sprint(p)
		odd = odd || strings.Trim(parts[i], "0123456789") == ""
	}
	text := strings.Join(parts, ".")
	for _, t := range e.taken {
		if t == text || strings.HasPrefix(t, text+".") || strings.HasPrefix(text, t+".") {
			return "", false
		}
	}
	e.taken = append(e.taken, text)
	if odd {
		e.paths = append(e.paths, bson.E{Key: text, Value: bson.A(slices.Clone(path))})
	}
	return text, true
}

// same reports whether two values are the same bytes: a server lists no field that
// it did not change.
func same(a, b any) bool {
	x, errX := bson.Marshal(bson.D{{Key: "v", Value: a}})
	y, errY := bson.Marshal(bson.D{{Key: "v", Value: b}})
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// set notes a new value.
func (e *edit) set(path []any, v any) bool {
	text, ok := e.name(path)
	if ok {
		e.updated = append(e.updated, bson.E{Key: text, Value: v})
	}
	return ok
}

// below appends a step to a path without sharing its memory.
func below(path []any, step any) []any { return append(slices.Clone(path), step) }

// document changes some fields of one level; new ones come last, as they are listed.
func (e *edit) document(d bson.D, path []any, n int) bson.D {
	for range n {
		i := e.r.IntN(len(d) + 1)
		if i == len(d) || d[i].Key == "_id" {
			continue
		}
		switch v := d[i].Value.(type) {
		case bson.D:
			if e.r.IntN(3) > 0 {
				d[i].Value = e.document(v, below(path, d[i].Key), 1+e.r.IntN(2))
				continue
			}
		case bson.A:
			if e.r.IntN(3) > 0 {
				d[i].Value = e.array(v, below(path, d[i].Key))
				continue
			}
		}
		if e.r.IntN(3) == 0 {
			if text, ok := e.name(below(path, d[i].Key)); ok {
				e.removed = append(e.removed, text)
				d = slices.Delete(d, i, i+1)
			}
			continue
		}
		if v := anyValue(e.r, 2); !same(v, d[i].Value) && e.set(below(path, d[i].Key), v) {
			d[i].Value = v
		}
	}
	for range e.r.IntN(2) {
		name := anyName(e.r)
		if slices.ContainsFunc(d, func(f bson.E) bool { return f.Key == name }) {
			continue
		}
		if v := anyValue(e.r, 2); e.set(below(path, name), v) {
			d = append(d, bson.E{Key: name, Value: v})
		}
	}
	return d
}

// array shortens one, changes its elements, or adds some at or beyond its end.
func (e *edit) array(a bson.A, path []any) bson.A {
	mark, ok := e.name(below(path, "#")) // so that nobody sets the whole; its elements may be named all the same
	if !ok {
		return a
	}
	text := strings.TrimSuffix(mark, ".#")
	e.paths = slices.DeleteFunc(e.paths, func(f bson.E) bool { return f.Key == mark })
	touched := slices.ContainsFunc(e.taken, func(t string) bool { return t != mark && strings.HasPrefix(t, text+".") })
	if len(a) > 0 && !touched && e.r.IntN(3) == 0 {
		a = a[:e.r.IntN(len(a))]
		e.truncated = append(e.truncated, bson.D{{Key: "field", Value: text}, {Key: "newSize", Value: int32(len(a))}})
		e.note(text, path)
	}
	for range e.r.IntN(3) {
		i := e.r.IntN(len(a) + 3)
		if i < len(a) {
			if d, ok := a[i].(bson.D); ok && e.r.IntN(2) == 0 {
				a[i] = e.document(d, below(path, int32(i)), 1)
				continue
			}
		}
		v := anyValue(e.r, 1)
		if i < len(a) && same(v, a[i]) || !e.set(below(path, int32(i)), v) { //nolint:gosec // small
			continue
		}
		for len(a) <= i {
			a = append(a, nil)
		}
		a[i] = v
	}
	return a
}

// note lists how a path is meant where its text may be read in two ways.
func (e *edit) note(text string, path []any) {
	for _, p := range path {
		if strings.Trim(fmt.Sprint(p), "0123456789") == "" {
			e.paths = append(e.paths, bson.E{Key: text, Value: bson.A(slices.Clone(path))})
			return
		}
	}
}
