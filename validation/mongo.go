package validation

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// Mongo implements [Side] on a physical database. It shares nothing with the
// reading code of the import: a fault there must not be repeated here.
type Mongo struct {
	Client     *mongo.Client // as drover_read
	Database   string
	Preference *readpref.ReadPref // of reads that say what they must have seen; others go to the primary

	mu       sync.Mutex
	collated map[string]bool
	batches  map[string]int32 // documents of a batch
	mixed    map[string]bool  // see mixesLengths
}

// group is some types whose values compare with each other and with no others.
type group struct {
	names  []string // as $type names them
	of     []bson.Type
	single bool // there is one value only
	low    any  // a value of the group that next to nothing is below, nil where that is of no use
}

// types are the types that an _id can have, in MongoDB's order.
var types = []group{
	{names: []string{"minKey"}, of: []bson.Type{bson.TypeMinKey}, single: true},
	{names: []string{"undefined"}, of: []bson.Type{bson.TypeUndefined}, single: true},
	{names: []string{"null"}, of: []bson.Type{bson.TypeNull}, single: true},
	{names: []string{"number"}, of: []bson.Type{bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128}, low: math.Inf(-1)},
	{names: []string{"string", "symbol"}, of: []bson.Type{bson.TypeString, bson.TypeSymbol}, low: "\x01"},
	{names: []string{"object"}, of: []bson.Type{bson.TypeEmbeddedDocument}},
	{names: []string{"binData"}, of: []bson.Type{bson.TypeBinary}, low: bson.Binary{}},
	{names: []string{"objectId"}, of: []bson.Type{bson.TypeObjectID}, low: bson.ObjectID{}},
	{names: []string{"bool"}, of: []bson.Type{bson.TypeBoolean}},
	{names: []string{"date"}, of: []bson.Type{bson.TypeDateTime}, low: bson.DateTime(math.MinInt64)},
	{names: []string{"timestamp"}, of: []bson.Type{bson.TypeTimestamp}},
	{names: []string{"dbPointer"}, of: []bson.Type{bson.TypeDBPointer}},
	{names: []string{"javascript"}, of: []bson.Type{bson.TypeJavaScript}},
	{names: []string{"javascriptWithScope"}, of: []bson.Type{bson.TypeCodeWithScope}},
	{names: []string{"maxKey"}, of: []bson.Type{bson.TypeMaxKey}, single: true},
}

// behind gives what is to be asked, one after the other, to find what lies behind
// after, up to until where the server can be told: the rest of its own group of
// types, which is all that a comparison finds, then every later group.
func (m *Mongo) behind(ctx context.Context, r Read, after, until bson.RawValue) ([]ask, error) {
	last := len(types) // the group of until, where the server can be told
	plain, err := m.isPlain(ctx, r, until)
	if err != nil {
		return nil, err
	}
	if plain {
		last = groupOf(until.Type)
	}
	if after.Type == 0 && !plain {
		return []ask{{filter: bson.D{}}}, nil
	}
	var asks []ask
	own := -1
	if after.Type != 0 {
		if own = groupOf(after.Type); own < 0 {
			return nil, fmt.Errorf("a %s cannot be an _id", after.Type)
		}
		rest, err := m.restOfGroup(ctx, r, after, own)
		if err != nil {
			return nil, err
		}
		if rest != nil && own == last {
			rest[0].Value = append(rest[0].Value.(bson.D), bson.E{Key: "$lte", Value: until}) //nolint:forcetypeassert // plain values have no other filters
		}
		if rest != nil {
			asks = append(asks, ask{filter: rest, after: after, ordered: isOrdered(after)})
		}
	}
	if own+1 < last {
		asks = append(asks, ask{filter: between(own, last)})
	}
	if own < last && last < len(types) {
		if slices.Contains(types[last].of, bson.TypeDouble) {
			asks = append(asks, ask{filter: bson.D{{Key: "_id", Value: math.NaN()}}})
		}
		asks = append(asks, ask{filter: bson.D{{Key: "_id", Value: bson.D{{Key: "$lte", Value: until}}}}, ordered: isOrdered(until)})
	}
	return asks, nil
}

