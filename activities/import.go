package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"drover/bulkimport"
	"drover/cdc"
	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/shard"
)

// ImportChunk copies every collection of the chunk through S3 to the target.
//
// Before: registered. After: every slice is loaded, the loaders' role is gone.
// If interrupted: run again; what is stored is not read twice, what is loaded
// is not doubled.
func (a *Activities) ImportChunk(ctx context.Context, in contract.ImportInput) (contract.ImportResult, error) {
	m, err := a.Store.Migration(ctx, in.Migration)
	if err != nil {
		return contract.ImportResult{}, err
	}
	sort, err := orders(in.Sort)
	if err != nil {
		return contract.ImportResult{}, err
	}
	meter := a.meter(in.Ref, "import")
	sum := bulkimport.Result{Orders: map[string]bulkimport.Order{}}
	err = meter.beating(ctx, func(ctx context.Context) error {
		all, err := a.legs(ctx, contract.DirectionInput{Ref: in.Ref, From: m.Source, To: m.Target, PrimaryReads: in.PrimaryReads})
		if err != nil {
			return err
		}
		for _, l := range all {
			res, err := a.importLeg(ctx, l, sort, meter)
			if err != nil {
				return err
			}
			sum.Documents, sum.Bytes, sum.Slices = sum.Documents+res.Documents, sum.Bytes+res.Bytes, sum.Slices+res.Slices
			maps.Copy(sum.Orders, res.Orders)
		}
		return nil
	})
	if err != nil {
		return contract.ImportResult{}, err
	}
	return contract.ImportResult{Documents: int64(sum.Documents), Bytes: int64(sum.Bytes), Slices: sum.Slices, Sort: sorts(sum.Orders)}, nil
}

// importLeg imports what one leg is about.
func (a *Activities) importLeg(ctx context.Context, l leg, sort map[string]bulkimport.Order, meter *meter) (bulkimport.Result, error) {
	m, err := a.Store.Migration(ctx, l.Migration)
	if err != nil {
		return bulkimport.Result{}, err
	}
	imp, e, err := a.importer(ctx, m, l.PrimaryReads)
	if err != nil {
		return bulkimport.Result{}, err
	}
	imp.Sort = sort
	if l.applied.After(imp.Source.Start) {
		imp.Source.Start = l.applied
	}
	imp.Source.Keep, imp.Target.Keep = l.copies, l.own
	catalog, err := a.Store.Collections(ctx, m.Chunk.Database)
	if err != nil {
		return bulkimport.Result{}, err
	}
	imp.Progress = func(_ context.Context, p bulkimport.Progress) {
		meter.update(func(c *contract.Progress) {
			importProgress(c, p)
			if len(l.group) > 0 {
				c.Detail = fmt.Sprintf("%s to %s: %s", m.Chunk.ID, m.TargetChunk.ID, c.Detail)
			}
		})
	}
	began := time.Now()
	res, err := imp.Run(ctx, catalog)
	for try := 0; try < mostGrants && failure.HasCode(err, "import.refused"); try++ {
		again := e.to.GrantLoaderAgain(ctx, m.Target.ID, m.ID)
		if again != nil && !failure.HasCode(again, "grant.void") { // void: a run that was taken for dead has finished meanwhile, and what is recorded as loaded is the result
			return res, again
		}
		res, err = imp.Run(ctx, catalog)
	}
	if err != nil {
		return res, err
	}
	a.keepLoadRate(ctx, m.Target.Shard, res, time.Since(began))
	if err := e.to.DropLoaderRole(ctx, m.Target.ID, m.ID); err != nil {
		return res, err
	}
	// A loader that passed the check before may still write: it must not meet the lanes.
	_, err = e.to.DrainUser(ctx, chunk.LoaderUser, shard.DrainRequest{Placement: m.Target, Budget: drainBudget})
	return res, err
}

// mostGrants is how often a role is given again that its user seems not to hold.
const mostGrants = 3

// loadSample is how many documents an import must have for its rate to say something.
const loadSample = 10_000

