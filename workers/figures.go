package workers

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
	"drover/replication"
)

// figuresTimeout bounds the reading of the metadata while somebody waits for the metrics.
const figuresTimeout = 3 * time.Second

// fleetCollector shows the fleet as the metadata knows it. Each worker shows the
// same: whoever dies, the others still do, and silence of a part is seen by
// those that are not part of it.
type fleetCollector struct {
	read      func(context.Context) (metadata.Figures, error)
	objective time.Duration // of what switches may keep writes of a database waiting in a month
}

// figure describes one metric of the fleet.
func figure(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("drover_"+name, help, labels, nil)
}

// What the fleet shows.
var (
	ofLeg = []string{"chunk_id", "migration"}

	fleetUp         = figure("fleet_metadata_up", "1 when this worker could read the metadata just now; without it nothing else of the fleet is shown.")
	fleetProxies    = figure("fleet_live_proxies", "Proxies that are alive.")
	fleetStragglers = figure("fleet_open_stragglers", "Stragglers that nobody has dealt with.", "shard")
	fleetSilence    = figure("fleet_capture_silence_seconds", "Time since a shard's capture saved its position, or since the shard was added where none ever did; grows while no capture runs.", "shard")
	fleetOverdue    = figure("fleet_attempt_overdue_seconds", "How long the most overdue attempt that holds traffic is past its deadline; 0: none is.")
	fleetWaited     = figure("fleet_switch_waited_seconds", "How long switches have kept writes of a logical database waiting in this calendar month (UTC).", "database")
	fleetObjective  = figure("fleet_switch_objective_seconds", "How long they may in a month, by this worker's settings.")
	shardCPU        = figure("fleet_shard_cpu_share", "Share of its cores that a shard's primary keeps busy, with decay, as the balancer read it within half an hour.", "shard")
	shardWrite      = figure("fleet_shard_write_seconds", "Mean of a write on a shard's primary, with decay, as the balancer read it within half an hour.", "shard")
	leaseHeld       = figure("lease_held_seconds", "For how long a shard is leased, or waited for.", "shard", "holder", "mode", "state")
	leaseLeft       = figure("lease_remaining_seconds", "Time until a lease ends; negative: it has, and nobody has cleared it away.", "shard", "holder", "mode", "state")
	overrideLeft    = figure("override_remaining_seconds", "Time until an override by a person ends; negative: it has, and nobody has taken it away.", "kind", "subject", "owner")

	movePhase       = figure("move_phase", "1 for the phase that an unfinished move is in.", "chunk_id", "migration", "phase")
	movePaused      = figure("move_paused", "1 while a move is paused.", ofLeg...)
	moveAttention   = figure("move_needs_person", "1 while a move waits for a person.", ofLeg...)
	moveSilence     = figure("move_lanes_silence_seconds", "Time since the lanes of a move gave word, while they should run.", ofLeg...)
	moveLag         = figure("move_lag_seconds", "How far the lanes of a move are behind, by their last word.", ofLeg...)
	moveConverges   = figure("move_not_converging", "1 while more is written than the lanes apply.", ofLeg...)
	moveBacklog     = figure("move_backlog_events", "Changes that the lanes have not applied yet.", ofLeg...)
	moveApply       = figure("move_apply_events_per_second", "Changes that the lanes apply.", ofLeg...)
	moveWrite       = figure("move_write_events_per_second", "Changes that are made on the source.", ofLeg...)
	moveChanges     = figure("move_changes_per_second", "Changes of the chunk itself that its lanes apply.", ofLeg...)
	moveMismatches  = figure("move_open_mismatches", "Differences between both sides that are not resolved.", ofLeg...)
	moveQuarantined = figure("move_quarantined_events", "Events that no lane could decide how to apply.", ofLeg...)
	moveVerified    = figure("move_verified_documents_total", "Documents that changed after the validation and were compared; begins anew with each direction.", ofLeg...)
	moveVerifiedAge = figure("move_verification_age_seconds", "Time since the newest round of the verification.", ofLeg...)
	moveStep        = figure("move_step_seconds", "For how long a move has been in its phase, where that does not end by itself.", ofLeg...)
	moveExpected    = figure("move_step_expected_seconds", "How long that phase takes when nothing holds it up.", ofLeg...)
	moveBurnIn      = figure("move_burn_in_seconds", "For how long a move in burn-in has been served where it is now.", ofLeg...)

	moveBurnInOver = figure("move_burn_in_over_seconds", "For how long the burn-in of a move is over that nobody has completed; negative: so long is left of it.", ofLeg...)

	fleetDescs = []*prometheus.Desc{
		fleetUp, fleetProxies, fleetStragglers, fleetSilence, fleetOverdue, fleetWaited, fleetObjective, shardCPU, shardWrite, leaseHeld, leaseLeft, overrideLeft,
		movePhase, movePaused, moveAttention,
		moveSilence, moveLag, moveConverges, moveBacklog, moveApply, moveWrite, moveChanges, moveMismatches, moveQuarantined, moveVerified,
		moveVerifiedAge, moveStep, moveExpected, moveBurnIn, moveBurnInOver,
	}
)

