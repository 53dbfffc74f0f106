package replication

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// step is one part of a path whose meaning is known: an index or a name.
type step struct {
	name    string
	index   int
	isIndex bool
}

// place is where a path ends: a container and what in it.
type place struct {
	parent *container
	name   string // of the field, in a document
	index  int    // of the element; of the field, -1 when there is none
}

// resolve finds where path ends in the image. The server's own word about a
// path (disambiguatedPaths) is followed to the letter. Any other path is read
// against the image: what stands below an array is an index, anything else is
// a field's name. What adds says is whether the path may end at a field or an
// element that is not there yet.
func (a *applier) resolve(path string, adds bool) (place, error) {
	root, _, err := a.img.root.into()
	if err != nil {
		return place{}, err
	}
	if steps, ok := a.d.paths[path]; ok {
		return resolveSteps(root, steps, path)
	}
	if !strings.Contains(path, ".") {
		at, err := root.find(path)
		return place{parent: root, name: path, index: at}, err
	}
	s := &search{path: path, parts: strings.Split(path, ".")}
	s.walk(root, 0)
	return s.result(adds)
}

// resolveSteps follows a path whose parts are known.
func resolveSteps(c *container, steps []step, path string) (place, error) {
	for i, s := range steps {
		if s.isIndex != c.array {
			return place{}, foldErr(NotAnIndex, path)
		}
		at := s.index
		if !c.array {
			var err error
			if at, err = c.find(s.name); err != nil {
				return place{}, err
			}
		}
		if i == len(steps)-1 {
			return place{parent: c, name: s.name, index: at}, nil
		}
		if at < 0 || at >= len(c.fields) {
			return place{}, foldErr(MissingParent, path)
		}
		next, ok, err := c.fields[at].into()
		if err != nil {
			return place{}, err
		}
		if !ok {
			return place{}, foldErr(ThroughScalar, path)
		}
		c = next
	}
	return place{}, foldErr(UnknownDescription, path)
}

// search reads a dotted path against an image. Where field names hold dots
// themselves there may be several readings, and two are one too many.
type search struct {
	path  string
	parts []string
	found []place // readings that end at what exists
	fresh []place // readings that add a field or an element
	err   error   // why a reading did not go through: the first, or the one that ended the search
	fatal bool
	tries int
}

// maxReadings bounds the readings of one path that are tried.
const maxReadings = 4096

// walk reads parts[i:] from c.
func (s *search) walk(c *container, i int) {
	s.tries++
	if s.tries > maxReadings {
		s.fail(foldErr(Ambiguous, s.path))
		return
	}
	if c.array {
		s.element(c, i)
		return
	}
	s.name(c, i, i+1)
	if !c.dotted {
		return
	}
	for j := i + 2; j <= len(s.parts); j++ {
		s.name(c, i, j)
	}
}

// element reads parts[i] as an index of array c.
func (s *search) element(c *container, i int) {
	at, ok := parseIndex(s.parts[i])
	switch {
	case !ok:
		s.fail(foldErr(NotAnIndex, s.path))
	case i == len(s.parts)-1 && at < len(c.fields):
		s.found = append(s.found, place{parent: c, index: at})
	case i == len(s.parts)-1:
		s.fresh = append(s.fresh, place{parent: c, index: at})
	case at >= len(c.fields):
		s.fail(foldErr(MissingParent, s.path))
	default:
		s.descend(&c.fields[at].value, i+1)
	}
}

// name reads parts[i:j] as one field's name of document c.
func (s *search) name(c *container, i, j int) {
	name := s.parts[i]
	if j > i+1 {
		name = strings.Join(s.parts[i:j], ".")
	}
	at, err := c.find(name)
	switch {
	case err != nil:
		s.fail(err)
	case at >= 0 && j == len(s.parts):
		s.found = append(s.found, place{parent: c, name: name, index: at})
	case at >= 0:
		s.descend(&c.fields[at].value, j)
	case j == len(s.parts) && j == i+1: // a new name is never taken to hold a dot
		s.fresh = append(s.fresh, place{parent: c, name: name, index: -1})
	default:
		s.fail(foldErr(MissingParent, s.path))
	}
}

// descend goes on inside v.
func (s *search) descend(v *value, i int) {
	c, ok, err := v.into()
	switch {
	case err != nil:
		s.fail(err)
	case !ok:
		s.fail(foldErr(ThroughScalar, s.path))
	default:
		s.walk(c, i)
	}
}

