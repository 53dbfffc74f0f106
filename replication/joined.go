package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/internal/mongocode"
)

// joinedDocs is how many documents a batch may have whose writes go into one command
// with the checkpoint's. A small batch costs more by its round trips than by its
// documents; in a large one each document costs less in a command of its own kind.
const joinedDocs = 100

// joinedInternals is after how many internal errors in a row writes go apart: more than a
// server gives that comes up, and long before the lane gives up.
const joinedInternals = internalErrors / 3

// errApart says that this owner may not join its writes.
var errApart = errors.New("the writes go apart")

// joins reports whether the writes of a batch go into one command. That one is never a
// transaction's first, as it takes no read concern. Documents that had to give way
// already are left to commands of their own, which say more of a broken index.
func (l *Lane) joins(docs []*document) bool {
	return l.cfg.JoinsWrites && len(docs) <= joinedDocs && commandLength(docs) == len(docs) &&
		slices.ContainsFunc(docs, func(d *document) bool { return d.probe }) &&
		!slices.ContainsFunc(docs, func(d *document) bool { return d.way != inPlace || d.apart })
}

// writeJoined moves the checkpoint and runs the commands after it, all as one: beside
// the applications of a busy shard each round trip of a transaction takes milliseconds.
//
// The checkpoint's update is an upsert, so that it fails where the checkpoint has moved,
// and nothing is written after it. An upserted checkpoint must not be committed.
func (l *Lane) writeJoined(ctx context.Context, g goal, commands []command) error {
	filter, change := l.move(g)
	ops := bson.A{bson.D{{Key: "update", Value: int32(0)}, {Key: "filter", Value: filter}, {Key: "updateMods", Value: change}, {Key: "upsert", Value: true}}}
	spaces := bson.A{bson.D{{Key: "ns", Value: chunk.SystemDatabase + "." + chunk.CheckpointsCollection}}}
	var docs []*document   // by op, behind the checkpoint's
	var of []command       // likewise
	at := map[string]int{} // by collection
	for _, c := range commands {
		n, ok := at[c.collection]
		if !ok {
			n = len(spaces)
			at[c.collection] = n
			spaces = append(spaces, bson.D{{Key: "ns", Value: l.cfg.Direction.Target.Database + "." + c.collection}})
		}
		for _, d := range c.docs {
			ops, docs, of = append(ops, c.op(n, d)), append(docs, d), append(of, c)
		}
	}
	met, err := l.runJoined(ctx, ops, spaces)
	switch {
	case len(met) > 0 && met[0] != 1: // whatever became of the rest: this is not the owner
		return errMoved
	case l.notJoined(err) || len(met) == 0 && refusesJoining(err):
		l.cfg.JoinsWrites = false
		l.log.WarnContext(ctx, "writes are sent apart from now on: the target does not take them as one command", slog.Any("error", err))
		return errors.Join(errApart, err)
	case err != nil:
		return unwrittenJoined(err, docs, len(met))
	case len(met) != len(ops):
		return fmt.Errorf("write %d documents of %s: %d answers", len(docs), docs[0].collection, len(met)-1)
	}
	for i, n := range met[1:] {
		if n != 1 {
			return foreignWrite(of[i], 1, n)
		}
	}
	return l.point(ctx, "lane.checkpoint")
}

// notJoined counts the internal errors of joined commands in a row, and reports that they
// are too many: a server may do apart what it cannot do as one.
func (l *Lane) notJoined(err error) bool {
	l.internals++
	if !mongocode.Has(err, internalError) || isTooLarge(err) {
		l.internals = 0
	}
	return l.internals >= joinedInternals
}

// refusesJoining reports that a server refuses a joined command as such, whatever is in
// it: a role from before lanes joined writes, an older server, a command too long.
func refusesJoining(err error) bool {
	return len(mongocode.Codes(err)) > 0 && !mongocode.IsDuplicateKey(err) && !isTooLarge(err) && !passing(err, 0)
}

// unwrittenJoined is [unwritten] for a joined command that gave so many answers, the
// checkpoint's among them, before one failed. Where it gave none the document is not known:
// several collections may have its key.
func unwrittenJoined(err error, docs []*document, answers int) error {
	err = unwritten(err, docs, "write")
	if c, ok := errors.AsType[*conflict](err); ok && !c.stays {
		c.vague = answers == 0 || len(c.pattern) == 0
		if answers > 0 {
			c.doc = docs[answers-1]
		}
	}
	return err
}

// op is the command's entry for d as a part of a joined one, which names its
// collections by number.
func (c command) op(collection int, d *document) bson.D {
	op, entry := bson.D{{Key: c.name, Value: int32(collection)}}, c.entry(d) //nolint:gosec // at most joinedDocs
	if c.name == "insert" {
		return append(op, bson.E{Key: "document", Value: entry})
	}
	for _, e := range entry.(bson.D) { //nolint:forcetypeassert // of an update and of a delete
		switch e.Key {
		case "q":
			op = append(op, bson.E{Key: "filter", Value: e.Value})
		case "u":
			op = append(op, bson.E{Key: "updateMods", Value: e.Value})
		}
	}
	return op
}

// runJoined runs writes in their order, up to the first that fails, and gives how many
// documents each of them met; one that was upserted was not met, and the first meets none
// where a document with its _id is not what it looks for. The error of a write but the
// first is a [mongo.WriteException] whose index does not count the first.
func (l *Lane) runJoined(ctx context.Context, ops, spaces bson.A) ([]int64, error) {
	var reply struct {
		Cursor struct {
			FirstBatch []bson.Raw `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	err := l.cfg.Target.Database("admin").RunCommand(ctx, bson.D{
		{Key: "bulkWrite", Value: int32(1)}, {Key: "ops", Value: ops}, {Key: "nsInfo", Value: spaces},
		{Key: "ordered", Value: true}, {Key: "bypassDocumentValidation", Value: true},
	}).Decode(&reply)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller knows what was written
	}
	met := make([]int64, 0, len(reply.Cursor.FirstBatch))
	for i, raw := range reply.Cursor.FirstBatch {
		if code, failed := raw.Lookup("code").AsInt64OK(); failed {
			text, _ := raw.Lookup("errmsg").StringValueOK()
			if i == 0 && code == mongocode.DuplicateKey {
				return []int64{0}, nil
			}
			if i == 0 {
				return nil, mongo.CommandError{Code: int32(code), Message: text, Raw: raw} //nolint:gosec // a code of the server
			}
			return met, mongo.WriteException{WriteErrors: mongo.WriteErrors{{Index: i - 1, Code: int(code), Message: text, Raw: raw}}}
		}
		n, _ := raw.Lookup("n").AsInt64OK()
		if _, err := raw.LookupErr("upserted"); err == nil {
			n = 0
		}
		met = append(met, n)
	}
	return met, nil
}