// between gives the filter for the groups of types between two of which one, or neither,
// is none. Beside the types it says what holds of all of them, and not of the other
// group: SecantusDB looks types up in the whole collection, and that in an index.
func between(own, last int) bson.D {
	var names []string
	for _, g := range types[own+1 : last] {
		names = append(names, g.names...)
	}
	filter := bson.D{{Key: "$type", Value: names}}
	var other any
	switch {
	case own < 0:
		other = types[last].low
	case last == len(types):
		other = types[own].low
	}
	if other != nil {
		filter = append(filter, bson.E{Key: "$gte", Value: bson.MinKey{}}, bson.E{Key: "$not", Value: bson.D{{Key: "$gte", Value: other}}})
	}
	return bson.D{{Key: "_id", Value: filter}}
}

// groupOf gives the index of a type's group, -1 for one that no _id has.
func groupOf(t bson.Type) int {
	return slices.IndexFunc(types, func(g group) bool { return slices.Contains(g.of, t) })
}

// isPlain reports whether comparisons with a value find all values of its group of
// types on one side of it, on every server, and nothing else.
func (m *Mongo) isPlain(ctx context.Context, r Read, v bson.RawValue) (bool, error) {
	if v.Type != bson.TypeBinary {
		return isOrdered(v), nil
	}
	mixed, err := m.mixesLengths(ctx, r)
	return !mixed, err
}

// isOrdered reports whether what comparisons with a value find comes in order out of the
// index that they go through, on every server.
func isOrdered(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return !isNaN(v)
	case bson.TypeString, bson.TypeObjectID, bson.TypeDateTime:
		return true
	default:
		return false
	}
}

// restOfGroup gives the filter for what lies behind an _id in its own group, nil
// where that is nothing.
func (m *Mongo) restOfGroup(ctx context.Context, r Read, after bson.RawValue, own int) (bson.D, error) {
	switch {
	case types[own].single:
		return nil, nil
	case isNaN(after):
		return bson.D{{Key: "_id", Value: bson.D{{Key: "$type", Value: "number"}, {Key: "$ne", Value: math.NaN()}}}}, nil
	case after.Type == bson.TypeBinary:
		return m.afterBinary(ctx, r, after)
	case after.Type == bson.TypeJavaScript || after.Type == bson.TypeCodeWithScope:
		// SecantusDB compares code with and without scope, MongoDB does not.
		return bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$type", Value: types[own].names}}}}, nil
	default:
		return bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}}}}, nil
	}
}

// isNaN reports whether v is a number that is none: it lies below every other
// number, and no comparison finds it.
func isNaN(v bson.RawValue) bool {
	if d, ok := v.Decimal128OK(); ok {
		return d.IsNaN()
	}
	f, ok := v.DoubleOK()
	return ok && math.IsNaN(f)
}

// afterBinary gives the filter for the binary values behind one. MongoDB orders
// them by length first. SecantusDB compares bytes alone, which comes to the same
// while all are of one length; where they are not, the filter spells it out.
func (m *Mongo) afterBinary(ctx context.Context, r Read, after bson.RawValue) (bson.D, error) {
	behind := bson.E{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}}}
	mixed, err := m.mixesLengths(ctx, r)
	if err != nil || !mixed {
		return bson.D{behind}, err
	}
	_, data := after.Binary()
	size := bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$_id"}}, "binData"}}}, bson.D{{Key: "$binarySize", Value: "$_id"}}, -1,
	}}}
	sized := func(operator string) bson.E {
		return bson.E{Key: "$expr", Value: bson.D{{Key: operator, Value: bson.A{size, len(data)}}}}
	}
	return bson.D{{Key: "$or", Value: bson.A{
		bson.D{behind, sized("$eq")},
		bson.D{{Key: "_id", Value: bson.D{{Key: "$type", Value: "binData"}}}, sized("$gt")},
	}}}, nil
}

// mixesLengths reports whether a collection has binary _ids of several lengths.
// It is asked once: the answer costs a walk over them.
func (m *Mongo) mixesLengths(ctx context.Context, r Read) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.mixed[r.Collection]; ok {
		return known, nil
	}
	reply, err := m.run(ctx, r, bson.D{
		{Key: "aggregate", Value: r.Collection},
		{Key: "cursor", Value: bson.D{}},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$match", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$type", Value: "binData"}}}}}},
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$binarySize", Value: "$_id"}}}}}},
			bson.D{{Key: "$limit", Value: 2}},
		}},
	})
	if err != nil {
		return false, fmt.Errorf("lengths of binary _ids in %s: %w", r.Collection, err)
	}
	var lengths []bson.Raw
	if err := reply.All(ctx, &lengths); err != nil {
		return false, fmt.Errorf("lengths of binary _ids in %s: %w", r.Collection, err)
	}
	if m.mixed == nil {
		m.mixed = map[string]bool{}
	}
	m.mixed[r.Collection] = len(lengths) > 1
	return len(lengths) > 1, nil
}

