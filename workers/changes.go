package workers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/metadata"
)

// Changes reads what happened to chunks from the captured logs, wherever they
// were served.
type Changes struct {
	Store  *metadata.Store
	Replay *cdc.Replay
}

// Change is one change of a document.
type Change struct {
	Chunk     chunk.ID          `json:"chunk"`
	At        time.Time         `json:"at"`
	Shard     string            `json:"shard"`
	Placement chunk.PlacementID `json:"placement"`
	Offset    int64             `json:"offset"`
	Seq       int64             `json:"seq"`
	Label     chunk.MigrationID `json:"label,omitempty"` // written by the replicator of this migration
	Event     *event.Event      `json:"-"`
}

// Where is the place of a chunk's changes in the log of the shard that served it.
type Where struct {
	Placement chunk.PlacementID `json:"p"`
	Shard     string            `json:"s"`
	Offset    int64             `json:"o"`
}

// Position is where a stream of a logical database stands, by chunk.
type Position map[chunk.ID]Where

// String gives the position as it is handed to people.
func (p Position) String() string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("encode a position: %v", err))
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParsePosition reads what [Position.String] gave.
func ParsePosition(s string) (Position, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	var p Position
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return nil, failure.New(failure.Invalid, "log.bad_position", "position %q cannot be read: %w", s, err).
			WithHint("give it as drover log follow printed it")
	}
	return p, nil
}

// partition gives the partition that holds a physical database.
func (c *Changes) partition(ctx context.Context, shard, database string) (int32, error) {
	ends, err := c.Replay.Log.EndOffsets(ctx, shard)
	if err != nil {
		return 0, err
	}
	e := event.Event{Database: database}
	return e.Partition(int32(len(ends)), event.ByDatabase) //nolint:gosec // a number of partitions
}

// database gives the physical database of a placement. The metadata keeps the rows
// of those that are gone; without one the name is of Drover's making.
func (c *Changes) database(ctx context.Context, id chunk.ID, p chunk.PlacementID) (string, error) {
	x, err := c.Store.Placement(ctx, p)
	if failure.HasCode(err, "placement.unknown") {
		return chunk.PhysicalName(id, p), nil
	}
	return x.Database, err
}

// Show calls fn for every event of a chunk between two times, on every shard that
// served it then, the replicators' too; each shard's in its order.
func (c *Changes) Show(ctx context.Context, id chunk.ID, from, to time.Time, fn func(Change) error) error {
	history, err := c.Store.RouteHistory(ctx, id)
	if err != nil {
		return err
	}
	if len(history) == 0 {
		return failure.New(failure.Invalid, "chunk.unknown", "there is no chunk %s", id).WithHint("drover chunk list shows them")
	}
	seen := map[chunk.PlacementID]bool{}
	for _, h := range history {
		if seen[h.Placement] || h.At.After(to) {
			continue
		}
		seen[h.Placement] = true
		if err := c.showOne(ctx, id, h, from, to, fn); err != nil {
			return fmt.Errorf("log of %s: %w", h.Shard, err)
		}
	}
	return nil
}

// showOne shows what one placement of a chunk saw.
func (c *Changes) showOne(ctx context.Context, id chunk.ID, h metadata.RouteChange, from, to time.Time, fn func(Change) error) error {
	database, err := c.database(ctx, id, h.Placement)
	if err != nil {
		return err
	}
	p, err := c.partition(ctx, h.Shard, database)
	if err != nil {
		return err
	}
	ends, err := c.Replay.Log.EndOffsets(ctx, h.Shard)
	if err != nil {
		return err
	}
	at, err := c.Replay.Seek(ctx, h.Shard, p, from)
	if err != nil || at >= ends[p] {
		return err
	}
	var counter event.Counter
	return c.Replay.Read(ctx, h.Shard, p, at, func(offset int64, e *event.Event) error {
		if e == nil {
			return nil
		}
		ok, err := counter.Accept(e)
		if err != nil {
			return err
		}
		if ok && e.Database == database && !e.Wall.Before(from) && !e.Wall.After(to) {
			if err := fn(Change{Chunk: id, At: e.Wall, Shard: h.Shard, Placement: h.Placement, Offset: offset, Seq: e.Seq, Label: e.Label, Event: e}); err != nil {
				return err
			}
		}
		if offset >= ends[p]-1 || e.Wall.After(to.Add(time.Minute)) {
			return cdc.ErrStop
		}
		return nil
	})
}

