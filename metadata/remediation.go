package metadata

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/internal/failure"
)

// Declared is how a shard is wanted to be, and the machines that it may use. The
// shapes of Layout and Machines belong to package remediation.
type Declared struct {
	Shard    string          `json:"shard"`
	Domain   string          `json:"domain"` // failure domain; shards of one are not remediated at once
	Layout   json.RawMessage `json:"layout"`
	Machines json.RawMessage `json:"machines"`
	SetBy    string          `json:"setBy"`
	SetAt    time.Time       `json:"setAt"`
}

// DeclareLayout declares a shard's layout. One that the shard has already is
// "layout.exists", unless it is to be replaced.
func (s *Store) DeclareLayout(ctx context.Context, d Declared, replace bool) error {
	const q = `insert into shard_layouts as l (shard, domain, layout, machines, set_by) values ($1, $2, $3, $4, $5)
		on conflict (shard) do update set domain = excluded.domain, layout = excluded.layout, machines = excluded.machines,
			set_by = excluded.set_by, set_at = clock_timestamp() where $6`
	tag, err := s.pool.Exec(ctx, q, d.Shard, plainText(d.Domain), []byte(d.Layout), []byte(d.Machines), plainText(d.SetBy), replace)
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Invalid, "layout.exists", "shard %s has a layout already", d.Shard).
			WithHint("`drover shard layout show %s` shows it; --replace puts the new one in its place", d.Shard)
	}
	return decode(err, "declare the layout of shard %s", d.Shard)
}

// DeclaredLayout gives a shard's layout, or "layout.undeclared".
func (s *Store) DeclaredLayout(ctx context.Context, shard string) (Declared, error) {
	rows, err := s.pool.Query(ctx, `select shard, domain, layout, machines, set_by, set_at from shard_layouts where shard = $1`, shard)
	if err != nil {
		return Declared{}, decode(err, "read the layout of shard %s", shard)
	}
	d, err := pgx.CollectExactlyOneRow(rows, scanDeclared)
	if noRows(err) {
		return d, failure.New(failure.Invalid, "layout.undeclared", "shard %s has no layout", shard).
			WithHint("`drover shard layout set %s -f FILE` declares one", shard)
	}
	return d, decode(err, "read the layout of shard %s", shard)
}

// DeclaredLayouts gives every layout by shard.
func (s *Store) DeclaredLayouts(ctx context.Context) ([]Declared, error) {
	rows, err := s.pool.Query(ctx, `select shard, domain, layout, machines, set_by, set_at from shard_layouts order by shard`)
	if err != nil {
		return nil, decode(err, "list layouts")
	}
	all, err := pgx.CollectRows(rows, scanDeclared)
	return all, decode(err, "list layouts")
}

// scanDeclared reads a layout's row.
func scanDeclared(row pgx.CollectableRow) (d Declared, err error) {
	return d, row.Scan(&d.Shard, &d.Domain, &d.Layout, &d.Machines, &d.SetBy, &d.SetAt)
}

// Sighting is what a look at a shard found.
type Sighting struct {
	Shard     string
	Unhealthy bool
	Cost      int    // of the plan to full health
	Health    string // for people
	Why       string // why not more, for people
}

// ShardHealth is what the looks so far found.
type ShardHealth struct {
	Shard          string     `json:"shard"`
	SeenAt         *time.Time `json:"seenAt,omitempty"` // the last look that came to an end
	UnhealthySince *time.Time `json:"unhealthySince,omitempty"`
	Cost           int        `json:"cost"`
	Grown          int        `json:"grown"` // looks in a row that found a dearer plan than the look before
	Health         string     `json:"health"`
	Why            string     `json:"why"`
}

// SeeHealth keeps a sighting, and gives what is known of the shard with it.
func (s *Store) SeeHealth(ctx context.Context, x Sighting) (ShardHealth, error) {
	const q = `insert into shard_health as h (shard, seen_at, unhealthy_since, cost, health, why)
		values ($1, clock_timestamp(), case when $2 then clock_timestamp() end, $3, $4, $5)
		on conflict (shard) do update set seen_at = excluded.seen_at,
			unhealthy_since = case when $2 then coalesce(h.unhealthy_since, excluded.unhealthy_since) end,
			grown = case when not $2 or excluded.cost < h.cost then 0
				when h.unhealthy_since is not null and excluded.cost > h.cost then h.grown + 1 else h.grown end,
			cost = excluded.cost, health = excluded.health, why = excluded.why
		returning ` + healthColumns
	rows, err := s.pool.Query(ctx, q, x.Shard, x.Unhealthy, x.Cost, plainText(x.Health), plainText(x.Why))
	if err != nil {
		return ShardHealth{}, decode(err, "keep the health of shard %s", x.Shard)
	}
	h, err := pgx.CollectExactlyOneRow(rows, scanHealth)
	return h, decode(err, "keep the health of shard %s", x.Shard)
}

// healthColumns are what scanHealth reads.
const healthColumns = `shard, seen_at, unhealthy_since, cost, grown, health, why`

// scanHealth reads healthColumns.
func scanHealth(row pgx.CollectableRow) (h ShardHealth, err error) {
	return h, row.Scan(&h.Shard, &h.SeenAt, &h.UnhealthySince, &h.Cost, &h.Grown, &h.Health, &h.Why)
}

