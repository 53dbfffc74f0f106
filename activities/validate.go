package activities

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"golang.org/x/sync/errgroup"

	"drover/bulkimport"
	"drover/cdc"
	"drover/chunk"
	"drover/contract"
	"drover/event"
	"drover/internal/failure"
	"drover/metadata"
	"drover/replication"
	"drover/shard"
	"drover/validation"
)

// maxBusy bounds what may be left for the comparison under the fence.
const maxBusy = 200

// ValidateChunk compares both placements while the lanes go on.
//
// Before: in sync. After: no difference but in at most maxBusy documents that
// changed in every round; those are compared under the fence. If interrupted:
// run again, it goes on with what was left of the leg under way.
func (a *Activities) ValidateChunk(ctx context.Context, in contract.DirectionInput) (contract.ValidateResult, error) {
	meter := a.meter(in.Ref, "validate")
	var sum contract.ValidateResult
	err := meter.beating(ctx, func(ctx context.Context) error {
		all, err := a.legs(ctx, in)
		if err != nil {
			return err
		}
		for _, l := range all {
			res, err := a.validateLeg(ctx, l, meter)
			sum.Documents, sum.Bytes, sum.Rounds = sum.Documents+res.Documents, sum.Bytes+res.Bytes, max(sum.Rounds, res.Rounds)
			sum.Busy, sum.Mismatches = sum.Busy+len(res.Busy), sum.Mismatches+res.Mismatched
			if err != nil {
				return err
			}
		}
		return nil
	})
	return sum, err
}

// validateLeg compares what one leg is about.
func (a *Activities) validateLeg(ctx context.Context, l leg, meter *meter) (validation.Result, error) {
	var none validation.Result
	in := l.DirectionInput
	e, err := a.ends(ctx, in)
	if err != nil {
		return none, err
	}
	m, err := a.Store.Migration(ctx, in.Migration)
	if err != nil {
		return none, err
	}
	v, err := a.validator(ctx, l, e)
	if err != nil {
		return none, err
	}
	v.Progress = func(_ context.Context, p validation.Progress) {
		meter.update(func(c *contract.Progress) {
			c.Documents, c.Bytes = p.Documents, p.Bytes
			c.Detail = fmt.Sprintf("%s, round %d: %d busy, %d to be checked again, %d mismatches", p.Collection, p.Round, p.Busy, p.Pending, p.Mismatches)
		})
	}
	catalog, err := a.Store.Collections(ctx, m.Chunk.Database)
	if err != nil {
		return none, err
	}
	began, err := a.Store.Now(ctx)
	if err != nil {
		return none, err
	}
	kept, err := keptVerification(ctx, a.Store, in.Migration, in.Direction)
	if err != nil {
		return none, err
	}
	v.From = kept.state.Scan
	foreign, err := a.targetEnd(ctx, in, v.From)
	if err != nil {
		return none, err
	}
	v.Keep = func(ctx context.Context, c validation.Checkpoint) error {
		c.Foreign = foreign
		return keepScan(ctx, a.Store, in, &c)
	}
	res, err := v.Run(ctx, names(catalog))
	if err != nil {
		return res, err
	}
	return res, a.verdict(ctx, in, m, res, began, names(catalog), foreign)
}

// targetEnd gives where the target's log stood when a validation began: what somebody else
// writes there behind a comparison is for the verification, too.
func (a *Activities) targetEnd(ctx context.Context, in contract.DirectionInput, interrupted *validation.Checkpoint) (validation.Offsets, error) {
	if interrupted != nil && len(interrupted.Foreign) > 0 {
		return interrupted.Foreign, nil
	}
	return a.Log.EndOffsets(ctx, in.To.Shard)
}

func names(catalog []chunk.Collection) []string {
	out := make([]string, 0, len(catalog))
	for _, c := range catalog {
		out = append(out, c.Name)
	}
	return out
}

