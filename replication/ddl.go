package replication

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
	"drover/internal/failure"
	"drover/internal/pause"
)

// Definitions changes collections and indexes of the target.
type Definitions interface {
	// Follow makes on the target the change of a definition that e tells of:
	// createIndexes, dropIndexes or modify. It may be run again: what is so already
	// is no error. A [failure.Transient] one is tried again for as long as it takes.
	Follow(ctx context.Context, e *event.Event) error
}

// ddlAction is what a lane does about DDL of its placement.
type ddlAction uint8

const (
	ddlStop   ddlAction = iota // the move waits for a person
	ddlIgnore                  // it says nothing about the target
	ddlFollow                  // done on the target, between the events that it stood between
)

// ddlOf says what is done about DDL, and why a lane stops at it. Only what can be
// repeated, and does no harm when it comes late, is followed: DDL can't be made
// conditional on who owns a lane, and a late drop could hit what a newer owner has
// made.
func ddlOf(e *event.Event) (action ddlAction, why string) {
	switch e.Op { //nolint:exhaustive // those on documents are no DDL; whatever is not named here stops
	case "createIndexes":
		if specs, ok := indexesOf(e); !ok || slices.ContainsFunc(specs, expires) {
			return ddlStop, "an index that expires documents is parked on the target, and only Drover's own catalog says what it is to be afterwards"
		}
		return ddlFollow, ""
	case "dropIndexes":
		if _, ok := indexesOf(e); !ok {
			return ddlStop, "it does not say which indexes are gone"
		}
		return ddlFollow, ""
	case "modify":
		switch {
		case changesOnlyTTL(e):
			return ddlStop, "it changes when documents expire, which is parked on the target, and only Drover's own catalog says what it is to be afterwards"
		case modifiesWhatIsKnown(e):
			return ddlFollow, ""
		}
		return ddlStop, "it changes more than validators, hidden and unique indexes and pre-images"
	case "create":
		return ddlStop, "a collection that did not come through Drover is in no chunk: nothing of it was imported, and no application sees it"
	case "drop", "dropDatabase", "rename":
		return ddlStop, "it takes documents away by another way than their deletion, which is never repeated on a target"
	default:
		return ddlStop, "it is of a kind that Drover does not know"
	}
}

// indexesOf gives the specifications in the description of DDL on indexes.
func indexesOf(e *event.Event) ([]bson.Raw, bool) {
	description, ok := rawLookup(e.Description, "operationDescription")
	if !ok {
		return nil, false
	}
	list, ok := bson.Raw(description).Lookup("indexes").ArrayOK()
	if !ok {
		return nil, false
	}
	values, err := list.Values()
	if err != nil || len(values) == 0 {
		return nil, false
	}
	specs := make([]bson.Raw, 0, len(values))
	for _, v := range values {
		spec, ok := v.DocumentOK()
		if !ok {
			return nil, false
		}
		if _, named := spec.Lookup("name").StringValueOK(); !named {
			return nil, false
		}
		specs = append(specs, spec)
	}
	return specs, true
}

// expires reports whether an index deletes documents.
func expires(spec bson.Raw) bool {
	_, err := spec.LookupErr("expireAfterSeconds")
	return err == nil
}

// Fields of a collMod that are followed, and of the index in it.
var (
	modifiable      = []string{"validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages", "index"}
	modifiableIndex = []string{"name", "keyPattern", "hidden", "unique", "prepareUnique"}
)

// modifiesWhatIsKnown reports whether a collMod is one that may be done again on
// the target.
func modifiesWhatIsKnown(e *event.Event) bool {
	description, ok := rawLookup(e.Description, "operationDescription")
	if !ok {
		return false
	}
	c, err := parseContainer(description, false)
	if err != nil || len(c.fields) == 0 {
		return false
	}
	for i := range c.fields {
		if !slices.Contains(modifiable, c.fields[i].name) {
			return false
		}
		if c.fields[i].name != "index" {
			continue
		}
		index, ok, err := c.fields[i].into()
		if err != nil || !ok {
			return false
		}
		for j := range index.fields {
			if !slices.Contains(modifiableIndex, index.fields[j].name) {
				return false
			}
		}
	}
	return true
}

// dealsWith tells what this lane does about DDL of its placement. The change is
// followed by one lane only, the one that has all events of the placement, so that
// it comes between the same events as on the source; where documents are spread
// over lanes there is none.
func (l *Lane) dealsWith(e *event.Event) (ddlAction, string) {
	action, why := ddlOf(e)
	d := &l.cfg.Direction
	switch {
	case action == ddlStop && l.ownExpiry(e):
		return ddlIgnore, ""
	case action != ddlFollow:
		return action, why
	case l.cfg.Definitions == nil:
		return ddlStop, "the move was started with --on-ddl stop"
	case d.Spread != event.ByDatabase:
		return ddlStop, "the log spreads a collection's documents over partitions"
	}
	if p, err := d.partition(); err != nil || p != l.lane.Partition {
		return ddlIgnore, ""
	}
	return ddlFollow, ""
}

