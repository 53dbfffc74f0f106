package validation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"drover/internal/mongocode"
)

// Answers answers reads of applications: one of the two placements.
type Answers interface {
	// Answer runs a read as an application sent it, bounded; it has seen all up to
	// since.
	Answer(ctx context.Context, command bson.Raw, since bson.Timestamp) (Answer, error)
}

// Answer is what a placement says to a read.
type Answer struct {
	Documents []bson.Raw // or values, each as {v: value}; of distinct ones and of groups what all equal ones share
	Ordered   bool       // their order says something
	Cut       bool       // there were more than are looked at
	Failed    string     // the server's refusal, which both sides must share
	Took      time.Duration
}

// Mirror compares answers of both sides at equal positions: between two marks on
// whose collection nothing was changed.
type Mirror struct {
	Source, Target Answers
	Markers        Markers
	Log            Log
	Database       string // the source's physical one
}

// Mirrored is what one round of reads came to.
type Mirrored struct {
	Compared   int
	Changing   []bson.Raw // differed while their collection changed: nothing is known
	Different  []string   // what differed otherwise
	SourceTook []time.Duration
	TargetTook []time.Duration
}

// Round lets both sides answer some reads and compares.
func (m *Mirror) Round(ctx context.Context, commands []bson.Raw) (out Mirrored, err error) {
	from, err := m.mark(ctx)
	if err != nil {
		return out, err
	}
	type unlike struct {
		command bson.Raw
		what    string
	}
	var differ []unlike
	for _, c := range commands {
		if !decides(c) {
			continue
		}
		source, err := m.Source.Answer(ctx, c, from.At)
		if err != nil {
			return out, fmt.Errorf("ask the source: %w", err)
		}
		target, err := m.Target.Answer(ctx, c, bson.Timestamp{})
		if err != nil {
			return out, fmt.Errorf("ask the target: %w", err)
		}
		out.SourceTook, out.TargetTook = append(out.SourceTook, source.Took), append(out.TargetTook, target.Took)
		if what := source.unlike(target); what != "" {
			differ = append(differ, unlike{c, what})
		} else {
			out.Compared++
		}
	}
	if len(differ) == 0 {
		return out, nil
	}
	to, err := m.mark(ctx)
	if err != nil {
		return out, err
	}
	touched := NewTouched(m.Database, 100_000)
	if err := m.Log.Touched(ctx, from, to, touched); err != nil {
		return out, err
	}
	changed := map[string]bool{}
	for key := range touched.docs {
		changed[key.collection] = true
	}
	for _, d := range differ {
		name, collection := readOf(d.command)
		if changed[collection] || touched.overflow || touched.ddl != nil {
			out.Changing = append(out.Changing, d.command)
			continue
		}
		out.Compared++
		out.Different = append(out.Different, fmt.Sprintf("%s of %s: %s", name, collection, d.what))
	}
	return out, nil
}

// mark writes a marker that every lane has passed.
func (m *Mirror) mark(ctx context.Context) (Mark, error) {
	k, err := m.Markers.Write(ctx)
	if err == nil {
		err = m.Markers.Passed(ctx, k)
	}
	return k, err
}

// readOf gives a command's name and collection.
func readOf(command bson.Raw) (name, collection string) {
	first, err := command.IndexErr(0)
	if err != nil {
		return "", ""
	}
	collection, _ = first.Value().StringValueOK()
	return first.Key(), collection
}

// unlike says how two answers differ, empty when they do not. Of answers that were
// cut the order is needed for the rest to mean anything.
func (a Answer) unlike(b Answer) string {
	switch {
	case a.Failed != b.Failed:
		return fmt.Sprintf("the source says %q, the target %q", a.Failed, b.Failed)
	case len(a.Documents) != len(b.Documents) || a.Cut != b.Cut:
		return fmt.Sprintf("%d documents on the source, %d on the target", len(a.Documents), len(b.Documents))
	case a.Cut && !a.Ordered:
		return ""
	case a.Ordered && slices.EqualFunc(a.Documents, b.Documents, func(x, y bson.Raw) bool { return bytes.Equal(x, y) }):
		return ""
	case !a.Ordered && sameSet(a.Documents, b.Documents):
		return ""
	}
	return fmt.Sprintf("%d documents, not the same ones", len(a.Documents))
}

// sameSet compares documents whatever their order.
func sameSet(a, b []bson.Raw) bool {
	counts := map[[sha256.Size]byte]int{}
	for _, d := range a {
		counts[sha256.Sum256(d)]++
	}
	for _, d := range b {
		counts[sha256.Sum256(d)]--
	}
	for _, n := range counts {
		if n != 0 {
			return false
		}
	}
	return true
}

// Bounds of a mirrored read.
const (
	mirrorDocuments = 1_000
	mirrorTime      = 10 * time.Second
)