// verdict keeps what was found, and turns anything but clean into a failure.
func (a *Activities) verdict(ctx context.Context, in contract.DirectionInput, m metadata.Migration, res validation.Result, began time.Time, collections []string, foreign validation.Offsets) error {
	if err := a.recordMismatches(ctx, in.Migration, res.Mismatches); err != nil {
		return err
	}
	for _, c := range collections {
		if err := a.Store.ResolveMismatches(ctx, in.Migration, c, began); err != nil {
			return err
		}
	}
	if !res.Clean() { // the next one compares everything
		if err := keepScan(ctx, a.Store, in, nil); err != nil {
			return err
		}
	}
	switch {
	case res.Mismatched > 0 || len(res.Catalog) > 0:
		return failure.New(failure.Mismatch, "validation.mismatch", "%s", res).
			WithHint("the source serves on; drover migrate mismatches lists the documents; resume compares again, abort gives up")
	case res.TooBusy > 0:
		return failure.New(failure.Transient, "validation.too_busy", "%d documents changed in every round; %d may be left for the fence", res.TooBusy, maxBusy)
	}
	if err := a.setBusy(ctx, in.Migration, res.Busy); err != nil {
		return err
	}
	if err := a.startVerification(ctx, in, res, foreign); err != nil {
		return err
	}
	if in.To.ID == m.Target.ID && m.Target.State == chunk.Loading { // by the first leg of a merge; the switch waits for all
		return a.Store.SetPlacementState(ctx, m.Target.ID, chunk.Loading, chunk.Mirror)
	}
	return nil
}

// recordMismatches keeps mismatches in the metadata.
func (a *Activities) recordMismatches(ctx context.Context, id chunk.MigrationID, list []validation.Mismatch) error {
	found := make([]metadata.Mismatch, 0, len(list))
	for _, x := range list {
		found = append(found, metadata.Mismatch{Collection: x.Collection, ID: x.ID, Path: x.Path, Kind: string(x.Kind)})
	}
	return a.Store.RecordMismatches(ctx, id, found)
}

// setBusy keeps the documents that are compared under the fence.
func (a *Activities) setBusy(ctx context.Context, id chunk.MigrationID, busy []validation.Document) error {
	b, err := bson.Marshal(bson.D{{Key: "busy", Value: busy}})
	if err != nil {
		return err
	}
	return a.Store.SetBusy(ctx, id, b)
}

// getBusy reads them.
func (a *Activities) getBusy(ctx context.Context, id chunk.MigrationID) ([]validation.Document, error) {
	m, err := a.Store.Migration(ctx, id)
	if err != nil || len(m.Busy) == 0 {
		return nil, err
	}
	var kept struct {
		Busy []validation.Document `bson:"busy"`
	}
	if err := bson.Unmarshal(m.Busy, &kept); err != nil {
		return nil, fmt.Errorf("read busy documents of migration %d: %w", id, err)
	}
	return kept.Busy, nil
}

// startVerification keeps where the continuous verification begins: at the first
// marker of a validation, as a slice that was compared early says nothing of what
// changed while others were, with what was busy to the end.
func (a *Activities) startVerification(ctx context.Context, in contract.DirectionInput, res validation.Result, foreign validation.Offsets) error {
	offsets, err := a.offsetsOf(ctx, in.From.Shard, res.First.Marker)
	if err != nil {
		return err
	}
	fresh := verification{state: validation.WatchState{Offsets: offsets, Foreign: foreign, Suspects: res.Busy}}
	return fresh.keep(ctx, a.Store, in)
}