// Begin gives the position of a logical database at a time, or now.
func (c *Changes) Begin(ctx context.Context, database string, at time.Time) (Position, error) {
	routes, err := c.Store.Routes(ctx, database)
	if err == nil && !at.IsZero() {
		routes, err = c.Store.RoutesAt(ctx, database, at)
	}
	if err != nil {
		return nil, err
	}
	if len(routes) == 0 {
		return nil, failure.New(failure.Invalid, "database.unknown", "there is no logical database %s", database).WithHint("drover db list shows them")
	}
	out := Position{}
	for _, r := range routes {
		w := Where{Placement: r.Placement.ID, Shard: r.Placement.Shard}
		physical, err := c.database(ctx, r.Chunk.ID, w.Placement)
		if err != nil {
			return nil, err
		}
		p, err := c.partition(ctx, w.Shard, physical)
		if err != nil {
			return nil, err
		}
		if at.IsZero() {
			ends, err := c.Replay.Log.EndOffsets(ctx, w.Shard)
			if err != nil {
				return nil, err
			}
			w.Offset = ends[p]
		} else if w.Offset, err = c.Replay.Seek(ctx, w.Shard, p, at); err != nil {
			return nil, err
		}
		out[r.Chunk.ID] = w
	}
	return out, nil
}

// Follow gives the changes of a logical database as one stream: each chunk's in
// their exact order, across all its moves, splits and merges, those of different chunks by time. What
// replicators wrote is left out, so that each change comes once. It ends with
// ctx's error, or fn's; fn is told where to go on.
func (c *Changes) Follow(ctx context.Context, from Position, fn func(Change, Position) error) error {
	group, ctx := errgroup.WithContext(ctx)
	m := &merger{at: Position{}, strands: map[chunk.ID]*strand{}}
	m.begin = func(id chunk.ID, w Where, not time.Time) {
		s := &strand{c: c, id: id, at: w, out: make(chan link, 256), time: not}
		m.strands[id], m.at[id] = s, w
		group.Go(func() error { return s.run(ctx) })
	}
	for id, w := range from {
		m.begin(id, w, time.Time{})
	}
	m.opened = c.opened
	group.Go(func() error { return m.run(ctx, fn) })
	return group.Wait()
}

// link is one change, or a time up to which a strand has come.
type link struct {
	change   Change // without an event: the time only
	next     Where
	reshaped *metadata.Attempt // the chunk ended here, which was split or merged
}

// strand is the changes of one chunk.
type strand struct {
	c    *Changes
	id   chunk.ID
	at   Where
	out  chan link
	time time.Time // of the newest link: clocks of shards differ

	head *link // of the merger
}

// merger makes one stream of strands.
type merger struct {
	strands map[chunk.ID]*strand
	at      Position
	begin   func(id chunk.ID, at Where, not time.Time) // a strand, of whose links none is before a time
	opened  func(ctx context.Context, a metadata.Attempt, target chunk.Placement) (Where, error)
}

