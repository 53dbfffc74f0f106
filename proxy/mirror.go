package proxy

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

// Behaviour of mirrored reads: of a share of the reads of a chunk that is being moved,
// the metadata's to say, a copy is kept in a bounded queue once the client's answer is
// there, and handed on within a second to who lets both placements answer it. No client
// waits for that, and what does not fit into the queue is dropped.
//
// Not supported: aggregations of other stages than those of [mirroredStages], getMores,
// and statements of transactions.

// Mirrors knows what is mirrored, and takes it.
type Mirrors interface {
	// Mirrored gives the share of reads, in percent, by placement.
	Mirrored(ctx context.Context) (map[chunk.PlacementID]float64, error)
	// AddMirrored takes reads of a placement, as they name its collections.
	AddMirrored(ctx context.Context, p chunk.PlacementID, commands [][]byte) error
}

// Bounds of mirroring.
const (
	mirrorQueue = 512
	mirrorBytes = 64 << 10 // of one read
	mirrorPause = time.Second
)

// mirroredRead is one read to be handed on.
type mirroredRead struct {
	placement chunk.PlacementID
	command   []byte
}

// mirror keeps a copy of a read that was answered, if its share says so.
func (p *Proxy) mirror(q *request, l *leg, a *answer) {
	share := a.route.gate.mirror.Load()
	if share == 0 || l.access != reads || q.txn != nil || !a.ok || len(q.cmd.Body) > mirrorBytes || rand.Uint32N(10_000) >= share {
		return
	}
	switch string(q.cmd.Name) {
	case "find", "count", "distinct":
	case "aggregate":
		if !plainPipeline(q.cmd.Body) {
			return
		}
	default:
		return
	}
	select {
	case p.mirrored <- mirroredRead{a.route.Placement.ID, bareCommand(q.cmd.Body)}:
	default: // nothing rests on any of them
	}
}

// mirroredStages are the stages of aggregations whose answers may be compared.
var mirroredStages = []string{
	"$match", "$group", "$sort", "$limit", "$skip", "$count", "$project", "$addFields", "$set", "$unset", "$unwind", "$replaceRoot", "$replaceWith",
}

// plainPipeline reports whether an aggregation has stages only whose answers may be
// compared; who compares looks closer.
func plainPipeline(body bson.Raw) bool {
	for w := wire.Walk(body); w.Next(); {
		if !w.Is("pipeline") {
			continue
		}
		for stages := wire.Walk(w.Document()); stages.Next(); {
			stage := wire.Walk(stages.Document())
			if !stage.Next() || !slices.Contains(mirroredStages, string(stage.Key)) {
				return false
			}
		}
		return true
	}
	return false
}

// followMirrors keeps the shares as the metadata has them, and hands reads on.
func (p *Proxy) followMirrors(ctx context.Context) {
	if p.ports.Mirrors == nil {
		return
	}
	ticker := time.NewTicker(mirrorPause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.handMirrored(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// handMirrored reads the shares and hands on what waits.
func (p *Proxy) handMirrored(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.MetadataTimeout, errMetadataTimeout)
	defer cancel()
	shares, err := p.ports.Mirrors.Mirrored(ctx)
	if err != nil {
		if ctx.Err() == nil {
			p.log.WarnContext(ctx, "mirrors were not read", "error", err)
		}
		shares = nil // who can't be asked takes none
	}
	for _, g := range p.gates.list() {
		g.mirror.Store(uint32(shares[g.placement] * 100))
	}
	waiting := map[chunk.PlacementID][][]byte{}
	for range len(p.mirrored) {
		r := <-p.mirrored
		waiting[r.placement] = append(waiting[r.placement], r.command)
	}
	for id, commands := range waiting {
		if err := p.ports.Mirrors.AddMirrored(ctx, id, commands); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "mirrored reads were dropped", "error", err)
		}
	}
}