// validator is wired to both sides of a leg.
func (a *Activities) validator(ctx context.Context, l leg, e ends) (*validation.Validator, error) {
	in := l.DirectionInput
	source, _, err := e.from.Reader(ctx, in.PrimaryReads)
	if err != nil {
		return nil, err
	}
	dest, err := e.to.Client(chunk.ReaderUser)
	if err != nil {
		return nil, err
	}
	admin, err := e.to.Client(chunk.AdminUser)
	if err != nil {
		return nil, err
	}
	v := &validation.Validator{
		Source:   &validation.Mongo{Client: source, Database: in.From.Database, Preference: readpref.SecondaryPreferred()},
		Target:   &validation.Mongo{Client: dest, Database: in.To.Database},
		Markers:  ownMarks{a, e, in},
		Log:      logPort{a, in},
		Parked:   parkedPort{admin, in.Migration},
		Catalog:  catalogPort{e, in},
		Cuts:     cutsPort{a.Store, in.Migration},
		Database: in.From.Database,
		Settings: validation.Settings{Few: maxBusy},
	}
	if l.copies != nil {
		v.Source = validation.Part{Side: v.Source, Keep: l.copies}
	}
	if l.sole != nil {
		v.Target = validation.Part{Side: v.Target, Keep: l.sole}
	}
	return v, nil
}

// ForeseeBusy implements [switchover.Comparer]: for every leg, and for a split
// that the targets together are the source.
func (a *Activities) ForeseeBusy(ctx context.Context, id chunk.MigrationID, source, target chunk.Placement) (func(context.Context) (int, error), error) {
	attempts, err := a.Store.Attempts(ctx, id)
	if err != nil {
		return nil, err
	}
	in := contract.DirectionInput{Ref: contract.Ref{Migration: id, Chunk: source.Chunk}, From: source, To: target, PrimaryReads: true} // few documents, and the fence waits for no secondary
	if len(attempts) > 0 {                                                                                                             // the newest one is under way
		in.Direction = attempts[len(attempts)-1].Direction
	}
	all, err := a.legs(ctx, in)
	if err != nil {
		return nil, err
	}
	foreign, err := a.foreign(ctx, all)
	if err != nil {
		return nil, err
	}
	var left []busyLeg
	for _, l := range all {
		b, err := a.busyOf(ctx, l)
		if err != nil {
			return nil, err
		}
		left = append(left, b)
	}
	return func(ctx context.Context) (sum int, err error) {
		for _, tallies := range foreign {
			if err := replication.CheckForeign(ctx, in.Direction, tallies); err != nil {
				return 0, err
			}
		}
		for _, b := range left {
			n, err := b.compare(ctx)
			if err != nil {
				return sum, err
			}
			sum += n
		}
		return sum, nil
	}, nil
}

// busyLeg is what the validation of a leg left to be compared.
type busyLeg struct {
	validator *validation.Validator
	documents map[string][]bson.RawValue // _ids by collection
}

// busyOf reads what the validation of a leg left.
func (a *Activities) busyOf(ctx context.Context, l leg) (b busyLeg, err error) {
	left, err := a.getBusy(ctx, l.Migration)
	if err != nil || len(left) == 0 {
		return b, err
	}
	e, err := a.ends(ctx, l.DirectionInput)
	if err != nil {
		return b, err
	}
	b.documents = map[string][]bson.RawValue{}
	for _, d := range left {
		b.documents[d.Collection] = append(b.documents[d.Collection], d.ID.Lookup("_id"))
	}
	b.validator, err = a.validator(ctx, l, e)
	return b, err
}

// compare compares the documents of a leg.
func (b busyLeg) compare(ctx context.Context) (n int, err error) {
	for c, ids := range b.documents {
		wrong, err := b.validator.CompareIDs(ctx, c, ids)
		if err != nil {
			return n, err
		}
		if len(wrong) > 0 {
			return n, failure.New(failure.Mismatch, "validation.mismatch", "%d of the documents of %s that were busy differ, the first at %q", len(wrong), c, wrong[0].Path).
				WithHint("the attempt goes back; the next validation reports the documents")
		}
		n += len(ids)
	}
	return n, nil
}

