package proxy

import (
	"context"
	"regexp"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// listDatabases lists the logical databases that the user may know of.
//
// Behaviour: nameOnly; filter by name: a value, $eq, $in, or a regular expression.
//
// Not supported: sizes, which are 0 (dbStats has them); any other filter (BadValue, 2).
func listDatabases(_ context.Context, p *Proxy, q *request) error {
	nameOnly := q.option("nameOnly").Type != 0 && q.option("nameOnly").Truth()
	filter, err := q.document("filter")
	if err != nil {
		return err
	}
	names, refused := namesLike(q.visible(p.routing.databaseNames()), filter)
	if refused != nil {
		return refused
	}
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendArrayElementStart(dst, "databases")
		for i, name := range names {
			var doc int32
			doc, dst = bsoncore.AppendDocumentElementStart(dst, index(i))
			dst = bsoncore.AppendStringElement(dst, "name", name)
			if !nameOnly {
				dst = bsoncore.AppendInt64Element(dst, "sizeOnDisk", 0)
				dst = bsoncore.AppendBooleanElement(dst, "empty", false)
			}
			dst, _ = bsoncore.AppendDocumentEnd(dst, doc)
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		if !nameOnly {
			dst = bsoncore.AppendInt64Element(dst, "totalSize", 0)
			dst = bsoncore.AppendInt64Element(dst, "totalSizeMb", 0)
		}
		return dst
	})
	return nil
}

// namesLike keeps the names that a filter of listDatabases takes.
func namesLike(names []string, filter bson.Raw) ([]string, *refusal) {
	for w := wire.Walk(filter); w.Next(); {
		if !w.Is("name") {
			return nil, refuse(codeBadValue, "listDatabases cannot be filtered by %s", w.Key)
		}
		takes, refused := nameMatcher(w.Element)
		if refused != nil {
			return nil, refused
		}
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !takes(name) })
	}
	return names, nil
}

// nameMatcher gives what a condition on the name takes.
func nameMatcher(e wire.Element) (takes func(string) bool, _ *refusal) {
	switch e.Type {
	case bson.TypeString:
		wanted := string(e.Text())
		return func(name string) bool { return name == wanted }, nil
	case bson.TypeRegex:
		return patternMatcher(e.RawValue().Regex())
	case bson.TypeEmbeddedDocument:
		return nameOperators(e.Document())
	default:
		return nil, refuse(codeBadValue, "listDatabases cannot be filtered by a name of type %s", e.Type)
	}
}

// patternMatcher gives what a regular expression takes.
func patternMatcher(pattern, flags string) (func(string) bool, *refusal) {
	if flags != "" {
		pattern = "(?" + flags + ")" + pattern
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, refuse(codeBadValue, "listDatabases: %v", err)
	}
	return re.MatchString, nil
}

// nameOperators gives what all operators of a condition take together.
func nameOperators(doc bson.Raw) (func(string) bool, *refusal) {
	var all []func(string) bool
	for w := wire.Walk(doc); w.Next(); {
		var takes func(string) bool
		var refused *refusal
		switch string(w.Key) {
		case "$eq":
			takes, refused = nameMatcher(w.Element)
		case "$in":
			takes, refused = anyOfNames(w.Document())
		case "$regex":
			options, _ := wire.Find(doc, "$options")
			pattern, flags := string(w.Text()), string(options.Text())
			if w.Type == bson.TypeRegex {
				pattern, flags = w.RawValue().Regex()
			}
			takes, refused = patternMatcher(pattern, flags)
		case "$options":
			continue
		default:
			refused = refuse(codeBadValue, "listDatabases cannot be filtered by %s", w.Key)
		}
		if refused != nil {
			return nil, refused
		}
		all = append(all, takes)
	}
	return func(name string) bool {
		return !slices.ContainsFunc(all, func(takes func(string) bool) bool { return !takes(name) })
	}, nil
}

// anyOfNames gives what one of the values of a list takes.
func anyOfNames(list bson.Raw) (func(string) bool, *refusal) {
	var all []func(string) bool
	for w := wire.Walk(list); w.Next(); {
		takes, refused := nameMatcher(w.Element)
		if refused != nil {
			return nil, refused
		}
		all = append(all, takes)
	}
	return func(name string) bool {
		return slices.ContainsFunc(all, func(takes func(string) bool) bool { return takes(name) })
	}, nil
}
