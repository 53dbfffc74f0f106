package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/mongocode"
)

// probeFor bounds one trial: what did not show itself by then counts as absent.
const probeFor = 3 * time.Second

// Probe finds by trial what the shard's server can do. The trials use a collection
// of their own in Drover's database, and of that only documents of their own, as other
// workers may try the same shard; the capture user plays the other client.
func (s *Set) Probe(ctx context.Context) (chunk.Capabilities, error) {
	var c chunk.Capabilities
	h, err := readHello(ctx, s.admin())
	if err != nil {
		return c, s.wrap(err, "probe")
	}
	info, err := s.adminRun(ctx, bson.D{{Key: "buildInfo", Value: 1}})
	if err != nil {
		return c, s.wrap(err, "probe version")
	}
	cfg, err := readConfig(ctx, s.admin())
	if err != nil {
		return c, s.wrap(err, "probe configuration")
	}
	other, err := s.Client(chunk.CaptureUser)
	if err != nil {
		return c, err
	}
	c.Version, c.SetName, c.MaxWireVersion = text(info, "version"), h.SetName, h.MaxWireVersion
	c.Members = len(cfg.members(setStatus{}))

	p := prober{set: s, other: other, ids: new([]bson.ObjectID)}
	if err := p.prepare(ctx); err != nil {
		return c, s.wrap(err, "prepare trials")
	}
	for _, t := range []struct {
		what  string
		trial func(context.Context) (bool, error)
		found *bool
	}{
		{"operations of others", p.listsOperations, &c.ListsOperations},
		{"killing a session by user", p.killsSessionsByUser, &c.KillsSessionsByUser},
		{"pinned snapshots", p.pinsSnapshots, &c.PinsSnapshots},
		{"disambiguated paths", p.disambiguates, &c.DisambiguatedPaths},
		{"the order of new fields", p.sortsNewFields, &c.SortsNewFields},
		{"invalidating the user cache", p.invalidatesUserCache, &c.InvalidatesUserCache},
		{"records of retryable writes", p.keepsTransactionRecord, &c.KeepsTransactionRecord},
		{"empty timestamps", p.keepsEmptyTimestamps, &c.KeepsEmptyTimestamps},
		{"joined writes", p.joinsWrites, &c.JoinsWrites},
	} {
		if *t.found, err = t.trial(ctx); err != nil {
			return c, errors.Join(s.wrap(err, "try %s", t.what), p.clean(ctx))
		}
	}
	return c, p.clean(ctx)
}

// prober is one run of trials.
type prober struct {
	set   *Set
	other *mongo.Client    // another user than the admin
	ids   *[]bson.ObjectID // of what it wrote
}

// newID gives the _id of a document of this run.
func (p prober) newID() bson.ObjectID {
	id := bson.NewObjectID()
	*p.ids = append(*p.ids, id)
	return id
}

// abandoned is the age of documents whose run has died.
const abandoned = time.Hour

// scratch is the trial collection, as seen by the admin.
func (p prober) scratch() *mongo.Collection { return p.set.drover().Collection(scratchCollection) }

// prepare makes the trial collection.
func (p prober) prepare(ctx context.Context) error {
	_, err := run(ctx, p.set.admin(), chunk.SystemDatabase, bson.D{{Key: "create", Value: scratchCollection}})
	if mongocode.IsNamespaceExists(err) {
		return nil
	}
	return err
}

// clean takes away what this run wrote, and what a dead one left, also when ctx has
// ended. The collection stays: others' trials may be under way in it.
func (p prober) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeFor)
	defer cancel()
	old := bson.NewObjectIDFromTimestamp(time.Now().Add(-abandoned))
	_, err := p.scratch().DeleteMany(ctx, bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: *p.ids}}}},
		bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: old}}}},
	}}})
	return p.set.wrap(err, "clean up after trials")
}

// openTransaction begins a transaction of the other user with one write in it.
func (p prober) openTransaction(ctx context.Context) (*mongo.Session, error) {
	sess, err := p.other.StartSession()
	if err != nil {
		return nil, err
	}
	if err := sess.StartTransaction(); err != nil {
		return nil, err
	}
	_, err = p.other.Database(chunk.SystemDatabase).Collection(scratchCollection).
		InsertOne(mongo.NewSessionContext(ctx, sess), bson.D{{Key: "_id", Value: p.newID()}})
	return sess, err
}

// closeTransaction ends it, whatever has become of it.
func closeTransaction(ctx context.Context, sess *mongo.Session) {
	ctx = context.WithoutCancel(ctx)
	_ = sess.AbortTransaction(ctx) // it may have been killed: that was the trial
	sess.EndSession(ctx)
}

// sessionID gives a session's id as 16 bytes.
func sessionID(sess *mongo.Session) []byte {
	_, data, _ := sess.ID().Lookup("id").BinaryOK()
	return data
}

