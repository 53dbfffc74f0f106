package cli

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"drover/remediation"
	"drover/remediation/fleet"
)

// newSimCommand is what is tried out on fleets that do not exist.
func newSimCommand(a *app) *cobra.Command {
	return group("sim", "Try policies on a simulated fleet", newSimRemediate(a), newSimBalance(a))
}

func newSimRemediate(a *app) *cobra.Command {
	cfg := fleet.Defaults()
	faults, out := cfg.Faults.String(), ""
	c := &cobra.Command{
		Use: "remediate", Short: "Let faults happen to a fleet, with and without remediation", Args: cobra.NoArgs,
		Long: "Let faults happen to a fleet in virtual time: the same faults with remediation and without it, and once more without leases.\n" +
			"Faults are numbers per 2,000 shards and half a year; zones are lost in the fleet as a whole.",
		Example: "  drover sim remediate --shards 2000 --days 182 --faults misconfigured=124,node-down=32,stalled=16,zone-loss=1",
		RunE: func(*cobra.Command, []string) error {
			mix, err := fleet.ParseMix(faults)
			if err != nil {
				return &usageError{err}
			}
			cfg.Faults = mix
			if err := cfg.Validate(); err != nil {
				return &usageError{err}
			}
			r, err := simulate(cfg)
			if err != nil {
				return err
			}
			if out != "" {
				if err := writeReport(out, r); err != nil {
					return err
				}
			}
			return a.print(r, []string{"", "WITH", "WITHOUT"}, r.rows)
		},
	}
	f := c.Flags()
	f.IntVar(&cfg.Shards, "shards", cfg.Shards, "shards, of 46 layouts")
	f.IntVar(&cfg.Days, "days", cfg.Days, "days that pass")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "the same seed gives the same run")
	f.StringVar(&faults, "faults", faults, "KIND=NUMBER, ...")
	f.IntVar(&cfg.Moves, "moves", cfg.Moves, "moves begun in a day")
	f.IntVar(&cfg.Spares, "spares", cfg.Spares, "machines in reserve, of each kind in each zone")
	f.IntVar(&cfg.Rates.AtOnce, "at-once", cfg.Rates.AtOnce, "shards under remediation at the same time")
	f.IntVar(&cfg.Rates.PerHour, "per-hour", cfg.Rates.PerHour, "weight of the plans that are started within an hour")
	f.DurationVar(&cfg.Person, "person", cfg.Person, "mean time until a person who is called begins")
	f.StringVar(&out, "out", "", "file for the figures as JSON")
	return c
}

