package replication

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxImage is the size above which a fold's result is refused. The server's own
// limit is 16 MB; what the source holds fits, so more than this is not a result.
const maxImage = 17 << 20

// maxPadding bounds how far past its end an array is filled with nulls, as the
// server bounds it.
const maxPadding = 1_500_000

// FoldReason says why an update could not be applied to an image.
type FoldReason string

// The reasons.
const (
	BadBSON            FoldReason = "not valid BSON"
	UnknownDescription FoldReason = "an update description of unknown form"
	ThroughScalar      FoldReason = "the path leads through a value that is no document or array"
	MissingParent      FoldReason = "a part of the path before the last is missing"
	MissingField       FoldReason = "the field to be removed or truncated is missing"
	NotAnIndex         FoldReason = "the path names no index of an array"
	PastTheEnd         FoldReason = "the index is too far past the array's end"
	DuplicateField     FoldReason = "the image has several fields of that name"
	Ambiguous          FoldReason = "the path fits several fields of the image"
	TooLarge           FoldReason = "the result is too large for a document"
)

// FoldError is an update that cannot be applied to an image. The image is
// spoilt afterwards.
type FoldError struct {
	Reason FoldReason
	Path   string // as far as it is known; a field's name may be part of it, never a value
}

func (e *FoldError) Error() string {
	if e.Path == "" {
		return "fold: " + string(e.Reason)
	}
	return fmt.Sprintf("fold %q: %s", e.Path, e.Reason)
}

// foldErr makes a [FoldError].
func foldErr(r FoldReason, path string) error { return &FoldError{Reason: r, Path: path} }

// FoldOptions says what may be assumed about the image and about the server
// that described the update. The zero value is strict, for a stock mongod.
type FoldOptions struct {
	// Lenient is for an image that may be newer than the update: what does not
	// fit is left out, because a later event sets it again.
	Lenient bool

	// SortNewFields is for a server that stores new fields in the order of
	// their names but lists them in another order.
	SortNewFields bool
}

// Image is a document that updates are folded onto. Only the levels that a path
// leads through are parsed.
type Image struct {
	root   value
	events int64
	sets   []*container // where the event being applied added fields
}

// NewImage takes a raw document. It keeps raw, and the updates applied later,
// until the image is no longer used; it never changes them.
func NewImage(raw bson.Raw) (*Image, error) {
	img := &Image{root: value{kind: typeDocument, raw: raw}}
	if _, err := documentBody(raw); err != nil {
		return nil, err
	}
	return img, nil
}

// Fold applies one update description to a raw document.
func Fold(raw, change bson.Raw, opts FoldOptions) (bson.Raw, error) {
	img, err := NewImage(raw)
	if err != nil {
		return nil, err
	}
	if err := img.Apply(change, opts); err != nil {
		return nil, err
	}
	return img.Raw()
}

// Raw gives the document as it is now.
func (img *Image) Raw() (bson.Raw, error) {
	if img.root.children == nil {
		return img.root.raw, nil
	}
	b := img.root.append(make([]byte, 0, len(img.root.raw)+128))
	if len(b) > maxImage {
		return nil, foldErr(TooLarge, "")
	}
	return b, nil
}

// description is a parsed update description. Its slices share the event's bytes.
type description struct {
	removed   []string
	truncated []truncation
	updated   []field
	paths     map[string][]step // of disambiguatedPaths
}

// truncation is one array that became shorter.
type truncation struct {
	path string
	size int
}

// Apply folds the update description of one event onto the image. One that says
// nothing changes nothing. In strict mode what does not fit is a [FoldError].
//
// Removals come first, then truncations, then sets in the order listed: so does
// the server apply the diff that the description was made from, and the three
// never name the same path.
func (img *Image) Apply(change bson.Raw, opts FoldOptions) error {
	d, err := parseDescription(change)
	if err != nil {
		return err
	}
	img.events++
	img.sets = img.sets[:0]
	a := &applier{img: img, d: d, opts: opts}
	for _, path := range d.removed {
		if err := a.lenient(a.remove(path)); err != nil {
			return err
		}
	}
	for _, t := range d.truncated {
		if err := a.lenient(a.truncate(t)); err != nil {
			return err
		}
	}
	for i := range d.updated {
		if err := a.lenient(a.set(d.updated[i].name, d.updated[i].value)); err != nil {
			return err
		}
	}
	img.settle(opts)
	return nil
}

// settle ends an event: sorts its new fields where the server does.
func (img *Image) settle(opts FoldOptions) {
	for _, c := range img.sets {
		if opts.SortNewFields && !c.array && !c.reinsert && len(c.fields)-c.fresh > 1 {
			slices.SortFunc(c.fields[c.fresh:], func(x, y field) int { return strings.Compare(x.name, y.name) })
			c.names = nil
		}
		c.sweep()
	}
}