// listsOperations tries whether another client's running operation and another
// client's idle transaction both show.
func (p prober) listsOperations(ctx context.Context) (bool, error) {
	sess, err := p.openTransaction(ctx)
	if err != nil {
		return false, err
	}
	defer closeTransaction(ctx, sess)

	h, err := readHello(ctx, p.other)
	if err != nil {
		return false, err
	}
	waiting, cancel := context.WithTimeout(ctx, probeFor)
	defer cancel()
	finished := make(chan struct{})
	go func() { // an awaited hello runs for as long as nothing changes
		defer close(finished)
		_, _ = run(waiting, p.other, "admin", bson.D{
			{Key: "hello", Value: 1}, {Key: "topologyVersion", Value: h.TopologyVersion}, {Key: "maxAwaitTimeMS", Value: int64(800)},
		})
	}()
	var running, idle bool
	for over := false; !over && (!running || !idle); {
		select {
		case <-finished:
			over = true // look once more, then give up
		default:
		}
		ops, err := p.set.operations(ctx)
		if err != nil {
			return false, err
		}
		for _, o := range ops {
			mine := o.Session != nil && bytes.Equal(o.Session.ID.Data, sessionID(sess))
			idle = idle || mine && len(o.Transaction) > 0
			running = running || o.Active && slices.Contains(o.Users, userName{chunk.CaptureUser, "admin"}) && len(o.Command) > 0
		}
	}
	cancel()
	<-finished
	return running && idle, nil
}

// killsSessionsByUser tries whether {id, uid} names another user's session.
func (p prober) killsSessionsByUser(ctx context.Context) (bool, error) {
	sess, err := p.openTransaction(ctx)
	if err != nil {
		return false, err
	}
	defer closeTransaction(ctx, sess)
	_, err = p.set.adminRun(ctx, bson.D{{Key: "killSessions", Value: bson.A{bson.D{
		{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: sessionID(sess)}},
		{Key: "uid", Value: userDigest(chunk.CaptureUser)},
	}}}})
	if len(mongocode.Codes(err)) > 0 {
		return false, nil //nolint:nilerr // the server refuses the form: that is the answer
	}
	if err != nil {
		return false, err
	}
	err = sess.CommitTransaction(ctx)
	if err != nil && !mongocode.IsNoSuchTransaction(err) {
		return false, err
	}
	return err != nil, nil
}

// pinsSnapshots tries whether a read at an earlier cluster time still shows what
// was there then.
func (p prober) pinsSnapshots(ctx context.Context) (bool, error) {
	id := bson.D{{Key: "_id", Value: p.newID()}}
	set := func(v int) error {
		_, err := p.scratch().UpdateOne(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}}, options.UpdateOne().SetUpsert(true))
		return err
	}
	read := func(concern bson.D) (bson.Raw, error) {
		return run(ctx, p.set.admin(), chunk.SystemDatabase, bson.D{
			{Key: "find", Value: scratchCollection}, {Key: "filter", Value: id}, {Key: "readConcern", Value: concern},
		})
	}
	if err := set(1); err != nil {
		return false, err
	}
	first, err := read(bson.D{{Key: "level", Value: "snapshot"}})
	if len(mongocode.Codes(err)) > 0 {
		return false, nil //nolint:nilerr // no snapshot reads at all
	}
	if err != nil {
		return false, err
	}
	at, err := first.LookupErr("cursor", "atClusterTime")
	if err != nil {
		return false, nil //nolint:nilerr // it does not say what it pinned
	}
	if err := set(2); err != nil {
		return false, err
	}
	again, err := read(bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at}})
	if len(mongocode.Codes(err)) > 0 {
		return false, nil //nolint:nilerr // it cannot read at a time
	}
	if err != nil {
		return false, err
	}
	return lookup(again, "cursor", "firstBatch", "0", "v") == 1, nil
}

// disambiguates tries whether an update event tells a field named "0" from an
// array index, once with each in one update.
func (p prober) disambiguates(ctx context.Context) (bool, error) {
	inner := bson.D{{Key: "x", Value: 1}}
	doc := bson.D{
		{Key: "_id", Value: p.newID()},
		{Key: "o", Value: bson.D{{Key: "0", Value: inner}}},
		{Key: "a", Value: bson.A{inner}},
	}
	set := bson.D{{Key: "o.0.x", Value: 2}, {Key: "a.0.x", Value: 2}}
	change, err := p.updateEvent(ctx, doc, set)
	if err != nil {
		return false, err
	}
	paths, ok := change.Lookup("disambiguatedPaths").DocumentOK()
	return ok && tellsApart(paths), nil
}

// sortsNewFields tries whether two new fields are stored in the order of their
// names although the event lists them otherwise.
func (p prober) sortsNewFields(ctx context.Context) (bool, error) {
	id := bson.D{{Key: "_id", Value: p.newID()}}
	change, err := p.updateEvent(ctx, id, bson.D{{Key: "b", Value: 1}, {Key: "a", Value: 1}})
	if err != nil {
		return false, err
	}
	updated, ok := change.Lookup("updatedFields").DocumentOK()
	if !ok {
		return false, nil
	}
	listed, err := updated.Elements()
	if err != nil || len(listed) != 2 {
		return false, err
	}
	stored, err := p.scratch().FindOne(ctx, id).Raw()
	if err != nil {
		return false, err
	}
	fields, err := stored.Elements()
	if err != nil || len(fields) != 3 {
		return false, err
	}
	return listed[0].Key() != fields[1].Key(), nil
}

