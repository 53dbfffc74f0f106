package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/fleet"
	"drover/metadata"
)

// BalanceLedger is what intents and rounds need of the metadata.
type BalanceLedger interface {
	fleet.Metadata
	OpenIntent(ctx context.Context, i metadata.Intent) (time.Time, error)
	CloseIntent(ctx context.Context, run string, outcome json.RawMessage) error
	MovesSince(ctx context.Context, chunks []string, since time.Time) ([]metadata.ChunkMove, error)
	KeepRound(ctx context.Context, result json.RawMessage, notes []metadata.Note) ([]string, error)
	DesiredStates(ctx context.Context, limit int) ([]metadata.DesiredState, error)
}

// Balancer serves the activities of intents and of the balancer.
type Balancer struct {
	Ledger   BalanceLedger
	Sizes    fleet.Sizes
	Counting fleet.Counting
	HotKey   func(ctx context.Context, db chunk.Database, r chunk.Route) (share float64, err error) // nil: nobody looks
}

// Register serves the activities that the queues name.
func (b *Balancer) Register(r contract.Registry, queue string) {
	switch queue {
	case contract.ControlQueue:
		contract.OpenIntent.Register(r, b.OpenIntent)
		contract.CloseIntent.Register(r, b.CloseIntent)
		contract.LookAtMoves.Register(r, b.LookAtMoves)
		contract.RecordRound.Register(r, b.RecordRound)
	case contract.BulkQueue:
		contract.PlanRound.Register(r, b.PlanRound)
		contract.PlanSeason.Register(r, b.PlanSeason)
	}
}

// OpenIntent admits an intent, or refuses one that fights an open one or whose
// figures are old.
func (b *Balancer) OpenIntent(ctx context.Context, in contract.IntentInput) (contract.IntentOpened, error) {
	plan, err := json.Marshal(in.Moves)
	if err != nil {
		return contract.IntentOpened{}, err
	}
	i := metadata.Intent{
		Run: in.Run, WorkflowID: in.ID, Kind: in.Kind, Subject: in.Subject, Emptied: in.Emptied, Plan: plan,
		RequestedBy: in.RequestedBy, Reason: in.Reason, FiguresAt: in.FiguresAt,
	}
	targets := slices.Clone(in.Held)
	for _, m := range in.Moves {
		i.Chunks = append(i.Chunks, string(m.Chunk))
		targets = append(targets, m.To)
		if m.Reshape != nil {
			for _, c := range m.Reshape.With {
				i.Chunks = append(i.Chunks, string(c))
			}
			targets = append(targets, m.Reshape.Shards...)
		}
	}
	for _, t := range targets {
		if t != "" && !slices.Contains(i.Filled, t) {
			i.Filled = append(i.Filled, t)
		}
	}
	at, err := b.Ledger.OpenIntent(ctx, i)
	return contract.IntentOpened{At: at}, err
}

// CloseIntent keeps what became of an intent.
func (b *Balancer) CloseIntent(ctx context.Context, in contract.IntentClosed) (contract.None, error) {
	outcome, err := json.Marshal(in.Result)
	if err != nil {
		return contract.None{}, err
	}
	return contract.None{}, b.Ledger.CloseIntent(ctx, in.Run, outcome)
}

// LookAtMoves tells how far moves have come.
func (b *Balancer) LookAtMoves(ctx context.Context, in contract.LookInput) ([]contract.SeenMove, error) {
	chunks := make([]string, 0, len(in.Chunks))
	for _, c := range in.Chunks {
		chunks = append(chunks, string(c))
	}
	all, err := b.Ledger.MovesSince(ctx, chunks, in.Since)
	out := make([]contract.SeenMove, 0, len(all))
	for _, m := range all {
		out = append(out, contract.SeenMove{Chunk: m.Chunk, Phase: m.Phase, Attention: m.Attention})
	}
	return out, err
}

// PlanRound reads the fleet and plans one round over the desired state that was
// applied last.
func (b *Balancer) PlanRound(ctx context.Context, in contract.RoundInput) (plan contract.FleetPlan, err error) {
	err = b.view(ctx, in.Settings, func(ctx context.Context, v fleet.View) error {
		if plan, err = v.Balance(in.Settings, v.Fleet.At); err != nil || !b.hotKeys(ctx, &v, plan.Splits) {
			return err
		}
		plan, err = v.Balance(in.Settings, v.Fleet.At)
		return err
	})
	return plan, err
}

// hotKeys looks how much of each chunk that is to be split one key takes, and tells whether
// that changes the plan. A share that cannot be read is named and stays unknown.
func (b *Balancer) hotKeys(ctx context.Context, v *fleet.View, splits []contract.PlannedSplit) (known bool) {
	if b.HotKey == nil {
		return false
	}
	for _, s := range splits {
		at := slices.IndexFunc(v.Routes, func(r chunk.Route) bool { return r.Chunk.ID == s.Chunk })
		share, err := b.HotKey(ctx, v.Databases[v.Routes[at].Chunk.Database], v.Routes[at])
		if err != nil {
			v.Figures = append(v.Figures, contract.Figure{Name: "hot key of " + string(s.Chunk), Value: "unknown", Source: err.Error()})
		}
		if share > 0 || err != nil {
			v.Fleet.Chunks[at].HotKey, known = math.Round(share*hotSteps)/hotSteps, true
		}
	}
	return known
}

// hotSteps is how finely the share of a key is told: a refusal is new when it changes.
const hotSteps = 20

// Desired gives the fleet file that was applied last with its version, nil when there
// is none.
func Desired(ctx context.Context, kept interface {
	DesiredStates(ctx context.Context, limit int) ([]metadata.DesiredState, error)
}) (*fleet.File, int64, error) {
	states, err := kept.DesiredStates(ctx, 1)
	if err != nil || len(states) == 0 {
		return nil, 0, err
	}
	f, err := fleet.Parse([]byte(states[0].Content))
	if err != nil {
		return nil, 0, fmt.Errorf("read desired state %d: %w", states[0].Version, err)
	}
	return f, states[0].Version, nil
}

// view reads the fleet over the desired state that was applied last.
func (b *Balancer) view(ctx context.Context, s contract.BalanceSettings, then func(context.Context, fleet.View) error) error {
	r := fleet.Reader{Metadata: b.Ledger, Sizes: b.Sizes, Counting: b.Counting, Settings: s}
	var err error
	if r.File, _, err = Desired(ctx, b.Ledger); err != nil {
		return err
	}
	return beating(ctx, func() any { return "reading the fleet" }, func(ctx context.Context) error {
		v, err := r.Read(ctx)
		if err != nil {
			return err
		}
		return then(ctx, v)
	})
}

// RecordRound keeps a round, and tells which of its refusals were not said before.
func (b *Balancer) RecordRound(ctx context.Context, in contract.RoundResult) (contract.RoundResult, error) {
	result, err := json.Marshal(in)
	if err != nil {
		return in, err
	}
	var notes []metadata.Note
	said := map[string]bool{}
	for _, x := range in.Plan.Refusals {
		if !said[x.Subject] {
			said[x.Subject] = true
			notes = append(notes, metadata.Note{Subject: x.Subject, Reason: x.Reason})
		}
	}
	in.Said, err = b.Ledger.KeepRound(ctx, result, notes)
	return in, err
}
