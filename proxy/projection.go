package proxy

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// What a client's projection hides, a merge may need: it goes to the shards so that they
// show it, and what was only there for the merge is taken out again.

// projection is what a client wants to see, with paths in full.
type projection struct {
	shown  bool           // only what it names is seen
	hidden []string       // paths that it takes out
	others []wire.Element // of a projection that hides: whatever else it says, by full path
}

// readProjection reads a projection.
func readProjection(doc bson.Raw) projection {
	var p projection
	id, elemMatch := 0, false // 1: _id is wanted, -1: it is not
	p.read(doc, "", &id, &elemMatch)
	switch {
	case p.shown || len(p.hidden) > 0:
	case elemMatch || id > 0:
		p.shown = true
	}
	if id < 0 {
		p.hidden = append(p.hidden, "_id")
	}
	return p
}

// read takes in one level.
func (p *projection) read(doc bson.Raw, prefix string, id *int, elemMatch *bool) {
	for w := wire.Walk(doc); w.Next(); {
		path := prefix + string(w.Key)
		switch w.Type {
		case bson.TypeBoolean, bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
			switch {
			case path == "_id" && w.Truth():
				*id = 1
			case path == "_id":
				*id = -1
			case w.Truth():
				p.shown = true
			default:
				p.hidden = append(p.hidden, path)
			}
		case bson.TypeEmbeddedDocument:
			first := wire.Walk(w.Document())
			switch {
			case !first.Next():
				p.shown = true
			case !operators(w.Element):
				p.read(w.Document(), path+".", id, elemMatch)
			case first.Is("$elemMatch"):
				*elemMatch = true
			case first.Is("$slice"), first.Is("$meta"):
				e := w.Element
				e.Key = []byte(path)
				p.others = append(p.others, e)
			default:
				p.shown = true
			}
		default:
			p.shown = true
		}
	}
}

// project gives the projection for the shards, in which every field that the
// sort needs is visible. changed is false when the client's own will do.
func (o *sortOrder) project(doc bson.Raw) (out []byte, changed bool, _ *refusal) {
	p := readProjection(doc)
	if !p.shown {
		return o.projectHiding(p, doc)
	}
	at, out := bsoncore.AppendDocumentStart(nil)
	out = append(out, doc[4:len(doc)-1]...)
	o.hidden = map[string]bool{}
	for i := range o.fields {
		// The whole field: what a sort sees on a path through arrays, no expression gives.
		f := &o.fields[i]
		name := "__drover_sort" + index(i)
		out = bsoncore.AppendStringElement(out, name, "$"+f.path[0])
		f.path = append([]string{name}, f.path[1:]...)
		o.hidden[name] = true
	}
	out, _ = bsoncore.AppendDocumentEnd(out, at)
	return out, true, nil
}

// projectHiding is project for a projection that takes fields out.
func (o *sortOrder) projectHiding(p projection, doc bson.Raw) (out []byte, changed bool, _ *refusal) {
	for _, e := range p.others {
		if first := wire.Walk(e.Document()); first.Next() && first.Is("$slice") && o.needs(string(e.Key)) {
			return nil, false, refuse(codeNotSupported, "a $slice of what the sort looks at is only supported on one chunk: name the shard key")
		}
	}
	at, out := bsoncore.AppendDocumentStart(nil)
	for _, path := range p.hidden {
		if o.needs(path) {
			o.cut = append(o.cut, path)
			continue
		}
		out = bsoncore.AppendInt32Element(out, path, 0)
	}
	if len(o.cut) == 0 {
		return doc, false, nil
	}
	for _, e := range p.others {
		out = bsoncore.AppendValueElement(out, string(e.Key), bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value})
	}
	out, _ = bsoncore.AppendDocumentEnd(out, at)
	return out, true, nil
}

// needs reports whether the sort looks at path, at what holds it, or into it.
func (o *sortOrder) needs(path string) bool {
	for i := range o.fields {
		own := strings.Join(o.fields[i].path, ".")
		if own == path || strings.HasPrefix(own, path+".") || strings.HasPrefix(path, own+".") {
			return true
		}
	}
	return false
}

// strip takes out of a document what was only there for the sort.
func (o *sortOrder) strip(doc []byte) []byte {
	for _, path := range o.cut {
		doc = without(doc, strings.Split(path, "."))
	}
	if len(o.hidden) == 0 {
		return doc
	}
	at, out := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	for w := wire.Walk(doc); w.Next(); {
		if !o.hidden[string(w.Key)] {
			out = append(out, w.Raw...)
		}
	}
	out, _ = bsoncore.AppendDocumentEnd(out, at)
	return out
}

// without gives doc without the field at path, also inside arrays on the way.
func without(doc []byte, path []string) []byte {
	return cutPath(doc, path, false)
}

// cutPath is without for a document or, in an array, its elements.
func cutPath(doc []byte, path []string, array bool) []byte {
	at, out := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	for w := wire.Walk(doc); w.Next(); {
		rest := path
		switch {
		case array:
		case !w.Is(path[0]):
			out = append(out, w.Raw...)
			continue
		case len(path) == 1:
			continue
		default:
			rest = path[1:]
		}
		switch w.Type {
		case bson.TypeEmbeddedDocument:
			out = bsoncore.AppendDocumentElement(out, string(w.Key), cutPath(w.Value, rest, false))
		case bson.TypeArray:
			out = bsoncore.AppendArrayElement(out, string(w.Key), cutPath(w.Value, rest, true))
		default:
			out = append(out, w.Raw...)
		}
	}
	out, _ = bsoncore.AppendDocumentEnd(out, at)
	return out
}
