package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"drover/bulkimport"
	"drover/cdc"
	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/shard"
)

// planFor bounds one question of a plan: a part that is silent is named, and the
// others are asked.
const planFor = 10 * time.Second

// assumedLoad is how fast a shard is taken to be loaded that was never measured.
const assumedLoad = 10 << 20 // bytes a second

// movePlanner asks everything that a move would need, and changes nothing.
type movePlanner struct {
	a     *Activities
	in    contract.MigrateInput
	route chunk.Route
	ends
	plan  contract.MovePlan
	rates map[metadata.RateKind]metadata.Rate
}

// PlanMove says what a move would meet and how long it would take. What cannot be
// reached is named, and does not keep the rest from being asked. It only reads.
func (a *Activities) PlanMove(ctx context.Context, in contract.MigrateInput) (contract.MovePlan, error) {
	p := &movePlanner{a: a, in: in}
	var err error
	if p.route, err = a.Store.Route(ctx, in.Chunk); err != nil {
		return p.plan, err
	}
	p.plan = contract.MovePlan{Chunk: in.Chunk, From: p.route.Placement.Shard, To: in.To, At: time.Now().UTC(), BurnIn: in.BurnIn}
	if p.plan.BurnIn == 0 {
		d, _ := contract.BurnInOf(in.Kind)
		p.plan.BurnIn = contract.Duration(d)
	}
	if err := a.checkSort(ctx, contract.RegisterInput{MigrateInput: in}); err != nil {
		return p.plan, err
	}
	for _, ask := range []func(context.Context){
		p.fromMetadata, p.shards, p.source, p.estimates, p.room, p.capture, p.bucket, p.times, p.retentions,
	} {
		ask(ctx)
	}
	p.plan.Go = true
	for _, c := range p.plan.Checks {
		p.plan.Go = p.plan.Go && (c.Verdict == contract.PlanGood || c.Verdict == contract.PlanLook)
	}
	return p.plan, nil
}

// check adds what a question came to.
func (p *movePlanner) check(name, verdict, value, hint string) {
	p.plan.Checks = append(p.plan.Checks, contract.PlanCheck{Name: name, Verdict: verdict, Value: value, Hint: hint})
}

// ask runs a question for a while and adds its answer: a refusal is one of kind
// invalid, anything else means that nobody could be asked.
func (p *movePlanner) ask(ctx context.Context, name string, question func(context.Context) (string, error)) bool {
	ctx, cancel := context.WithTimeout(ctx, planFor)
	defer cancel()
	value, err := question(ctx)
	if err == nil {
		p.check(name, contract.PlanGood, value, "")
		return true
	}
	verdict, hint := contract.PlanUnknown, "it could not be asked; mend that, or the move may be refused"
	if f, ok := errors.AsType[*failure.Error](err); ok {
		hint = f.Hint
		if f.Kind == failure.Invalid {
			verdict = contract.PlanRefused
		}
	}
	p.check(name, verdict, err.Error(), hint)
	return false
}

// fromMetadata asks what Postgres knows.
func (p *movePlanner) fromMetadata(ctx context.Context) {
	p.ask(ctx, "chunk", func(ctx context.Context) (string, error) {
		if p.in.To == p.route.Placement.Shard {
			return "", failure.New(failure.Invalid, "migration.same_shard", "%s is on %s already", p.in.Chunk, p.in.To)
		}
		open, ok, err := p.a.Store.OpenMigration(ctx, p.in.Chunk)
		if err == nil && ok {
			err = failure.New(failure.Invalid, "migration.overlapping", "%s is part of migration %d already", p.in.Chunk, open.ID).
				WithHint("drover migrate status %s", p.in.Chunk)
		}
		return "free to move", err
	})
	p.ask(ctx, "proxies hold longer than a fence", func(ctx context.Context) (string, error) {
		return "all of them", p.a.checkHold(ctx)
	})
	p.ask(ctx, "room to apply on "+p.in.To, func(ctx context.Context) (string, error) {
		loads, err := p.a.Store.Loads(ctx)
		if err != nil {
			return "", err
		}
		p.plan.Writes = loads[p.route.Placement.ID]
		if p.rates, err = p.a.Store.Rates(ctx, p.in.To); err != nil {
			return "", err
		}
		p.plan.Apply = p.rates[metadata.ApplyRate].PerSecond
		seen, err := p.a.Store.Converging(ctx, p.in.To)
		seen.Demand = p.plan.Writes
		out := contract.Admission(seen)
		if err == nil && out.Capacity > 0 && out.Capacity < contract.SpareFactor*(out.Converging+out.Demand) {
			p.check("queue", contract.PlanLook, "it would wait for room: "+out.Reason(), "another target, a quieter time, or --no-queue")
		}
		return out.Reason(), err
	})
}

