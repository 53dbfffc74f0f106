package validation

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// Asked implements [Questions] on a physical database.
type Asked struct {
	Database   *mongo.Database    // as drover_read
	Preference *readpref.ReadPref // of sums that say what they must have seen; others go to the primary
}

var _ Questions = (*Asked)(nil)

// notDefining are fields of listings that say nothing about what is defined, or
// that a move itself changes for a while.
var notDefining = []string{"v", "ns", "uuid", "background", "expireAfterSeconds", "flags", "autoIndexId"}

// Listing implements [Questions].
func (q *Asked) Listing(ctx context.Context) (map[string][]string, error) {
	cursor, err := q.Database.ListCollections(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	var all []struct {
		Name    string   `bson:"name"`
		Type    string   `bson:"type"`
		Options bson.Raw `bson:"options"`
	}
	if err := cursor.All(ctx, &all); err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, c := range all {
		if strings.HasPrefix(c.Name, "system.") {
			continue
		}
		lines := []string{c.Type, "options " + defined(c.Options)}
		if c.Type != "view" {
			indexes, err := q.indexes(ctx, c.Name)
			if err != nil {
				return nil, err
			}
			for _, x := range indexes {
				lines = append(lines, "index "+defined(x))
			}
		}
		out[c.Name] = lines
	}
	return out, nil
}

// indexes lists a collection's indexes.
func (q *Asked) indexes(ctx context.Context, collection string) ([]bson.Raw, error) {
	cursor, err := q.Database.Collection(collection).Indexes().List(ctx)
	if err != nil {
		return nil, err
	}
	var specs []bson.Raw
	err = cursor.All(ctx, &specs)
	return specs, err
}

// defined spells out the fields that define, sorted by name.
func defined(doc bson.Raw) string {
	elements, err := doc.Elements()
	if err != nil {
		return "unreadable"
	}
	var parts []string
	for _, e := range elements {
		no, isBool := e.Value().BooleanOK()
		if slices.Contains(notDefining, e.Key()) || isBool && !no {
			continue
		}
		text := e.Value().String()
		if n, ok := e.Value().AsInt64OK(); ok {
			text = fmt.Sprint(n)
		}
		if key, ok := e.Value().DocumentOK(); ok && e.Key() == "key" {
			text = direction(key)
		}
		parts = append(parts, e.Key()+": "+text)
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// direction spells a key pattern out, equal numbers alike.
func direction(key bson.Raw) string {
	elements, err := key.Elements()
	if err != nil {
		return "unreadable"
	}
	var parts []string
	for _, e := range elements {
		text := e.Value().String()
		if f, ok := e.Value().AsFloat64OK(); ok {
			text = fmt.Sprint(f)
		}
		parts = append(parts, e.Key()+" "+text)
	}
	return strings.Join(parts, ", ")
}

// Sums implements [Questions]. It goes through _id and the first field of every
// other index; kinds of index that cannot be walked are left to _id.
func (q *Asked) Sums(ctx context.Context, collection string, since bson.Timestamp, without []bson.RawValue) (map[string]Sum, error) {
	specs, err := q.indexes(ctx, collection)
	if err != nil {
		return nil, err
	}
	out := map[string]Sum{}
	for _, spec := range specs {
		name, _ := spec.Lookup("name").StringValueOK()
		key, _ := spec.Lookup("key").DocumentOK()
		hidden, _ := spec.Lookup("hidden").BooleanOK()
		first, err := key.IndexErr(0)
		if err != nil || hidden { // MongoDB takes no hint of a hidden index
			continue
		}
		if _, number := first.Value().AsFloat64OK(); !number || first.Key() == "$**" {
			continue // hashed, text, geo and wildcard indexes
		}
		if err := q.sum(ctx, walk{collection, name, first.Key(), since, without}, out); err != nil {
			return nil, fmt.Errorf("through index %s: %w", name, err)
		}
	}
	return out, nil
}

// walk is one way through a collection.
type walk struct {
	collection, index, field string
	since                    bson.Timestamp
	without                  []bson.RawValue
}

// sum goes through one index.
func (q *Asked) sum(ctx context.Context, w walk, out map[string]Sum) error {
	value := "$" + w.field
	kind := bson.D{{Key: "$type", Value: value}}
	pipeline := bson.A{}
	if len(w.without) > 0 {
		pipeline = append(pipeline, bson.D{{Key: "$match", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$nin", Value: w.without}}}}}})
	}
	pipeline = append(pipeline, bson.D{{Key: "$group", Value: bson.D{
		{Key: "_id", Value: kind},
		{Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}},
		{Key: "bytes", Value: bson.D{{Key: "$sum", Value: bson.D{{Key: "$bsonSize", Value: bson.D{{Key: "v", Value: value}}}}}}},
		{Key: "total", Value: bson.D{{Key: "$sum", Value: bson.D{{Key: "$cond", Value: bson.A{
			bson.D{{Key: "$in", Value: bson.A{kind, bson.A{"int", "long"}}}}, bson.D{{Key: "$mod", Value: bson.A{value, 1_000_003}}}, 0,
		}}}}}},
	}}})
	concern, preference := bson.D{{Key: "level", Value: "majority"}}, readpref.Primary()
	if !w.since.IsZero() {
		concern = append(concern, bson.E{Key: "afterClusterTime", Value: w.since})
		if q.Preference != nil {
			preference = q.Preference
		}
	}
	cursor, err := q.Database.RunCommandCursor(ctx, bson.D{
		{Key: "aggregate", Value: w.collection},
		{Key: "pipeline", Value: pipeline},
		{Key: "cursor", Value: bson.D{}},
		{Key: "hint", Value: w.index},
		{Key: "allowDiskUse", Value: true},
		{Key: "readConcern", Value: concern},
	}, options.RunCmd().SetReadPreference(preference))
	if err != nil {
		return err
	}
	var groups []struct {
		Kind  string `bson:"_id"`
		N     int64  `bson:"n"`
		Bytes int64  `bson:"bytes"`
		Total int64  `bson:"total"`
	}
	if err := cursor.All(ctx, &groups); err != nil {
		return err
	}
	for _, g := range groups {
		out[w.index+"/"+g.Kind] = Sum{Documents: g.N, Bytes: g.Bytes, Total: g.Total}
	}
	return nil
}

// Hash implements [Questions].
func (q *Asked) Hash(ctx context.Context) (map[string]string, error) {
	reply, err := q.Database.RunCommand(ctx, bson.D{{Key: "dbHash", Value: 1}}).Raw()
	if err != nil { // not every server has it, nor every user the right: it is one question among others
		return nil, nil //nolint:nilerr,nilnil // as documented
	}
	all, ok := reply.Lookup("collections").DocumentOK()
	if !ok {
		return nil, nil //nolint:nilnil // as documented
	}
	out := map[string]string{}
	elements, err := all.Elements()
	for _, e := range elements {
		out[e.Key()], _ = e.Value().StringValueOK()
	}
	return out, err
}
