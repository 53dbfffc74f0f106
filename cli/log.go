package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/cdc"
	"drover/chunk"
	"drover/internal/config"
	"drover/metadata"
	"drover/workers"
)

func newLogCommand(a *app) *cobra.Command {
	return group("log", "Read what was captured", newLogShow(a), newLogFollow(a))
}

// changeJSON is one change as it is printed.
type changeJSON struct {
	workers.Change
	Op         string          `json:"op"`
	Collection string          `json:"collection,omitempty"`
	ID         json.RawMessage `json:"id,omitempty"`       // {_id: value} as extended JSON
	Document   json.RawMessage `json:"document,omitempty"` // after an insert or replace
	Update     json.RawMessage `json:"update,omitempty"`   // as change streams describe it
	DDL        json.RawMessage `json:"ddl,omitempty"`      // the change event of anything else
	Position   string          `json:"position,omitempty"` // for drover log follow --after: everything up to here was printed
}

// extended gives a document as extended JSON, nothing for none.
func extended(doc []byte) json.RawMessage {
	if len(doc) == 0 {
		return nil
	}
	text, err := bson.MarshalExtJSON(bson.Raw(doc), true, false)
	if err != nil {
		text, _ = json.Marshal(fmt.Sprintf("%x", doc)) // kept as it is
	}
	return text
}

func newChangeJSON(c workers.Change) changeJSON {
	e := c.Event
	return changeJSON{
		Change: c, Op: string(e.Op), Collection: e.Collection, ID: extended(e.Key),
		Document: extended(e.Document), Update: extended(e.Change), DDL: extended(e.Description),
	}
}

// withChanges runs do with what reads the captured logs.
func (a *app) withChanges(cmd *cobra.Command, do func(context.Context, *workers.Changes) error) error {
	return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
		log, err := cdc.NewLog(a.cfg.KafkaBrokers)
		if err != nil {
			return err
		}
		defer log.Close()
		return do(ctx, &workers.Changes{
			Store: store, Replay: &cdc.Replay{Log: log, Objects: &cdc.Objects{Client: workers.S3(&a.cfg), Bucket: a.cfg.S3Bucket}},
		})
	})
}

// moment reads a time, or how long ago it was.
func moment(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, &usageError{fmt.Errorf("--%s %q: want a time as 2026-01-02T15:04:05Z, or how long ago, as 10m", flag, s)}
	}
	return t, nil
}