// fail notes why a reading did not go through. What makes the image itself
// doubtful ends the search.
func (s *search) fail(err error) {
	var fe *FoldError
	fatal := errors.As(err, &fe) && (fe.Reason == DuplicateField || fe.Reason == BadBSON || fe.Reason == Ambiguous)
	if s.err == nil || fatal && !s.fatal {
		s.err, s.fatal = err, fatal
	}
}

// result gives the only reading there is.
func (s *search) result(adds bool) (place, error) {
	if s.fatal {
		return place{}, s.err
	}
	readings := s.found
	if adds {
		readings = append(readings, s.fresh...)
	}
	switch {
	case len(readings) == 1:
		return readings[0], nil
	case len(readings) > 1:
		return place{}, foldErr(Ambiguous, s.path)
	case len(s.fresh) > 0:
		return place{}, foldErr(MissingField, s.path)
	default:
		return place{}, s.err
	}
}

// parseIndex reads an array index as the server writes it: digits, no leading zero.
func parseIndex(s string) (int, bool) {
	if s == "" || len(s) > 9 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil
}

// parseDescription reads an event's update description. A part that is not
// known stops it: what it would have changed is not known either.
func parseDescription(change bson.Raw) (*description, error) {
	body, err := documentBody(change)
	if err != nil {
		return nil, err
	}
	d := &description{}
	for len(body) > 0 {
		var f field
		if f, body, err = nextField(body); err != nil {
			return nil, err
		}
		if err := d.part(f); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// part reads one part of a description. null stands for an absent part.
func (d *description) part(f field) error {
	if f.kind == typeNull {
		return nil
	}
	c, ok, err := f.into()
	if err != nil {
		return err
	}
	isArray := f.name == "removedFields" || f.name == "truncatedArrays"
	if !ok || c.array != isArray {
		return foldErr(UnknownDescription, f.name)
	}
	switch f.name {
	case "updatedFields":
		d.updated = c.fields
	case "removedFields":
		return d.readRemoved(c)
	case "truncatedArrays":
		return d.readTruncated(c)
	case "disambiguatedPaths":
		return d.readPaths(c)
	default:
		return foldErr(UnknownDescription, f.name)
	}
	return nil
}

func (d *description) readRemoved(c *container) error {
	for i := range c.fields {
		s, ok := c.fields[i].text()
		if !ok {
			return foldErr(UnknownDescription, "removedFields")
		}
		d.removed = append(d.removed, s)
	}
	return nil
}

func (d *description) readTruncated(c *container) error {
	for i := range c.fields {
		e, ok, err := c.fields[i].into()
		if err != nil {
			return err
		}
		if !ok || len(e.fields) != 2 {
			return foldErr(UnknownDescription, "truncatedArrays")
		}
		var t truncation
		path, isText := "", false
		size, isNumber := 0, false
		for j := range e.fields {
			switch e.fields[j].name {
			case "field":
				path, isText = e.fields[j].text()
			case "newSize":
				size, isNumber = e.fields[j].count()
			}
		}
		if !isText || !isNumber {
			return foldErr(UnknownDescription, "truncatedArrays")
		}
		t.path, t.size = path, size
		d.truncated = append(d.truncated, t)
	}
	return nil
}

func (d *description) readPaths(c *container) error {
	d.paths = make(map[string][]step, len(c.fields))
	for i := range c.fields {
		e, ok, err := c.fields[i].into()
		if err != nil {
			return err
		}
		if !ok || !e.array || len(e.fields) == 0 {
			return foldErr(UnknownDescription, "disambiguatedPaths")
		}
		steps := make([]step, len(e.fields))
		for j := range e.fields {
			if s, ok := e.fields[j].text(); ok {
				steps[j] = step{name: s}
				continue
			}
			n, ok := e.fields[j].count()
			if !ok {
				return foldErr(UnknownDescription, "disambiguatedPaths")
			}
			steps[j] = step{index: n, isIndex: true}
		}
		d.paths[c.fields[i].name] = steps
	}
	return nil
}

// text gives v if it is a string.
func (v *value) text() (string, bool) {
	if v.kind != typeString || len(v.raw) < 5 {
		return "", false
	}
	return string(v.raw[4 : len(v.raw)-1]), true
}

// count gives v if it is an integer from 0 to 2^31-1.
func (v *value) count() (int, bool) {
	var n int64
	switch v.kind {
	case typeInt32:
		n = int64(int32(binary.LittleEndian.Uint32(v.raw))) //nolint:gosec // two's complement
	case typeInt64:
		n = int64(binary.LittleEndian.Uint64(v.raw)) //nolint:gosec // two's complement
	default:
		return 0, false
	}
	return int(n), n >= 0 && n <= 1<<31-1
}
