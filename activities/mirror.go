package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"drover/chunk"
	"drover/contract"
	"drover/internal/pause"
	"drover/metadata"
	"drover/validation"
)

// How mirrored reads are compared.
const (
	mirrorEvery    = time.Second
	mirrorRound    = 200 // reads between two marks
	mirrorTries    = 5   // of a read whose collection changes
	mirrorExamples = 10
)

// mirrorReads lets both placements answer the reads that proxies have kept, while an
// operator asks for it and until ctx ends. What cannot be compared is not counted.
func (a *Activities) mirrorReads(ctx context.Context, l leg) error {
	var again []triedRead
	for pause.For(ctx, a.crowd.every(mirrorEvery, longestSilence)) == nil {
		kept, err := a.Store.Mirror(ctx, l.Migration)
		if err == nil && kept.Percent > 0 {
			again, err = a.mirrorOnce(ctx, l, kept, again)
		}
		if err != nil && ctx.Err() == nil {
			a.Logger.WarnContext(ctx, "Mirrored reads are not compared", slog.Any("error", err))
		}
	}
	return context.Cause(ctx)
}

// triedRead is a read that could not be decided.
type triedRead struct {
	command bson.Raw
	tries   int
}

// mirrorOnce compares one round and keeps what came of it.
func (a *Activities) mirrorOnce(ctx context.Context, l leg, kept metadata.Mirror, again []triedRead) ([]triedRead, error) {
	fresh, err := a.Store.TakeMirrored(ctx, l.From.ID, mirrorRound-len(again))
	if err != nil || len(fresh)+len(again) == 0 {
		return again, err
	}
	tries := map[string]int{}
	var commands []bson.Raw
	for _, r := range again {
		commands, tries[string(r.command)] = append(commands, r.command), r.tries
	}
	for _, c := range fresh {
		commands = append(commands, bson.Raw(c))
	}
	m, err := a.mirrorOf(ctx, l)
	if err != nil {
		return again, err
	}
	round, err := m.Round(ctx, commands)
	if err != nil {
		return nil, err // one that a side never answers in time would keep all others from being compared
	}
	var report contract.MirrorReport
	_ = json.Unmarshal(kept.Report, &report) // figures for people; what cannot be read begins anew
	again = again[:0]
	for _, c := range round.Changing {
		if n := tries[string(c)] + 1; n < mirrorTries {
			again = append(again, triedRead{c, n})
		} else {
			report.Undecided++
		}
	}
	addMirrored(&report, round)
	text, err := json.Marshal(report)
	if err != nil {
		return again, err
	}
	return again, a.Store.SaveMirror(ctx, l.Migration, kept.Report, text)
}

// addMirrored takes a round into the report.
func addMirrored(report *contract.MirrorReport, round validation.Mirrored) {
	report.Compared += int64(round.Compared)
	report.Undecided += int64(round.Unanswered)
	report.Different += int64(len(round.Different))
	report.Examples = append(report.Examples, round.Different...)
	report.Examples = report.Examples[:min(len(report.Examples), mirrorExamples)]
	if len(round.SourceTook) > 0 {
		report.SourceP50, report.SourceP99 = percentiles(round.SourceTook)
		report.TargetP50, report.TargetP99 = percentiles(round.TargetTook)
	}
	report.At = time.Now()
}

// percentiles gives the 50th and 99th, in milliseconds.
func percentiles(took []time.Duration) (p50, p99 float64) {
	if len(took) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(took))
	at := func(share float64) float64 {
		return float64(sorted[int(share*float64(len(sorted)-1))].Microseconds()) / 1000
	}
	return at(0.5), at(0.99)
}

// mirrorOf is wired to both sides of a leg.
func (a *Activities) mirrorOf(ctx context.Context, l leg) (*validation.Mirror, error) {
	e, err := a.ends(ctx, l.DirectionInput)
	if err != nil {
		return nil, err
	}
	source, _, err := e.from.Reader(ctx, l.PrimaryReads)
	if err != nil {
		return nil, err
	}
	target, err := e.to.Client(chunk.ReaderUser)
	if err != nil {
		return nil, err
	}
	return &validation.Mirror{
		Source:  &validation.MongoAnswers{Database: source.Database(l.From.Database), Preference: readpref.SecondaryPreferred()},
		Target:  &validation.MongoAnswers{Database: target.Database(l.To.Database)},
		Markers: &heartbeatMarks{a: a, e: e, in: l.DirectionInput}, Log: logPort{a, l.DirectionInput}, Database: l.From.Database,
	}, nil
}

// unmirrored says what the gate misses of the mirrored reads that it was told to ask for.
func (a *Activities) unmirrored(ctx context.Context, id chunk.MigrationID) (string, error) {
	kept, err := a.Store.Mirror(ctx, id)
	if err != nil {
		return "", err
	}
	var report contract.MirrorReport
	if len(kept.Report) > 0 {
		if err := json.Unmarshal(kept.Report, &report); err != nil {
			return "", fmt.Errorf("read the mirror of migration %d: %w", id, err)
		}
	}
	return report.Missing(kept.Required), nil
}