// keepLoadRate remembers how fast a shard was loaded, for later plans. Nothing waits
// for it, so a failure is only logged.
func (a *Activities) keepLoadRate(ctx context.Context, name string, res bulkimport.Result, took time.Duration) {
	if res.Documents < loadSample {
		return
	}
	for kind, done := range map[metadata.RateKind]float64{metadata.LoadRate: float64(res.Documents), metadata.LoadBytesRate: float64(res.Bytes)} {
		if err := a.Store.KeepRate(ctx, name, kind, done/took.Seconds()); err != nil && ctx.Err() == nil {
			a.Logger.WarnContext(ctx, "The rate of an import is not kept", slog.String("shard", name), slog.Any("error", err))
		}
	}
}

// importProgress shows an import.
func importProgress(c *contract.Progress, p bulkimport.Progress) {
	c.Detail = fmt.Sprintf("%s %s: %d of %d slices stored", p.Stage, p.Collection, p.SlicesStored, p.SlicesTotal)
	c.Documents, c.Bytes = int64(p.Documents), int64(p.Bytes)
	c.Sort, c.Limit = p.Order, p.Held
	c.DocumentsTotal, c.BytesTotal = int64(p.TotalDocuments), int64(p.TotalBytes)
}

// orders reads what an operator asks for.
func orders(asked map[string]string) (map[string]bulkimport.Order, error) {
	out := map[string]bulkimport.Order{}
	for name, text := range asked {
		o, err := bulkimport.ParseOrder(text)
		if err != nil {
			return nil, err
		}
		out[name] = o
	}
	return out, nil
}