// run hands out the oldest link of all strands, again and again. Heartbeats keep
// a strand that has nothing to say from holding up the others.
func (m *merger) run(ctx context.Context, fn func(Change, Position) error) error {
	for {
		var oldest *strand
		for _, s := range m.strands {
			if s.head == nil {
				select {
				case l := <-s.out:
					s.head = &l
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			if s.head.reshaped == nil && (oldest == nil || s.head.change.At.Before(oldest.head.change.At)) {
				oldest = s
			}
		}
		again, err := m.reshape(ctx)
		switch {
		case err != nil:
			return err
		case again:
			continue
		case oldest == nil:
			<-ctx.Done()
			return context.Cause(ctx)
		}
		l := oldest.head
		oldest.head = nil
		m.at[oldest.id] = l.next
		if err := fn(l.change, m.at); err != nil {
			return err
		}
	}
}

// reshape goes on with the chunks that an attempt has made, once all have ended that it
// replaces: none of their changes is older.
func (m *merger) reshape(ctx context.Context) (done bool, err error) {
	for _, s := range m.strands {
		if s.head == nil || s.head.reshaped == nil {
			continue
		}
		a := *s.head.reshaped
		whole, latest := true, s.head.change.At
		for _, l := range a.Legs {
			o, ok := m.strands[l.Source.Chunk]
			whole = whole && (!ok || o.head != nil && o.head.reshaped != nil)
			if ok && o.head != nil && o.head.change.At.After(latest) {
				latest = o.head.change.At
			}
		}
		if !whole {
			continue
		}
		fresh := Position{}
		for _, l := range a.Legs {
			if _, known := fresh[l.Target.Chunk]; !known {
				if fresh[l.Target.Chunk], err = m.opened(ctx, a, l.Target); err != nil {
					return false, err
				}
			}
		}
		for _, l := range a.Legs {
			delete(m.strands, l.Source.Chunk)
			delete(m.at, l.Source.Chunk)
		}
		for id, w := range fresh {
			m.begin(id, w, latest)
		}
		return true, nil
	}
	return false, nil
}

// run follows a chunk from placement to placement.
func (s *strand) run(ctx context.Context) error {
	for {
		final, err := s.placement(ctx)
		if err != nil {
			return fmt.Errorf("changes of %s: %w", s.id, err)
		}
		ended, err := s.hop(ctx, final)
		if err != nil {
			return fmt.Errorf("changes of %s: %w", s.id, err)
		}
		if ended {
			return nil
		}
	}
}

// placement hands on what one placement saw, until its final marker.
func (s *strand) placement(ctx context.Context) (final seam, err error) {
	database, err := s.c.database(ctx, s.id, s.at.Placement)
	if err != nil {
		return final, err
	}
	p, err := s.c.partition(ctx, s.at.Shard, database)
	if err != nil {
		return final, err
	}
	var counter event.Counter
	err = s.c.Replay.Read(ctx, s.at.Shard, p, s.at.Offset, func(offset int64, e *event.Event) error {
		if e == nil {
			return nil
		}
		if ok, err := counter.Accept(e); !ok || err != nil {
			return err
		}
		s.at.Offset = offset + 1
		if m := e.Marker; m != nil && m.Kind == chunk.FinalMarker && m.Placement == s.at.Placement {
			final = seam{attempt: m.Attempt, partition: p, at: e.Wall}
			return cdc.ErrStop
		}
		l := link{next: s.at, change: Change{Chunk: s.id, At: e.Wall, Shard: s.at.Shard, Placement: s.at.Placement, Offset: offset, Seq: e.Seq}}
		switch {
		case e.Op != event.Mark && e.Database == database && e.Label == 0:
			l.change.Event = e
		case e.Marker == nil || e.Marker.Kind != chunk.HeartbeatMarker:
			return nil
		}
		if l.change.At.Before(s.time) {
			l.change.At = s.time
		}
		s.time = l.change.At
		select {
		case s.out <- l:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	return final, err
}

// seam is a final marker that was met.
type seam struct {
	attempt   chunk.AttemptID
	partition int32
	at        time.Time // by the shard's clock
}

// another finds out whether the attempt wrote one more final marker, as it does in
// each of its rounds: what lies between two of them was applied, and is part of the
// stream. No two of them are further apart than the attempt lasted.
func another(ctx context.Context, log replayed, shard string, place chunk.PlacementID, next int64, final seam, lasted time.Duration) (found bool, err error) {
	err = log.Read(ctx, shard, final.partition, next, func(_ int64, e *event.Event) error {
		switch {
		case e == nil:
			return nil
		case e.Wall.After(final.at.Add(lasted)):
			return cdc.ErrStop
		case e.Marker != nil && e.Marker.Kind == chunk.FinalMarker && e.Marker.Placement == place && e.Marker.Attempt == final.attempt:
			found = true
			return cdc.ErrStop
		}
		return nil
	})
	return found, err
}

// replayed is a captured log, wherever its parts lie; [cdc.Replay] is one.
type replayed interface {
	Read(ctx context.Context, shard string, partition int32, from int64, fn func(offset int64, e *event.Event) error) error
}

// hopPoll is how often an attempt that is under way is looked at.
const hopPoll = 200 * time.Millisecond

// hop goes on where an attempt's target was opened, or, when the attempt went
// back, on the same placement. ended: it replaced the chunk.
func (s *strand) hop(ctx context.Context, final seam) (ended bool, err error) {
	for {
		a, err := s.c.Store.Attempt(ctx, final.attempt)
		if err != nil {
			return false, err
		}
		switch a.State { //nolint:exhaustive // the others are under way
		case chunk.AttemptAborted:
			return false, nil
		case chunk.Open, chunk.AttemptDone:
			more, err := another(ctx, s.c.Replay, s.at.Shard, s.at.Placement, s.at.Offset, final, a.ChangedAt.Sub(a.CreatedAt))
			if more || err != nil {
				return false, err
			}
			if len(a.Legs) > 1 || a.Target.Chunk != s.id {
				return true, s.replaced(ctx, a, final)
			}
			s.at, err = s.c.opened(ctx, a, a.Target)
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(hopPoll):
		}
	}
}

// replaced ends the strand, whose place stays before the final marker: who goes on from
// there meets it again.
func (s *strand) replaced(ctx context.Context, a metadata.Attempt, final seam) error {
	at := final.at
	if at.Before(s.time) {
		at = s.time
	}
	select {
	case s.out <- link{reshaped: &a, change: Change{At: at}}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// opened gives where a target of an attempt begins, from the archive where Kafka no
// longer has it.
func (c *Changes) opened(ctx context.Context, a metadata.Attempt, target chunk.Placement) (Where, error) {
	w := Where{Placement: target.ID, Shard: target.Shard}
	key := chunk.Marker{Kind: chunk.OpenMarker, Migration: a.Migration, Attempt: a.ID, Placement: target.ID}.Key()
	p, err := c.partition(ctx, w.Shard, target.Database)
	if err != nil {
		return w, err
	}
	from, err := c.Replay.Seek(ctx, w.Shard, p, a.CreatedAt)
	if err != nil {
		return w, err
	}
	err = c.Replay.Read(ctx, w.Shard, p, from, func(offset int64, e *event.Event) error {
		if e != nil && e.Marker != nil && e.Marker.Key() == key {
			w.Offset = offset
			return cdc.ErrStop
		}
		return nil
	})
	return w, err
}

// DocumentID gives {_id: value} of a change as extended JSON, "" for DDL.
func (c Change) DocumentID() string {
	if c.Event == nil || len(c.Event.Key) == 0 {
		return ""
	}
	text, err := bson.MarshalExtJSON(bson.Raw(c.Event.Key), true, false)
	if err != nil {
		return ""
	}
	return string(text)
}