// find yields what one question of a scan finds, in the order of _id.
func (m *Mongo) find(ctx context.Context, r Read, a ask, limit int) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		collated, err := m.isCollated(ctx, r.Collection)
		if err != nil {
			yield(nil, err)
			return
		}
		cmd := bson.D{
			{Key: "find", Value: r.Collection},
			{Key: "filter", Value: a.filter},
			{Key: "limit", Value: int64(limit)},
		}
		if !a.ordered || r.Sort || collated {
			cmd = append(cmd, bson.E{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}})
		}
		if collated {
			cmd = append(cmd, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}, bson.E{Key: "allowDiskUse", Value: true})
		}
		m.yield(ctx, r, cmd, yield)
	}
}

// Get implements [Side].
func (m *Mongo) Get(ctx context.Context, r Read, ids []bson.RawValue) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		m.yield(ctx, r, bson.D{
			{Key: "find", Value: r.Collection}, {Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}},
		}, yield)
	}
}

// yield runs a command with a cursor and yields its documents.
func (m *Mongo) yield(ctx context.Context, r Read, cmd bson.D, yield func(bson.Raw, error) bool) {
	batch := m.batchOf(r.Collection)
	cursor, err := m.run(ctx, r, append(cmd, bson.E{Key: "batchSize", Value: batch})) // 101 else, and 16 MB from then on
	if err != nil {
		yield(nil, err)
		return
	}
	cursor.SetBatchSize(batch)
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	for cursor.Next(ctx) {
		if !yield(cursor.Current, nil) {
			return
		}
	}
	if err := cursor.Err(); err != nil {
		yield(nil, fmt.Errorf("read %s.%s: %w", m.Database, r.Collection, err))
	}
}

// run runs a reading command that sees what a majority has, and all up to
// r.Since.
func (m *Mongo) run(ctx context.Context, r Read, cmd bson.D) (*mongo.Cursor, error) {
	concern, preference := r.freshness(m.Preference)
	cursor, err := m.Client.Database(m.Database).RunCommandCursor(ctx, append(cmd, bson.E{Key: "readConcern", Value: concern}),
		options.RunCmd().SetReadPreference(preference))
	if err != nil {
		return nil, fmt.Errorf("read %s.%s: %w", m.Database, r.Collection, err)
	}
	return cursor, nil
}

// freshness says how new a read must be, and where it may go: a member that lags
// waits until it has r.Since, and without it nothing says how far a secondary is.
func (r Read) freshness(preferred *readpref.ReadPref) (concern bson.D, _ *readpref.ReadPref) {
	concern = bson.D{{Key: "level", Value: "majority"}}
	if r.Since.IsZero() || preferred == nil {
		preferred = readpref.Primary()
	}
	if !r.Since.IsZero() {
		concern = append(concern, bson.E{Key: "afterClusterTime", Value: r.Since})
	}
	return concern, preferred
}

// isCollated reports whether a collection's _id index has a collation, whose
// order is of no use here.
func (m *Mongo) isCollated(ctx context.Context, name string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.collated[name]; ok {
		return known, nil
	}
	collated, err := isCollated(ctx, m.Client.Database(m.Database), name)
	if err != nil {
		return false, err
	}
	if m.collated == nil {
		m.collated = map[string]bool{}
	}
	m.collated[name] = collated
	return collated, nil
}

// isCollated reports whether a collection has a collation of its own.
func isCollated(ctx context.Context, db *mongo.Database, name string) (bool, error) {
	found, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil {
		return false, fmt.Errorf("list collection %s.%s: %w", db.Name(), name, err)
	}
	if len(found) == 0 {
		return false, nil
	}
	locale, ok := found[0].Options.Lookup("collation", "locale").StringValueOK()
	return ok && locale != "simple", nil
}