// ordered reports whether a find's order leaves nothing open. A part of any other
// order may be other documents on each side; under a collation several _ids may be alike.
func ordered(command bson.Raw) bool {
	if _, err := command.LookupErr("collation"); err == nil {
		return false
	}
	sort, ok := command.Lookup("sort").DocumentOK()
	if !ok {
		return false
	}
	_, err := sort.LookupErr("_id")
	return err == nil
}

// MongoAnswers implements [Answers] on a physical database.
type MongoAnswers struct {
	Database   *mongo.Database    // as drover_read
	Preference *readpref.ReadPref // of reads that say what they must have seen; others go to the primary
}

var _ Answers = (*MongoAnswers)(nil)

// passedOn are the fields of a read that say what is read, and not how.
var passedOn = []string{
	"find", "count", "distinct", "aggregate", "pipeline", "filter", "query", "key", "sort", "projection", "skip", "collation", "let", "hint", "min", "max",
}

// Answer implements [Answers].
func (m *MongoAnswers) Answer(ctx context.Context, command bson.Raw, since bson.Timestamp) (a Answer, err error) {
	name, _ := readOf(command)
	cmd, err := bounded(command)
	if err != nil {
		return a, err
	}
	a.Ordered = name == "find" && ordered(command)
	concern, preference := Read{Since: since}.freshness(m.Preference)
	began := time.Now()
	reply, err := m.Database.RunCommand(ctx, append(cmd, bson.E{Key: "readConcern", Value: concern}), options.RunCmd().SetReadPreference(preference)).Raw()
	a.Took = time.Since(began)
	if codes := mongocode.Codes(err); err != nil && len(codes) > 0 && !mongocode.IsRetryable(err) && !mongocode.IsUnauthorized(err) {
		a.Failed = fmt.Sprint(codes)
		return a, nil
	}
	if err != nil {
		return a, err
	}
	if err := a.take(name, reply); err != nil {
		return a, err
	}
	if _, err := command.LookupErr("collation"); err == nil && name == "distinct" {
		a.Cut = true // whichever of several spellings
	}
	return a, nil
}

// bounded gives a read that asks for the same, of a few documents at most. A limit of
// what has no order is left out: all that it would choose from is compared.
func bounded(command bson.Raw) (bson.D, error) {
	elements, err := command.Elements()
	if err != nil {
		return nil, err
	}
	name, _ := readOf(command)
	whole := name == "find" && !ordered(command)
	limit := int64(mirrorDocuments + 1)
	var cmd bson.D
	for _, e := range elements {
		switch n, _ := e.Value().AsInt64OK(); {
		case e.Key() == "limit" && !whole && n != 0:
			limit = min(limit, max(n, -n))
		case e.Key() == "skip" && whole:
		case e.Key() == "pipeline":
			list, _ := e.Value().ArrayOK()
			some, err := list.Values()
			if err != nil {
				return nil, err
			}
			stages := bson.A{}
			for _, s := range some {
				stages = append(stages, s)
			}
			cmd = append(cmd, bson.E{Key: e.Key(), Value: append(stages, bson.D{{Key: "$limit", Value: mirrorDocuments + 1}})})
		case slices.Contains(passedOn, e.Key()):
			cmd = append(cmd, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	switch name {
	case "find":
		cmd = append(cmd, bson.E{Key: "limit", Value: limit}, bson.E{Key: "singleBatch", Value: true}, bson.E{Key: "batchSize", Value: limit})
	case "aggregate":
		cmd = append(cmd, bson.E{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: mirrorDocuments + 2}}})
	case "count":
		if limit <= mirrorDocuments {
			cmd = append(cmd, bson.E{Key: "limit", Value: limit})
		}
	}
	return append(cmd, bson.E{Key: "maxTimeMS", Value: mirrorTime.Milliseconds()}), nil
}

// take reads a reply.
func (a *Answer) take(name string, reply bson.Raw) error {
	var list bson.RawArray
	switch name {
	case "count":
		one, err := bson.Marshal(bson.D{{Key: "v", Value: reply.Lookup("n")}})
		a.Documents = []bson.Raw{one}
		return err
	case "distinct":
		list, _ = reply.Lookup("values").ArrayOK()
	default:
		list, _ = reply.Lookup("cursor", "firstBatch").ArrayOK()
	}
	values, err := list.Values()
	if err != nil {
		return err
	}
	for _, v := range values {
		doc, ok := v.DocumentOK()
		if name == "distinct" || name == "aggregate" || !ok {
			if doc, err = canonical(v); err != nil {
				return err
			}
		}
		a.Documents = append(a.Documents, doc)
	}
	if name != "count" && name != "distinct" && len(a.Documents) > mirrorDocuments {
		a.Documents, a.Cut = a.Documents[:mirrorDocuments], true
	}
	return nil
}