// shards opens both sides.
func (p *movePlanner) shards(ctx context.Context) {
	open := func(what, name string, set **shard.Set) {
		p.ask(ctx, what+" "+name, func(ctx context.Context) (string, error) {
			s, err := p.a.Sides.Set(ctx, name)
			if err != nil {
				return "", err
			}
			st, err := s.Status(ctx)
			if err != nil {
				return "", err // a shard that is down is no refusal yet
			}
			*set = s
			return fmt.Sprintf("primary %s, %d members", st.Host, len(st.Members)), nil
		})
	}
	open("source", p.route.Placement.Shard, &p.from)
	open("target", p.in.To, &p.to)
}

// source asks whether what is there can be moved.
func (p *movePlanner) source(ctx context.Context) {
	if p.from == nil {
		return
	}
	p.ask(ctx, "bulk reads", func(ctx context.Context) (string, error) {
		if err := readable(ctx, p.from, p.in.PrimaryReads); err != nil {
			return "", err
		}
		_, m, err := p.from.Reader(ctx, p.in.PrimaryReads)
		return fmt.Sprintf("from %s (%s)", m.Host, m.State), err
	})
	p.ask(ctx, "collections", func(ctx context.Context) (string, error) {
		infos, err := p.a.defined(ctx, p.from, p.route.Placement)
		return fmt.Sprintf("%d, all can be moved and are as the catalog says", len(infos)), err
	})
}

// estimates samples each collection.
func (p *movePlanner) estimates(ctx context.Context) {
	if p.from == nil {
		return
	}
	p.ask(ctx, "sample", func(ctx context.Context) (string, error) {
		sort, err := orders(p.in.Sort)
		if err != nil {
			return "", err
		}
		catalog, err := p.a.Store.Collections(ctx, p.route.Chunk.Database)
		if err != nil {
			return "", err
		}
		reader, _, err := p.from.Reader(ctx, p.in.PrimaryReads)
		if err != nil {
			return "", err
		}
		src := bulkimport.Source{Client: reader, Database: p.route.Placement.Database, Preference: readpref.SecondaryPreferred()}
		sampled := int64(0)
		for _, c := range catalog {
			e, err := src.Estimate(ctx, c, sort, bulkimport.Limits{})
			if err != nil {
				return "", err
			}
			sampled += int64(e.Sampled)
			p.plan.Collections = append(p.plan.Collections, contract.PlannedCollection{
				Name: c.Name, Documents: int64(e.Documents), Bytes: int64(e.Bytes), Indexes: int64(e.Indexes), Slices: e.Slices, Sampled: int64(e.Sampled),
				Stored: int64(e.Stored), Import: contract.Duration(e.Store), Order: e.Order.Why,
			})
		}
		return fmt.Sprintf("%d documents of %d collections read", sampled, len(catalog)), nil
	})
}

// room compares what the copy needs with what the target has.
func (p *movePlanner) room(ctx context.Context) {
	var bytes int64
	for _, c := range p.plan.Collections {
		bytes += c.Bytes + c.Indexes
	}
	p.plan.Space = int64(float64(bytes) * roomFactor)
	if p.to == nil {
		return
	}
	p.ask(ctx, "space on "+p.in.To, func(ctx context.Context) (string, error) {
		room, err := p.to.Room(ctx)
		if err != nil || !room.Known {
			return "the server does not say", err
		}
		if room.Free() < p.plan.Space {
			return "", failure.New(failure.Invalid, "migration.no_room", "%d bytes are free, the copy needs %d", room.Free(), p.plan.Space).
				WithHint("choose another target with --to, or free disk on %s", p.in.To)
		}
		return fmt.Sprintf("%d bytes are free, the copy needs %d", room.Free(), p.plan.Space), nil
	})
}

// capture asks whether changes of both sides are captured, into topics as recorded.
func (p *movePlanner) capture(ctx context.Context) {
	for _, name := range []string{p.route.Placement.Shard, p.in.To} {
		p.ask(ctx, "capture of "+name, func(ctx context.Context) (string, error) {
			silence, ok, err := p.a.Store.CaptureSilence(ctx, name)
			switch {
			case err != nil:
				return "", err
			case !ok:
				return "", failure.New(failure.Invalid, "capture.never", "%s was never captured", name).WithHint("drover shard add %s starts its capture; a worker must run", name)
			case silence > time.Minute:
				return "", failure.New(failure.Invalid, "capture.silent", "it has saved nothing for %s", silence.Round(time.Second)).
					WithHint("docs/alarms.md, CaptureSilent")
			}
			return fmt.Sprintf("saved its position %s ago", silence.Round(time.Millisecond)), nil
		})
	}
}

// bucket asks whether S3 takes the copy.
func (p *movePlanner) bucket(ctx context.Context) {
	p.ask(ctx, "bucket "+p.a.Bucket, func(ctx context.Context) (string, error) {
		_, err := p.a.S3.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &p.a.Bucket})
		return "there", err
	})
}

