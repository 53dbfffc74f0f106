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
	// Collated reports whether a collection has a collation of its own.
	Collated(ctx context.Context, collection string) (bool, error)
	// Answer answers a probe; it has seen all up to since.
	Answer(ctx context.Context, p Probe, since bson.Timestamp) (Answer, error)
}

// Answer is what a placement says to a read.
type Answer struct {
	Documents []bson.Raw // or values, each as {v: value}; where any of equal ones may be given, what they share
	Sums      [][]sum    // of each document, apart from it
	Cut       bool       // there were more than are looked at
	Failed    string     // the server's refusal, which both sides must share
	Spent     bool       // it ran out of time or memory: that says nothing about the data
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
	Unanswered int        // refused by both sides alike, or a side ran out of time or memory
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
		probe   Probe
		what    string
	}
	var differ []unlike
	collated := map[string]bool{}
	for _, c := range commands {
		p, ok, err := m.probe(ctx, c, collated)
		if err != nil {
			return out, err
		}
		if !ok {
			continue
		}
		source, err := m.Source.Answer(ctx, p, from.At)
		if err != nil {
			return out, fmt.Errorf("ask the source: %w", err)
		}
		if source.Spent {
			out.Unanswered++
			continue
		}
		target, err := m.Target.Answer(ctx, p, bson.Timestamp{})
		if err != nil {
			return out, fmt.Errorf("ask the target: %w", err)
		}
		if target.Spent || source.Failed != "" && source.Failed == target.Failed {
			out.Unanswered++
			continue
		}
		out.SourceTook, out.TargetTook = append(out.SourceTook, source.Took), append(out.TargetTook, target.Took)
		if what := p.unlike(source, target); what != "" {
			differ = append(differ, unlike{c, p, what})
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
		if changed[d.probe.Collection] || touched.overflow || touched.ddl != nil {
			out.Changing = append(out.Changing, d.command)
			continue
		}
		out.Compared++
		out.Different = append(out.Different, fmt.Sprintf("%s of %s: %s", d.probe.Name, d.probe.Collection, d.what))
	}
	return out, nil
}

// mark writes a marker that the lane of the placement has passed.
func (m *Mirror) mark(ctx context.Context) (Mark, error) {
	k, err := m.Markers.Write(ctx)
	if err == nil {
		err = m.Markers.Passed(ctx, k)
	}
	return k, err
}

// probe makes a probe of a read, if both sides must answer it alike. It keeps which
// collections are collated.
func (m *Mirror) probe(ctx context.Context, command bson.Raw, collated map[string]bool) (p Probe, ok bool, err error) {
	_, collection := readOf(command)
	if _, known := collated[collection]; !known {
		if collated[collection], err = m.Source.Collated(ctx, collection); err != nil {
			return p, false, fmt.Errorf("ask the source for the collation of %s: %w", collection, err)
		}
	}
	p, ok = probeOf(command, collated[collection])
	return p, ok, nil
}

// unlike says how two answers differ, empty when they do not. Of answers that were
// cut the order is needed for the rest to mean anything.
func (p *Probe) unlike(a, b Answer) string {
	switch {
	case a.Failed != b.Failed:
		return fmt.Sprintf("the source says %q, the target %q", a.Failed, b.Failed)
	case len(a.Documents) != len(b.Documents) || a.Cut != b.Cut:
		return fmt.Sprintf("%d documents on the source, %d on the target", len(a.Documents), len(b.Documents))
	case p.Number, a.Cut && !p.Ordered:
		return ""
	case p.Ordered && !slices.EqualFunc(a.Documents, b.Documents, func(x, y bson.Raw) bool { return bytes.Equal(x, y) }), !p.Ordered && !sameSet(a.Documents, b.Documents):
		return fmt.Sprintf("%d documents, not the same ones", len(a.Documents))
	}
	return p.unlikeSums(a, b)
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

// mirrorTime bounds a mirrored read.
const mirrorTime = 10 * time.Second

// MongoAnswers implements [Answers] on a physical database.
type MongoAnswers struct {
	Database   *mongo.Database    // as drover_read
	Preference *readpref.ReadPref // of reads that say what they must have seen; others go to the primary
}

var _ Answers = (*MongoAnswers)(nil)

// Collated implements [Answers].
func (m *MongoAnswers) Collated(ctx context.Context, collection string) (bool, error) {
	return isCollated(ctx, m.Database, collection)
}

// Answer implements [Answers].
func (m *MongoAnswers) Answer(ctx context.Context, p Probe, since bson.Timestamp) (a Answer, err error) {
	concern, preference := Read{Since: since}.freshness(m.Preference)
	began := time.Now()
	reply, err := m.Database.RunCommand(ctx, append(slices.Clip(p.Command), bson.E{Key: "readConcern", Value: concern}), options.RunCmd().SetReadPreference(preference)).Raw()
	a.Took = time.Since(began)
	if mongocode.IsSpent(err) {
		a.Spent = true
		return a, nil
	}
	if codes := mongocode.Codes(err); err != nil && len(codes) > 0 && !mongocode.IsRetryable(err) && !mongocode.IsUnauthorized(err) {
		a.Failed = fmt.Sprint(codes)
		return a, nil
	}
	if err != nil {
		return a, err
	}
	return a, p.take(&a, reply)
}

// take reads a reply.
func (p *Probe) take(a *Answer, reply bson.Raw) error {
	var list bson.RawArray
	switch p.Name {
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
	if p.Name != "distinct" && len(values) > mirrorDocuments {
		values, a.Cut = values[:mirrorDocuments], true
	}
	for _, v := range values {
		if err := p.takeOne(a, v); err != nil {
			return err
		}
	}
	return nil
}

// takeOne reads one document, group or value of a reply.
func (p *Probe) takeOne(a *Answer, v bson.RawValue) error {
	doc, ok := v.DocumentOK()
	if len(p.Sums) > 0 && ok {
		rest, sums, err := p.part(doc)
		if err != nil {
			return err
		}
		a.Sums = append(a.Sums, sums)
		v = bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: rest}
	}
	if p.Alike || !ok {
		var err error
		if doc, err = canonical(v); err != nil {
			return err
		}
	}
	a.Documents = append(a.Documents, doc)
	return nil
}