// simReport is one flat line of figures; names of fields do not change.
type simReport struct {
	Shards          int     `json:"shards"`
	Days            int     `json:"days"`
	Seed            uint64  `json:"seed"`
	Layouts         int     `json:"layouts"`
	PlanSeconds     float64 `json:"plan_seconds"`      // of one core, for a plan of each shard, every one damaged
	PlanWallSeconds float64 `json:"plan_wall_seconds"` // the same by the wall clock
	SimWallSeconds  float64 `json:"sim_wall_seconds"`

	Misconfigured int `json:"faults_misconfigured"`
	NodeDown      int `json:"faults_node_down"`
	Stalled       int `json:"faults_stalled"`
	ZoneLoss      int `json:"faults_zone_loss"`

	LostMajorities         int `json:"lost_majorities"`
	LostPrimaries          int `json:"lost_primaries"`
	MajoritiesLostToFaults int `json:"majorities_lost_to_faults"`
	Races                  int `json:"races"`
	RacesWithoutLease      int `json:"races_without_lease"`

	Cases        int `json:"cases"`
	Remediations int `json:"remediations"`
	Operations   int `json:"operations"`
	Rebuilds     int `json:"rebuilds"`
	Plans        int `json:"plans"`
	Replans      int `json:"replans"`
	PlansGrew    int `json:"plans_grew"`
	Crashes      int `json:"crashes"`

	HealthP50             float64 `json:"time_to_health_p50_seconds"` // of all faults but lost zones
	HealthP90             float64 `json:"time_to_health_p90_seconds"`
	HealthMax             float64 `json:"time_to_health_max_seconds"`
	HealthP50Without      float64 `json:"time_to_health_p50_seconds_without"`
	HealthP90Without      float64 `json:"time_to_health_p90_seconds_without"`
	UnhealthyHours        float64 `json:"shard_hours_unhealthy"` // of all faults but lost zones
	UnhealthyHoursWithout float64 `json:"shard_hours_unhealthy_without"`
	ZoneHours             float64 `json:"shard_hours_unhealthy_zone_loss"`
	ZoneHoursWithout      float64 `json:"shard_hours_unhealthy_zone_loss_without"`
	UnwritableHours       float64 `json:"shard_hours_unwritable"`
	UnwritableWithout     float64 `json:"shard_hours_unwritable_without"`
	PersonCases           int     `json:"person_cases"`
	PersonCasesWithout    int     `json:"person_cases_without"`

	Moves            int     `json:"moves"`
	Switches         int     `json:"switches"`
	SwitchesDelayed  int     `json:"switches_delayed"`
	SwitchDelayMax   float64 `json:"switch_delay_max_seconds"`
	MovesTold        int     `json:"moves_told"`
	MovesGivenUp     int     `json:"moves_given_up"`
	RebuiltInImport  int     `json:"targets_rebuilt_during_import"`
	AttemptsWentBack int     `json:"attempts_went_back"`
	LeaseWaitMax     float64 `json:"lease_wait_max_seconds"`
}

// simulate runs the fleet three times, and takes the time of planning.
func simulate(cfg fleet.Config) (*simReport, error) {
	began := time.Now()
	with, err := fleet.Run(cfg)
	if err != nil {
		return nil, err
	}
	unaided := cfg
	unaided.Unaided = true
	without, err := fleet.Run(unaided)
	if err != nil {
		return nil, err
	}
	leaseless := cfg
	leaseless.Leaseless = true
	raced, err := fleet.Run(leaseless)
	if err != nil {
		return nil, err
	}
	simulated := time.Since(began)
	single := []fleet.Kind{fleet.Misconfigured, fleet.NodeDown, fleet.Stalled}
	r := &simReport{
		Shards: cfg.Shards, Days: cfg.Days, Seed: cfg.Seed, Layouts: len(remediation.Catalogue()), SimWallSeconds: simulated.Seconds(),
		Misconfigured: with.Faults[fleet.Misconfigured], NodeDown: with.Faults[fleet.NodeDown],
		Stalled: with.Faults[fleet.Stalled], ZoneLoss: with.Faults[fleet.ZoneLoss],
		LostMajorities: with.LostMajorities, LostPrimaries: with.LostPrimaries, MajoritiesLostToFaults: with.MajoritiesLostToFaults,
		Races: with.Races, RacesWithoutLease: raced.Races,
		Cases: with.Cases, Remediations: with.Remediations, Operations: with.Total(), Rebuilds: with.Rebuilds,
		Plans: with.Plans, Replans: with.Replans, PlansGrew: with.Grown, Crashes: with.Crashes,
		HealthP50: with.Quantile(0.5, single...).Seconds(), HealthP90: with.Quantile(0.9, single...).Seconds(), HealthMax: with.Quantile(1, single...).Seconds(),
		HealthP50Without: without.Quantile(0.5, single...).Seconds(), HealthP90Without: without.Quantile(0.9, single...).Seconds(),
		UnhealthyHours: with.Hours(single...), UnhealthyHoursWithout: without.Hours(single...),
		ZoneHours: with.Hours(fleet.ZoneLoss), ZoneHoursWithout: without.Hours(fleet.ZoneLoss),
		UnwritableHours: with.UnwritableHours, UnwritableWithout: without.UnwritableHours,
		PersonCases: with.PersonCases, PersonCasesWithout: without.PersonCases,
		Moves: with.Moves, Switches: with.Switches, SwitchesDelayed: with.SwitchesDelayed, SwitchDelayMax: with.SwitchDelayMax.Seconds(),
		MovesTold: with.MovesTold, MovesGivenUp: with.MovesGivenUp, RebuiltInImport: with.TargetsRebuiltDuringImport,
		AttemptsWentBack: with.AttemptsWentBack, LeaseWaitMax: with.LeaseWaitMax.Seconds(),
	}
	return r, r.timePlans(cfg)
}