// define deals with DDL, with everything before it saved: follows it, or stops
// before it. Whoever owns the lane after a crash follows it once more.
func (l *Lane) define(ctx context.Context, b *batch) error {
	if err := l.save(ctx); err != nil {
		return err
	}
	action, why := l.dealsWith(b.ddl)
	if action != ddlFollow {
		return ddlError(b.ddl, why)
	}
	if err := l.owned(ctx); err != nil {
		return err
	}
	if err := l.point(ctx, "lane.define"); err != nil {
		return err
	}
	if err := l.follow(ctx, b.ddl); err != nil {
		return err
	}
	if err := l.point(ctx, "lane.defined"); err != nil {
		return err
	}
	l.log.InfoContext(ctx, "DDL of the source was followed", slog.String("op", string(b.ddl.Op)), slog.String("collection", b.ddl.Collection), slog.Int64("seq", b.ddl.Seq))
	l.cfg.Metrics.followed.Inc()
	l.reached = b.ddlPos
	l.gauge.passed(&batch{pos: b.ddlPos, wall: b.ddl.Wall}, 0)
	return l.save(ctx)
}

// follow does DDL on the target, however long that takes: an index is built.
func (l *Lane) follow(ctx context.Context, e *event.Event) error {
	for try := 0; ; try++ {
		err := l.cfg.Definitions.Follow(ctx, e)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !passing(err, try) && !isTransient(err):
			return failure.New(failure.Invalid, "lane.ddl_refused", "lane %s cannot follow %s of %s.%s at seq %d: %w", l.id, e.Op, e.Database, e.Collection, e.Seq, err).
				WithHint("the target does not take what the source has: undo it on the source's shard and abort the migration, or mend the cause and resume")
		}
		l.cfg.Metrics.retries.Inc()
		l.gauge.troubled(err)
		if err := pause.For(ctx, l.cfg.Backoff(try)); err != nil {
			return err
		}
	}
}

// isTransient reports whether an error says of itself that it may pass.
func isTransient(err error) bool {
	f, ok := errors.AsType[*failure.Error](err)
	return ok && f.Kind == failure.Transient
}

// ddlError stops a lane at DDL that is not followed.
func ddlError(e *event.Event, why string) error {
	return failure.New(failure.Invalid, "lane.ddl", "%s of %s.%s on the source at seq %d: %s", e.Op, e.Database, e.Collection, e.Seq, why).
		WithHint("DDL on a placement that is being moved goes through Drover, never to the shard: %s", wayOut(e))
}

// wayOut says how a move comes on that stopped at DDL.
func wayOut(e *event.Event) string {
	if action, _ := ddlOf(e); action == ddlFollow {
		return "let changes of indexes and options be followed with drover migrate resume --on-ddl follow, or abort the migration, undo the change and start it again"
	}
	switch e.Op { //nolint:exhaustive // the others have no way of their own
	case "create":
		return "abort the migration, drop the collection on the shard and make it through a proxy when nothing of the database is being moved, then start again"
	case "drop", "dropDatabase":
		return "the source has lost these documents and the target has not: abort the migration, which leaves what is on the source, and drop the collection through a proxy, " +
			"or write them back into one that is made anew; then start again"
	case "rename":
		return "abort the migration, rename the collection back on the shard and start again; through a proxy there is no rename: make another collection and copy"
	default:
		return "abort the migration, undo the change on the shard or repeat it through a proxy, and start again"
	}
}

// ownExpiry reports whether e is what Drover itself does to the expiry of an index: a
// switch parks that of the placement that it leaves, and restores it when it goes back or
// has opened the next one.
func (l *Lane) ownExpiry(e *event.Event) bool {
	if l.cfg.OwnExpiry == nil || !changesOnlyTTL(e) {
		return false
	}
	description, _ := rawLookup(e.Description, "operationDescription")
	index, ok := rawLookup(description, "index")
	return ok && l.cfg.OwnExpiry(e.Collection, index)
}

// changesOnlyTTL reports whether e changes no more than when documents expire.
func changesOnlyTTL(e *event.Event) bool {
	if e.Op != "modify" {
		return false
	}
	desc, ok := rawLookup(e.Description, "operationDescription")
	if !ok {
		return false
	}
	c, err := parseContainer(desc, false)
	if err != nil || len(c.fields) == 0 {
		return false
	}
	for i := range c.fields {
		switch c.fields[i].name {
		case "expireAfterSeconds": // of a clustered collection
		case "index":
			index, ok, err := c.fields[i].into()
			if err != nil || !ok {
				return false
			}
			for j := range index.fields {
				if n := index.fields[j].name; n != "name" && n != "keyPattern" && n != "expireAfterSeconds" {
					return false
				}
			}
		default:
			return false
		}
	}
	return true
}

// rawLookup gives a document within a document.
func rawLookup(raw []byte, name string) ([]byte, bool) {
	c, err := parseContainer(raw, false)
	if err != nil {
		return nil, false
	}
	i, err := c.find(name)
	if err != nil || i < 0 || c.fields[i].kind != typeDocument {
		return nil, false
	}
	return c.fields[i].raw, true
}