// logPort reads the captured log for the validator.
type logPort struct {
	a  *Activities
	in contract.DirectionInput
}

var _ validation.Log = logPort{}

// Touched implements [validation.Log].
func (p logPort) Touched(ctx context.Context, from, to validation.Mark, set *validation.Touched) error {
	seams, err := p.a.findMarker(ctx, p.in.From.Shard, from.Marker)
	if err != nil {
		return err
	}
	at, err := partitionOf(p.in.From.Database, int32(len(seams))) //nolint:gosec // a number of partitions
	if err != nil {
		return err
	}
	return p.a.replay().Read(ctx, p.in.From.Shard, at, seams[at].Offset, func(_ int64, e *event.Event) error {
		switch {
		case e == nil:
			return nil
		case e.Marker != nil && e.Marker.Key() == to.Marker.Key():
			return cdc.ErrStop
		}
		return set.Add(e)
	})
}

// parkedPort reads the documents that wait for a unique key on the target.
type parkedPort struct {
	admin *mongo.Client
	id    chunk.MigrationID
}

var _ validation.Parked = parkedPort{}

// Parked implements [validation.Parked].
func (p parkedPort) Parked(ctx context.Context) ([]validation.ParkedDocument, error) {
	cur, err := p.admin.Database(chunk.SystemDatabase).
		Collection(chunk.ParkedCollection, options.Collection().SetReadConcern(readconcern.Majority())).
		Find(ctx, bson.D{{Key: "migration", Value: p.id}})
	if err != nil {
		return nil, fmt.Errorf("read parked documents of migration %d: %w", p.id, err)
	}
	var rows []struct {
		ID struct {
			Collection string `bson:"c"`
		} `bson:"_id"`
		Doc bson.Binary `bson:"doc"`
	}
	if err := cur.All(ctx, &rows); err != nil {
		return nil, fmt.Errorf("read parked documents of migration %d: %w", p.id, err)
	}
	out := make([]validation.ParkedDocument, 0, len(rows))
	for _, r := range rows {
		out = append(out, validation.ParkedDocument{Collection: r.ID.Collection, Image: r.Doc.Data})
	}
	return out, nil
}

// cutsPort says where the import's slices ended.
type cutsPort struct {
	store *metadata.Store
	id    chunk.MigrationID
}

var _ validation.Cuts = cutsPort{}

// Cuts implements [validation.Cuts].
func (p cutsPort) Cuts(ctx context.Context, collection string) ([]validation.Cut, error) {
	all, err := slicesPort{p.store}.List(ctx, p.id)
	if err != nil {
		return nil, err
	}
	return cutsOf(all, collection), nil
}

// cutsOf gives the ends of a collection's slices; the last one has none.
func cutsOf(all []bulkimport.Slice, collection string) (cuts []validation.Cut) {
	for _, s := range all {
		if at, err := s.Hi.LookupErr("_id"); err == nil && s.Collection == collection {
			cuts = append(cuts, validation.Cut{At: at, Documents: int64(s.Object.Documents)})
		}
	}
	return cuts
}

// catalogPort compares both sides' collections and indexes.
type catalogPort struct {
	e  ends
	in contract.DirectionInput
}

var _ validation.Catalog = catalogPort{}

// CompareCatalog implements [validation.Catalog].
func (p catalogPort) CompareCatalog(ctx context.Context) ([]validation.CatalogDifference, error) {
	var source, target []shard.CollectionInfo
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		source, err = p.e.from.Definitions(ctx, p.in.From.Database)
		return err
	})
	g.Go(func() (err error) {
		target, err = p.e.to.Definitions(ctx, p.in.To.Database)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	diffs := shard.CompareCatalog(source, target)
	out := make([]validation.CatalogDifference, 0, len(diffs))
	for _, d := range diffs {
		out = append(out, validation.CatalogDifference{Collection: d.Collection, What: d.String()})
	}
	return out, nil
}