// timePlans makes a plan for each shard of a fleet that is damaged everywhere,
// with one to three faults each.
func (s *simReport) timePlans(cfg fleet.Config) error {
	all := remediation.Catalogue()
	planners := make([]*remediation.Planner, len(all))
	for i, l := range all {
		p, err := remediation.NewPlanner(l, remediation.DefaultCosts, 0)
		if err != nil {
			return err
		}
		planners[i] = p
	}
	r := rand.New(rand.NewPCG(cfg.Seed, 9)) //nolint:gosec // a simulation
	damaged := make([]remediation.Vertex, cfg.Shards)
	for i := range damaged {
		damaged[i] = remediation.Damage(r, all[i%len(all)], 1+r.IntN(3), r.IntN(3))
	}
	before, began := processTime(), time.Now()
	for i, v := range damaged {
		if _, err := planners[i%len(all)].Plan(v); err != nil {
			return fmt.Errorf("plan for shard %d: %w", i, err)
		}
	}
	s.PlanSeconds, s.PlanWallSeconds = (processTime() - before).Seconds(), time.Since(began).Seconds()
	return nil
}

// processTime is what the process has used of all cores, 0 where it cannot be told.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// writeReport writes the figures to a file, and makes its folder.
func writeReport(path string, r any) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

// rows is the report for people.
func (s *simReport) rows() [][]string {
	seconds := func(x float64) string { return time.Duration(x * float64(time.Second)).Round(time.Second).String() }
	return [][]string{
		{"faults", fmt.Sprintf("%d misconfigured, %d node-down, %d stalled, %d zone-loss", s.Misconfigured, s.NodeDown, s.Stalled, s.ZoneLoss), "the same"},
		{"time to health p50", seconds(s.HealthP50), seconds(s.HealthP50Without)},
		{"time to health p90", seconds(s.HealthP90), seconds(s.HealthP90Without)},
		{"shard-hours unhealthy", fmt.Sprintf("%.0f", s.UnhealthyHours), fmt.Sprintf("%.0f", s.UnhealthyHoursWithout)},
		{"  by lost zones", fmt.Sprintf("%.0f", s.ZoneHours), fmt.Sprintf("%.0f", s.ZoneHoursWithout)},
		{"shard-hours without writes", fmt.Sprintf("%.0f", s.UnwritableHours), fmt.Sprintf("%.0f", s.UnwritableWithout)},
		{"cases for a person", fmt.Sprint(s.PersonCases), fmt.Sprint(s.PersonCasesWithout)},
		{"remediations", fmt.Sprintf("%d, %d operations, %d rebuilds, %d replans, %d crashes", s.Remediations, s.Operations, s.Rebuilds, s.Replans, s.Crashes), ""},
		{"majorities lost by an operation", fmt.Sprint(s.LostMajorities), ""},
		{"races with switches", fmt.Sprint(s.Races), fmt.Sprintf("%d without leases", s.RacesWithoutLease)},
		{"switches", fmt.Sprintf("%d of %d moves, %d had to wait, at most %s", s.Switches, s.Moves, s.SwitchesDelayed, seconds(s.SwitchDelayMax)), ""},
		{"plans for all shards, all damaged", fmt.Sprintf("%.2f s of one core", s.PlanSeconds), ""},
	}
}