// sorts says why each collection was loaded in its order.
func sorts(orders map[string]bulkimport.Order) string {
	var out []string
	for name, o := range orders {
		out = append(out, name+": "+o.Why)
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// drainBudget is how long operations may end by themselves before they are killed.
const drainBudget = 10 * time.Second

// importer is wired to both shards of a migration.
func (a *Activities) importer(ctx context.Context, m metadata.Migration, primaryReads bool) (*bulkimport.Importer, ends, error) {
	e, err := a.ends(ctx, contract.DirectionInput{From: m.Source, To: m.Target})
	if err != nil {
		return nil, e, err
	}
	pinned := e.from.Shard().Capabilities.PinsSnapshots
	reader, member, err := e.from.Reader(ctx, primaryReads)
	host := member.Host
	if err == nil && !pinned { // slices are read in transactions, wherever the primary is
		reader, err = e.from.Client(chunk.ReaderUser)
	}
	if err != nil {
		return nil, e, err
	}
	if !pinned || member.State == primaryState {
		host = ""
	}
	loader, err := e.to.Client(chunk.LoaderUser)
	if err != nil {
		return nil, e, err
	}
	start, err := a.findMarker(ctx, m.Source.Shard, startMarker(m))
	if err != nil {
		return nil, e, err
	}
	return &bulkimport.Importer{
		Migration: m.ID,
		Source: bulkimport.Source{
			Client: reader, Database: m.Source.Database, Preference: readpref.SecondaryPreferred(),
			Pinned: pinned, Start: start[0].Time,
			Settled: a.captured(m.Source.Shard),
		},
		Target:   bulkimport.Target{Client: loader, Database: m.Target.Database, KeepsEmptyTimestamps: e.to.Shard().Capabilities.KeepsEmptyTimestamps},
		Bucket:   bulkimport.Bucket{Client: a.S3, Name: a.Bucket},
		Slices:   slicesPort{a.Store},
		ReadPace: a.throttle(e.from, host, reader), LoadPace: a.throttle(e.to, "", nil),
		Budget: a.Settings.ImportMemory, Stops: a.Stops,
	}, e, nil
}

// findMarkerFor bounds one search: what was written is captured soon, and a
// search that hangs on its connection is better begun anew.
const findMarkerFor = 30 * time.Second

// findMarker looks for a marker that was written before, in the archive too, at its time
// or later. Where it was found it stays: a move asks for its start several times, and
// each search reads the log.
func (a *Activities) findMarker(ctx context.Context, name string, m chunk.Marker) ([]cdc.Seam, error) {
	at := seamKey{name, m.Key()}
	if found, ok := a.seams.Load(at); ok {
		return found.([]cdc.Seam), nil //nolint:forcetypeassert // as it was stored
	}
	ctx, cancel := context.WithTimeout(ctx, findMarkerFor)
	defer cancel()
	found, err := a.replay().FindMarker(ctx, name, at.marker, m.At)
	if err != nil {
		return nil, err
	}
	a.keepSeams(at, found)
	return found, nil
}

// keepSeams remembers where a marker is.
func (a *Activities) keepSeams(at seamKey, found []cdc.Seam) {
	if a.seamsKept.Add(1) > mostSeams {
		a.seams.Clear()
		a.seamsKept.Store(1)
	}
	a.seams.Store(at, found)
}

// seamKey names a marker in a shard's log.
type seamKey struct{ shard, marker string }

// mostSeams bounds how many places are remembered.
const mostSeams = 4096

// slicesPort gives the importer its durable slices.
type slicesPort struct{ store *metadata.Store }

var _ bulkimport.Slices = slicesPort{}

// toRow and fromRow translate between the importer's slice and the metadata's.
func toRow(s bulkimport.Slice) metadata.Slice {
	return metadata.Slice{
		Migration: s.Migration, Collection: s.Collection, No: s.Number, Lo: s.Lo, Hi: s.Hi, State: metadata.SliceState(s.State),
		TLo: s.Object.From, THi: s.Object.To, Docs: int64(s.Object.Documents), Bytes: int64(s.Object.Bytes),
		Hash: s.Object.Hash, ObjectKey: s.Object.Key, Manifest: json.RawMessage("{}"),
	}
}

func fromRow(r metadata.Slice) bulkimport.Slice {
	return bulkimport.Slice{
		Migration: r.Migration, Collection: r.Collection, Number: r.No, Lo: bound(r.Lo), Hi: bound(r.Hi), State: bulkimport.State(r.State),
		Object: bulkimport.Object{
			Key: r.ObjectKey, Documents: bulkimport.Documents(r.Docs), Bytes: bulkimport.Bytes(r.Bytes), Hash: r.Hash, From: r.TLo, To: r.THi,
		},
	}
}

// bound makes an open end nil.
func bound(r bson.Raw) bson.Raw {
	if len(r) == 0 {
		return nil
	}
	return r
}

func fromRows(rows []metadata.Slice, err error) ([]bulkimport.Slice, error) {
	out := make([]bulkimport.Slice, 0, len(rows))
	for _, r := range rows {
		out = append(out, fromRow(r))
	}
	return out, err
}

// Plan implements [bulkimport.Slices].
func (p slicesPort) Plan(ctx context.Context, m chunk.MigrationID, collection string, plan []bulkimport.Slice) ([]bulkimport.Slice, error) {
	rows := make([]metadata.Slice, 0, len(plan))
	for _, s := range plan {
		rows = append(rows, toRow(s))
	}
	return fromRows(p.store.PlanSlices(ctx, m, collection, rows))
}

// Stored implements [bulkimport.Slices].
func (p slicesPort) Stored(ctx context.Context, done bulkimport.Slice, rest *bulkimport.Slice) error {
	if rest == nil {
		return p.store.StoreSlice(ctx, toRow(done), nil)
	}
	r := toRow(*rest)
	return p.store.StoreSlice(ctx, toRow(done), &r)
}

// Loaded implements [bulkimport.Slices].
func (p slicesPort) Loaded(ctx context.Context, m chunk.MigrationID, collection string) error {
	return p.store.LoadSlices(ctx, m, collection)
}

// List implements [bulkimport.Slices].
func (p slicesPort) List(ctx context.Context, m chunk.MigrationID) ([]bulkimport.Slice, error) {
	return fromRows(p.store.Slices(ctx, m))
}