// applier applies one event to one image.
type applier struct {
	img         *Image
	d           *description
	opts        FoldOptions
	renamedFrom []value // what the event removed: a set value may come from there
}

// lenient drops an error that leniency allows. Broken BSON is never allowed.
func (a *applier) lenient(err error) error {
	if err == nil || !a.opts.Lenient {
		return err
	}
	fe, ok := err.(*FoldError) //nolint:errorlint // made here, never wrapped
	if ok && (fe.Reason == ThroughScalar || fe.Reason == MissingParent || fe.Reason == MissingField || fe.Reason == NotAnIndex) {
		return nil
	}
	return err
}

// remove takes a field out of its document.
func (a *applier) remove(path string) error {
	at, err := a.resolve(path, false)
	if err != nil {
		return err
	}
	if at.parent.array {
		return foldErr(NotAnIndex, path)
	}
	if at.index < 0 {
		return foldErr(MissingField, path)
	}
	a.touch(at.parent)
	a.renamedFrom = append(a.renamedFrom, at.parent.fields[at.index].value)
	at.parent.drop(at.index)
	return nil
}

// truncate shortens an array.
func (a *applier) truncate(t truncation) error {
	at, err := a.resolve(t.path, false)
	if err != nil {
		return err
	}
	if at.index < 0 || at.index >= len(at.parent.fields) {
		return foldErr(MissingField, t.path)
	}
	v := &at.parent.fields[at.index].value
	if v.kind != typeArray {
		return foldErr(ThroughScalar, t.path)
	}
	c, _, err := v.into()
	if err != nil {
		return err
	}
	if t.size < len(c.fields) {
		clear(c.fields[t.size:])
		c.fields, c.names = c.fields[:t.size], nil
	}
	return nil
}

// set gives a field or an array element a new value.
func (a *applier) set(path string, v value) error {
	at, err := a.resolve(path, true)
	if err != nil {
		return err
	}
	c := at.parent
	a.touch(c)
	switch {
	case c.array:
		return setElement(c, at, v, path)
	case at.index < 0:
		c.push(field{name: at.name, value: v})
	case a.movesToEnd(c, at.index, v):
		c.reinsert = true
		name := c.fields[at.index].name
		c.drop(at.index) // places stay until the event is over
		c.push(field{name: name, value: v})
	default:
		c.fields[at.index].value = v
	}
	return nil
}

// setElement sets an element of an array, which grows as far as it must.
func setElement(c *container, at place, v value, path string) error {
	if at.index < len(c.fields) {
		c.fields[at.index].value = v
		return nil
	}
	if at.index-len(c.fields) > maxPadding {
		return foldErr(PastTheEnd, path)
	}
	for len(c.fields) < at.index {
		c.push(field{name: elementName(len(c.fields)), value: value{kind: typeNull}})
	}
	c.push(field{name: elementName(at.index), value: v})
	return nil
}

// touch readies c for what the event changes in it.
func (a *applier) touch(c *container) {
	if c.event == a.img.events {
		return
	}
	c.event, c.fresh, c.reinsert = a.img.events, len(c.fields), false
	a.img.sets = append(a.img.sets, c)
}

// movesToEnd tells whether a set of a field that exists takes it to the end of
// its document. A server that diffs two documents (pipeline updates) lists, at
// each level, what changed in its place first; then what it appends, which may
// be there already. It lists nothing that is in its place and did not change,
// so a field with the very value it had is being appended, and so are those
// listed after it. Two exceptions list an unchanged value in its place: a
// $rename onto an equal value, and arithmetic on NaN.
func (a *applier) movesToEnd(c *container, i int, v value) bool {
	if a.opts.Lenient {
		return false
	}
	if c.reinsert || i >= c.fresh {
		return i < c.fresh
	}
	old := &c.fields[i].value
	if !sameValue(old, v) || isNaN(v) {
		return false
	}
	return !slices.ContainsFunc(a.renamedFrom, func(r value) bool { return sameValue(&r, v) })
}

// sameValue compares values byte for byte.
func sameValue(old *value, v value) bool {
	if old.kind != v.kind {
		return false
	}
	if old.children == nil {
		return bytes.Equal(old.raw, v.raw)
	}
	return bytes.Equal(old.append(nil), v.raw)
}

// isNaN reports whether v is a number that is none.
func isNaN(v value) bool {
	switch {
	case v.kind == typeDouble && len(v.raw) == 8:
		return math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(v.raw)))
	case v.kind == typeDecimal && len(v.raw) == 16:
		return v.raw[15]&0x7c == 0x7c
	default:
		return false
	}
}