// updateEvent inserts a document, sets fields of it, and gives the update
// description of the change stream's event.
func (p prober) updateEvent(ctx context.Context, doc, set bson.D) (bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*probeFor)
	defer cancel()
	mine := bson.D{{Key: "$match", Value: bson.D{{Key: "documentKey._id", Value: doc[0].Value}}}}
	stream, err := p.scratch().Watch(ctx, mongo.Pipeline{mine}, options.ChangeStream().
		SetShowExpandedEvents(true).SetMaxAwaitTime(200*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }() // the trial is over
	if _, err := p.scratch().InsertOne(ctx, doc); err != nil {
		return nil, err
	}
	if _, err := p.scratch().UpdateOne(ctx, doc[:1], bson.D{{Key: "$set", Value: set}}); err != nil {
		return nil, err
	}
	for stream.Next(ctx) {
		if text(stream.Current, "operationType") == "update" {
			change, _ := stream.Current.Lookup("updateDescription").DocumentOK()
			return change, nil
		}
	}
	return nil, fmt.Errorf("change stream of the trial: %w", errors.Join(stream.Err(), context.Cause(ctx)))
}

// tellsApart reports whether the paths of the trial's update name a field "0" in
// one place and none in the other: an index may be left out, it is the default.
func tellsApart(paths bson.Raw) bool {
	second := func(path string) bson.Type {
		a, ok := paths.Lookup(path).ArrayOK()
		if !ok {
			return bson.TypeUndefined
		}
		return a.Index(1).Type
	}
	return second("o.0.x") == bson.TypeString && second("a.0.x") != bson.TypeString
}

// invalidatesUserCache tries the command of that name.
func (p prober) invalidatesUserCache(ctx context.Context) (bool, error) {
	_, err := p.set.adminRun(ctx, bson.D{{Key: "invalidateUserCache", Value: 1}})
	if mongocode.IsCommandNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// keepsTransactionRecord tries whether a retryable write leaves a record that can
// be read.
func (p prober) keepsTransactionRecord(ctx context.Context) (bool, error) {
	sess, err := p.other.StartSession()
	if err != nil {
		return false, err
	}
	defer sess.EndSession(context.WithoutCancel(ctx))
	_, err = p.other.Database(chunk.SystemDatabase).Collection(scratchCollection).
		InsertOne(mongo.NewSessionContext(ctx, sess), bson.D{{Key: "_id", Value: p.newID()}})
	if err != nil {
		return false, err
	}
	n, err := p.set.admin().Database("config").Collection("transactions").CountDocuments(ctx,
		bson.D{{Key: "_id.id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: sessionID(sess)}}})
	return n > 0, err
}

// keepsEmptyTimestamps tries whether a write can keep Timestamp(0, 0), which the
// server otherwise takes for "now".
func (p prober) keepsEmptyTimestamps(ctx context.Context) (bool, error) {
	id := p.newID()
	_, err := run(ctx, p.set.admin(), chunk.SystemDatabase, bson.D{
		{Key: "insert", Value: scratchCollection},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "t", Value: bson.Timestamp{}}}}},
		{Key: "bypassEmptyTsReplacement", Value: true},
	})
	if len(mongocode.Codes(err)) > 0 {
		return false, nil //nolint:nilerr // it does not know the field
	}
	if err != nil {
		return false, err
	}
	var kept struct {
		T bson.Timestamp `bson:"t"`
	}
	err = p.scratch().FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&kept)
	return kept.T.IsZero(), err
}

// joinsWrites tries whether a transaction takes several writes in one command that
// answers for each of them.
func (p prober) joinsWrites(ctx context.Context) (bool, error) {
	sess, err := p.openTransaction(ctx)
	if err != nil {
		return false, err
	}
	defer closeTransaction(ctx, sess)

	id := bson.D{{Key: "_id", Value: p.newID()}}
	reply, err := run(mongo.NewSessionContext(ctx, sess), p.other, "admin", bson.D{
		{Key: "bulkWrite", Value: 1},
		{Key: "ops", Value: bson.A{
			bson.D{{Key: "insert", Value: 0}, {Key: "document", Value: id}},
			bson.D{{Key: "update", Value: 0}, {Key: "filter", Value: id}, {Key: "updateMods", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 1}}}}}},
			bson.D{{Key: "delete", Value: 0}, {Key: "filter", Value: id}},
		}},
		{Key: "nsInfo", Value: bson.A{bson.D{{Key: "ns", Value: chunk.SystemDatabase + "." + scratchCollection}}}},
	})
	if len(mongocode.Codes(err)) > 0 {
		return false, nil //nolint:nilerr // it does not know the command, or not in a transaction
	}
	if err != nil {
		return false, err
	}
	for _, op := range []string{"0", "1", "2"} {
		if lookup(reply, "cursor", "firstBatch", op, "n") != 1 {
			return false, nil
		}
	}
	return true, nil
}