func newLogShow(a *app) *cobra.Command {
	var from, to, id, collection string
	c := &cobra.Command{
		Use: "show CHUNK", Short: "Print the events of a chunk or of one document between two times", Args: cobra.ExactArgs(1),
		Long: "Print what happened to a chunk, or to one document of it, between two times: on every shard that served it, the replicators' writes\n" +
			"too, which bear the number of their migration. What Kafka no longer has comes from the archive.",
		Example: `  drover log show flights/0003 --from 2h --id '{"$oid":"65f0c0ffee65f0c0ffee65f0"}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			now := time.Now()
			begin, err := moment("from", from, now)
			if err != nil {
				return err
			}
			end, err := moment("to", to, now)
			if err != nil {
				return err
			}
			if end.IsZero() {
				end = now.Add(time.Minute)
			}
			var want bson.RawValue
			if id != "" {
				var doc bson.Raw
				if err := bson.UnmarshalExtJSON([]byte(`{"_id": `+id+`}`), false, &doc); err != nil {
					return &usageError{fmt.Errorf("--id %s: want extended JSON, a string in quotation marks: %w", id, err)}
				}
				want = doc.Lookup("_id")
			}
			return a.withChanges(cmd, func(ctx context.Context, changes *workers.Changes) error {
				return changes.Show(ctx, chunk.ID(args[0]), begin, end, func(c workers.Change) error {
					if collection != "" && c.Event.Collection != collection || id != "" && !sameID(c, want) {
						return nil
					}
					return a.printChange(c)
				})
			})
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "1h", "begin: a time, or how long ago")
	f.StringVar(&to, "to", "", "end: a time, or how long ago; empty: now")
	f.StringVar(&id, "id", "", "only the document with this _id, as extended JSON")
	f.StringVar(&collection, "collection", "", "only this collection")
	a.cfg.Flags(f, config.Common)
	return c
}

// sameID reports whether a change is of the document with an _id, whatever the
// type of its number.
func sameID(c workers.Change, want bson.RawValue) bool {
	if len(c.Event.Key) == 0 {
		return false
	}
	have, err := chunk.EncodeValue(c.Event.ID())
	if err != nil {
		return false
	}
	key, err := chunk.EncodeValue(want)
	return err == nil && have == key
}

// printChange prints one change, as it comes.
func (a *app) printChange(c workers.Change) error {
	if a.output == "json" {
		return json.NewEncoder(a.env.Stdout).Encode(newChangeJSON(c)) // one a line
	}
	by := ""
	if c.Label != 0 {
		by = fmt.Sprintf(" by migration %d", c.Label)
	}
	_, err := fmt.Fprintf(a.env.Stdout, "%s %s p%d seq %d %s %s %s%s\n", c.At.UTC().Format("2006-01-02T15:04:05.000Z"),
		c.Shard, c.Placement, c.Seq, c.Event.Op, c.Event.Collection, c.DocumentID(), by)
	return err
}

// errUntil ends a stream at the time that was asked for.
var errUntil = errors.New("the time is reached")

func newLogFollow(a *app) *cobra.Command {
	var after, from, until string
	c := &cobra.Command{
		Use: "follow DATABASE", Short: "Stream the changes of a logical database, across moves", Args: cobra.ExactArgs(1),
		Long: "Stream the changes of a logical database as JSON, one a line: each chunk's in their exact order whatever shard serves it, those of\n" +
			"different chunks by time. What movers wrote is left out, so that each change comes once. A line with a position comes about once a\n" +
			"second; --after goes on behind it. What was printed after the last position comes again.",
		RunE: func(cmd *cobra.Command, args []string) error {
			now := time.Now()
			begin, err := moment("from", from, now)
			if err != nil {
				return err
			}
			end, err := moment("until", until, now)
			if err != nil {
				return err
			}
			return a.withChanges(cmd, func(ctx context.Context, changes *workers.Changes) error {
				at, err := changes.Begin(ctx, args[0], begin)
				if after != "" {
					at, err = workers.ParsePosition(after)
				}
				if err != nil {
					return err
				}
				return a.follow(ctx, changes, at, begin, end)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&after, "after", "", "go on behind a position that was printed")
	f.StringVar(&from, "from", "", "begin: a time, or how long ago; empty: now")
	f.StringVar(&until, "until", "", "end when every change up to this time was printed; empty: never")
	c.MarkFlagsMutuallyExclusive("after", "from")
	a.cfg.Flags(f, config.Common)
	return c
}

// follow prints changes until ctx ends or the time is reached.
func (a *app) follow(ctx context.Context, changes *workers.Changes, at workers.Position, from, until time.Time) error {
	var told time.Time
	err := changes.Follow(ctx, at, func(c workers.Change, p workers.Position) error {
		if !until.IsZero() && c.At.After(until) {
			return errUntil
		}
		var position string
		if time.Since(told) > time.Second {
			told, position = time.Now(), p.String()
		}
		switch {
		case c.Event != nil && !c.At.Before(from):
			out := newChangeJSON(c)
			out.Position = position
			return json.NewEncoder(a.env.Stdout).Encode(out)
		case position != "":
			return json.NewEncoder(a.env.Stdout).Encode(map[string]string{"position": position})
		}
		return nil
	})
	if errors.Is(err, errUntil) || ctx.Err() != nil {
		return nil
	}
	return err
}