// times works out how long everything takes.
func (p *movePlanner) times(context.Context) {
	rate := p.rates[metadata.LoadBytesRate]
	perSecond := rate.PerSecond
	p.plan.Basis = fmt.Sprintf("imports to %s reached %.1f MiB/s, %s ago", p.in.To, perSecond/(1<<20), rate.Age.Round(time.Minute))
	if perSecond == 0 {
		perSecond = assumedLoad
		p.plan.Basis = fmt.Sprintf("no import to %s was measured yet: reading by the sample, loading taken to be %d MiB/s", p.in.To, assumedLoad>>20)
	}
	var whole time.Duration
	for i := range p.plan.Collections {
		c := &p.plan.Collections[i]
		load := time.Duration(float64(c.Bytes) / perSecond * float64(time.Second))
		if rate.PerSecond > 0 { // of whole imports, reading included
			c.Import = contract.Duration(max(load, time.Duration(c.Import)))
		} else {
			c.Import += contract.Duration(load)
		}
		c.Import = contract.Duration(time.Duration(c.Import).Round(100 * time.Millisecond))
		whole += time.Duration(c.Import)
	}
	p.plan.Import = contract.Duration(whole)
	backlog := p.plan.Writes * whole.Seconds()
	switch {
	case p.plan.Apply == 0:
		p.check("catch-up", contract.PlanLook, fmt.Sprintf("%.0f changes will wait; what %s can apply was never measured", backlog, p.in.To), "")
	case p.plan.Apply <= p.plan.Writes:
		p.check("catch-up", contract.PlanRefused, fmt.Sprintf("%.0f/s are written, %s was seen to apply %.0f/s: it would not converge", p.plan.Writes, p.in.To, p.plan.Apply),
			"write less, split the chunk, or choose a shard with more room")
	default:
		left := time.Duration(backlog / (p.plan.Apply - p.plan.Writes) * float64(time.Second)).Round(100 * time.Millisecond)
		p.plan.CatchUp = contract.Duration(left)
		p.check("catch-up", contract.PlanGood, fmt.Sprintf("%.0f changes will wait, %s for them", backlog, left), "")
	}
}

// retentions compares how long changes are kept with how long they are needed.
func (p *movePlanner) retentions(ctx context.Context) {
	until := time.Duration(p.plan.Import) + time.Duration(p.plan.CatchUp)
	for _, side := range []struct {
		set   *shard.Set
		name  string
		needs time.Duration
		why   string
	}{{p.from, p.route.Placement.Shard, until, "the copy and the catch-up"}, {p.to, p.in.To, time.Duration(p.plan.BurnIn), "the burn-in, for the way back"}} {
		if side.set != nil {
			p.ask(ctx, "own log of "+side.name, func(ctx context.Context) (string, error) { return ownLog(ctx, side.set) })
		}
		p.ask(ctx, "captured log of "+side.name, func(ctx context.Context) (string, error) {
			kept, err := p.a.Log.Kept(ctx, side.name)
			if err != nil {
				return "", err
			}
			if kept.Partitions != int(p.a.Settings.Partitions) {
				return "", failure.New(failure.Invalid, "log.partitions_differ", "its topic has %d partitions, not %d", kept.Partitions, p.a.Settings.Partitions).
					WithHint("the number of partitions of a captured log never changes; set --kafka-partitions back")
			}
			return outlasts("Kafka keeps it", kept.For, p.a.Settings.ArchiveRetention, side.needs, side.why)
		})
	}
}

// ownLog says how far a shard's own log goes back. Capture reads it all the time, so
// it need not hold a move, only outlast an outage of capture.
func ownLog(ctx context.Context, set *shard.Set) (string, error) {
	c, err := set.Client(chunk.CaptureUser)
	if err != nil {
		return "", err
	}
	oldest, ok, err := cdc.OldestChange(ctx, c, set.Name())
	if err != nil || !ok {
		return "the server does not say; capture reads it all the time", err
	}
	return fmt.Sprintf("goes back %s; capture reads it all the time", time.Since(oldest).Round(time.Second)), nil
}

// outlasts compares a retention with what is needed. The archive takes over where
// Kafka ends.
func outlasts(what string, kafka, archive, needs time.Duration, why string) (string, error) {
	text := fmt.Sprintf("%s for %s, the archive for %s; needed for %s by %s", what, forEver(kafka), forEver(archive), needs.Round(time.Second), why)
	if kafka != 0 && kafka < needs && archive != 0 && archive < needs {
		return "", failure.New(failure.Invalid, "log.short_retention", "%s", text).
			WithHint("raise --archive-retention of the workers, or the topic's retention.ms")
	}
	return text, nil
}

// forEver names a retention.
func forEver(d time.Duration) string {
	if d == 0 {
		return "ever"
	}
	return d.String()
}