// Describe implements [prometheus.Collector].
func (fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range fleetDescs {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c fleetCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), figuresTimeout)
	defer cancel()
	f, err := c.read(ctx)
	show := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	show(fleetUp, truth(err == nil))
	if err != nil {
		return
	}
	show(fleetProxies, float64(f.Proxies))
	show(fleetOverdue, f.Overdue.Seconds())
	show(fleetObjective, c.objective.Seconds())
	for _, x := range f.Waited {
		show(fleetWaited, x.Seconds, x.Database)
	}
	for shard, k := range f.Pressures {
		if k.Age > chunk.PressureMost {
			continue
		}
		if k.Pressure.CPU != nil {
			show(shardCPU, *k.Pressure.CPU, shard)
		}
		if k.Pressure.Write != nil {
			show(shardWrite, k.Pressure.Write.Seconds(), shard)
		}
	}
	for shard, n := range f.Stragglers {
		show(fleetStragglers, float64(n), shard)
	}
	for _, s := range f.Captures {
		show(fleetSilence, s.Silence, s.Shard)
	}
	for _, l := range f.Leases {
		state := map[bool]string{true: "waiting", false: "granted"}[l.Waiting]
		show(leaseHeld, l.Held, l.Shard, l.Holder, l.Mode, state)
		show(leaseLeft, l.Left, l.Shard, l.Holder, l.Mode, state)
	}
	for _, o := range f.Overrides {
		show(overrideLeft, o.Left.Seconds(), string(o.Kind), o.Of(), o.Owner)
	}
	for _, m := range f.Moves {
		c.move(ch, m)
	}
}

// move shows one leg of a move.
func (fleetCollector) move(ch chan<- prometheus.Metric, m metadata.MoveFigures) {
	id, migration := string(m.Chunk), strconv.FormatInt(int64(m.Migration), 10)
	show := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, id, migration)
	}
	ch <- prometheus.MustNewConstMetric(movePhase, prometheus.GaugeValue, 1, id, migration, string(m.Phase))
	show(movePaused, truth(m.Paused))
	show(moveAttention, truth(m.Attention != ""))
	show(moveMismatches, float64(m.Mismatches))
	show(moveQuarantined, float64(m.Quarantined))
	if m.Expected > 0 && m.Phase != chunk.BurnIn && !m.Paused {
		show(moveStep, m.PhaseFor)
		show(moveExpected, m.Expected)
	}
	if m.Phase == chunk.BurnIn {
		show(moveBurnIn, m.ServedFor)
		var step contract.BurnInStep
		if json.Unmarshal(m.Step, &step) == nil && step.BurnIn > 0 {
			show(moveBurnInOver, m.ServedFor-time.Duration(step.BurnIn).Seconds())
		}
	}
	if lanesRun(m) {
		show(moveSilence, *m.LanesAge)
		var word contract.LanesWord
		if json.Unmarshal(m.Lanes, &word) == nil {
			show(moveLag, word.LagMS/1000)
		}
		var p contract.Progress
		if json.Unmarshal(m.Progress, &p) == nil && p.Pace != "" {
			show(moveConverges, truth(p.Pace == string(replication.NotConverging)))
			show(moveBacklog, float64(p.Backlog))
			show(moveApply, p.ApplyPerSecond)
			show(moveWrite, p.WritePerSecond)
			show(moveChanges, p.PerSecond)
		}
	}
	if m.ReportAge != nil {
		show(moveVerifiedAge, *m.ReportAge)
		var r contract.Verification
		if json.Unmarshal(m.Report, &r) == nil {
			ch <- prometheus.MustNewConstMetric(moveVerified, prometheus.CounterValue, float64(r.Verified), id, migration)
		}
	}
}

// lanesRun says whether the lanes of a leg should give word: they have begun to, no
// person has paused the move or is waited for, and it is in a phase that has lanes.
func lanesRun(m metadata.MoveFigures) bool {
	if m.LanesAge == nil || m.Paused || m.Attention != "" {
		return false
	}
	switch m.Phase { //nolint:exhaustive // the others have no lanes
	case chunk.Replicating, chunk.Validating, chunk.Switching, chunk.BurnIn:
		return true
	default:
		return false
	}
}

// truth is 1 for true.
func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