// Observation gives what the last look at a shard remembered of its members, nil
// when nobody has looked. Its shape belongs to package remediation.
func (s *Store) Observation(ctx context.Context, shard string) (json.RawMessage, error) {
	var moved []byte
	err := s.pool.QueryRow(ctx, `select moved from shard_observations where shard = $1`, shard).Scan(&moved)
	if noRows(err) {
		return nil, nil
	}
	return moved, decode(err, "read what was seen of shard %s", shard)
}

// KeepObservation keeps what a look at a shard remembers.
func (s *Store) KeepObservation(ctx context.Context, shard string, moved json.RawMessage) error {
	const q = `insert into shard_observations (shard, moved) values ($1, $2)
		on conflict (shard) do update set moved = excluded.moved, at = clock_timestamp()`
	_, err := s.pool.Exec(ctx, q, shard, []byte(moved))
	return decode(err, "keep what was seen of shard %s", shard)
}

// Silent lists the shards with a layout that no look has read for the given time.
func (s *Store) Silent(ctx context.Context, longer time.Duration) ([]string, error) {
	const q = `select l.shard from shard_layouts l left join shard_health h using (shard)
		where coalesce(h.seen_at, l.set_at) < clock_timestamp() - $1::interval order by l.shard`
	rows, err := s.pool.Query(ctx, q, longer)
	if err != nil {
		return nil, decode(err, "list silent shards")
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return all, decode(err, "list silent shards")
}

// Remediation is one run.
type Remediation struct {
	WorkflowID  string     `json:"workflowID"`
	Shard       string     `json:"shard"`
	Domain      string     `json:"domain"`
	RequestedBy string     `json:"requestedBy"`
	Cost        int        `json:"cost"` // of its first plan
	Steps       int        `json:"steps"`
	Waiting     bool       `json:"waiting"` // for the lease
	Verdict     string     `json:"verdict"` // empty while it runs
	Attention   string     `json:"attention,omitempty"`
	StartedAt   time.Time  `json:"startedAt"`
	EndedAt     *time.Time `json:"endedAt,omitempty"`
}

// RecordRemediation keeps a run: the first time as begun, later with what became
// of it. The cost is that of the first plan.
func (s *Store) RecordRemediation(ctx context.Context, r Remediation) error {
	const q = `with open as (
			update remediations set steps = $5, waiting = $6, verdict = $7, attention = $8,
				cost = case when cost = 0 then $4 else cost end,
				requested_by = case when requested_by = '' then $3 else requested_by end,
				ended_at = case when $7 <> '' then clock_timestamp() end
			where workflow_id = $1 and ended_at is null returning run)
		insert into remediations (workflow_id, shard, requested_by, cost, steps, waiting, verdict, attention, ended_at)
		select $1, $2, $3, $4, $5, $6, $7, $8, case when $7 <> '' then clock_timestamp() end
		where not exists (select from open)`
	_, err := s.pool.Exec(ctx, q, r.WorkflowID, r.Shard, plainText(r.RequestedBy), r.Cost, r.Steps, r.Waiting, r.Verdict, plainText(r.Attention))
	return decode(err, "record the remediation of shard %s", r.Shard)
}

// Remediations gives the runs that go on and those that began within a time,
// newest first.
func (s *Store) Remediations(ctx context.Context, within time.Duration) ([]Remediation, error) {
	const q = `select m.workflow_id, m.shard, coalesce(l.domain, ''), m.requested_by, m.cost, m.steps, m.waiting, m.verdict, m.attention, m.started_at, m.ended_at
		from remediations m left join shard_layouts l using (shard)
		where m.ended_at is null or m.started_at > clock_timestamp() - $1::interval order by m.run desc`
	rows, err := s.pool.Query(ctx, q, within)
	if err != nil {
		return nil, decode(err, "list remediations")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Remediation, err error) {
		return r, row.Scan(&r.WorkflowID, &r.Shard, &r.Domain, &r.RequestedBy, &r.Cost, &r.Steps, &r.Waiting, &r.Verdict, &r.Attention, &r.StartedAt, &r.EndedAt)
	})
	return all, decode(err, "list remediations")
}

// Stop is the stop switch of all remediation, when it is on.
type Stop struct {
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// StopRemediation turns the switch on: no operation begins any more.
func (s *Store) StopRemediation(ctx context.Context, by, reason string) error {
	const q = `insert into remediation_stop (by_who, reason) values ($1, $2)
		on conflict (one) do update set by_who = excluded.by_who, reason = excluded.reason, at = clock_timestamp()`
	_, err := s.pool.Exec(ctx, q, plainText(by), plainText(reason))
	return decode(err, "stop remediation")
}

// ResumeRemediation turns the switch off.
func (s *Store) ResumeRemediation(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `delete from remediation_stop`)
	return decode(err, "resume remediation")
}

// RemediationStop gives the switch, nil when it is off.
func (s *Store) RemediationStop(ctx context.Context) (*Stop, error) {
	var st Stop
	err := s.pool.QueryRow(ctx, `select by_who, reason, at from remediation_stop`).Scan(&st.By, &st.Reason, &st.At)
	if noRows(err) {
		return nil, nil //nolint:nilnil // off
	}
	return &st, decode(err, "read the stop switch")
}
