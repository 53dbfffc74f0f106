package metadata

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// OverrideKind is what a person overrides.
type OverrideKind string

// The kinds of overrides.
const (
	PauseOverride OverrideKind = "pause" // no move begins
	PinOverride   OverrideKind = "pin"   // a chunk stays where it is, whatever the balancer plans
	// WaiverOverride lets a move of a chunk pass a check that somebody set the limit of.
	WaiverOverride OverrideKind = "waiver"
	QuotaOverride  OverrideKind = "quota" // proxies let a logical database have more than its policy says
	LeaseOverride  OverrideKind = "lease" // a shard's exclusive lease by hand; its row is that of the lease
)

// operatorHolder begins the name of who holds a lease by hand.
const operatorHolder = "operator/"

// OperatorHolder names a person as holder of a lease.
func OperatorHolder(user string) string { return operatorHolder + user }

// Override is one, until it is taken away. One past its end has no effect any more,
// and stays until somebody does: its owner is to know.
type Override struct {
	Kind      OverrideKind    `json:"kind"`
	Subject   string          `json:"subject,omitempty"` // a chunk, of a quota a logical database, of a lease a shard
	Detail    string          `json:"detail,omitempty"`  // of a waiver the check
	Value     json.RawMessage `json:"value,omitempty"`   // of a quota what the database gets; the proxies know its shape
	Owner     string          `json:"owner"`
	Reason    string          `json:"reason"`
	SetAt     time.Time       `json:"setAt"`
	ExpiresAt time.Time       `json:"expiresAt"`
	Expired   bool            `json:"expired"`
	Left      time.Duration   `json:"-"` // by the clock of the metadata; negative: it has expired
}

// Of names what is overridden.
func (o Override) Of() string { return strings.TrimSpace(o.Subject + " " + o.Detail) }

// String says it in one line.
func (o Override) String() string {
	what := map[OverrideKind]string{
		PauseOverride: "moves are paused", PinOverride: o.Subject + " is pinned", WaiverOverride: o.Detail + " is waived",
		QuotaOverride: "the quota of " + o.Subject + " is raised", LeaseOverride: o.Subject + " is leased",
	}[o.Kind]
	return fmt.Sprintf("%s by %s until %s: %s", what, o.Owner, o.ExpiresAt.UTC().Format(time.RFC3339), o.Reason)
}

// SetOverride sets an override that ends after lasting, in place of the one that is
// there. Refusals: "chunk.unknown", "database.unknown", "override.incomplete".
func (s *Store) SetOverride(ctx context.Context, o Override, lasting time.Duration) error {
	if o.Owner == "" || o.Reason == "" || lasting <= 0 {
		return failure.New(failure.Invalid, "override.incomplete", "an override needs an owner, a reason and an end")
	}
	var err error
	switch o.Kind {
	case PinOverride, WaiverOverride:
		_, err = s.Route(ctx, chunk.ID(o.Subject))
	case QuotaOverride:
		_, err = s.Database(ctx, o.Subject)
	case PauseOverride:
	case LeaseOverride:
		err = failure.New(failure.Invalid, "override.incomplete", "a lease is taken by drover lease take")
	}
	if err != nil {
		return err
	}
	const q = `insert into overrides (kind, subject, detail, value, owner, reason, expires_at) values ($1, $2, $3, $4, $5, $6, clock_timestamp() + $7::interval)
		on conflict (kind, subject, detail) where ended_at is null do update set value = excluded.value,
			owner = excluded.owner, reason = excluded.reason, set_at = clock_timestamp(), expires_at = excluded.expires_at`
	_, err = s.pool.Exec(ctx, q, string(o.Kind), o.Subject, o.Detail, orEmptyJSON(o.Value), plainText(o.Owner), plainText(o.Reason), lasting)
	return decode(err, "set override %s %s", o.Kind, o.Of())
}

// EndOverride takes an override away; kind, subject and detail name it. Refusals: "override.none".
func (s *Store) EndOverride(ctx context.Context, o Override, by string) error {
	const q = `update overrides set ended_at = clock_timestamp(), ended_by = $4 where kind = $1 and subject = $2 and detail = $3 and ended_at is null`
	tag, err := s.pool.Exec(ctx, q, string(o.Kind), o.Subject, o.Detail, plainText(by))
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Invalid, "override.none", "there is no override %s %s", o.Kind, o.Of()).WithHint("drover override list shows them")
	}
	return decode(err, "end override %s %s", o.Kind, o.Of())
}

// Overrides gives those that nobody has taken away, the one that ends first first.
func (s *Store) Overrides(ctx context.Context) ([]Override, error) {
	return s.overrides(ctx, `select kind, subject, detail, value, owner, reason, set_at, expires_at from overrides where ended_at is null`)
}

// OverridesAndLeases gives the leases by hand too.
func (s *Store) OverridesAndLeases(ctx context.Context) ([]Override, error) {
	return s.overrides(ctx, `select kind, subject, detail, value, owner, reason, set_at, expires_at from overrides where ended_at is null
		union all select 'lease', shard, '', '{}', substr(holder, length($1) + 1), reason, since, expires_at from leases
			where granted and mode = 'exclusive' and starts_with(holder, $1)`, operatorHolder)
}

// overrides reads what a statement gives.
func (s *Store) overrides(ctx context.Context, q string, args ...any) ([]Override, error) {
	rows, err := s.pool.Query(ctx, `select o.*, extract(epoch from expires_at - clock_timestamp())::float8 from (`+q+`) o order by expires_at, kind, subject, detail`, args...)
	if err != nil {
		return nil, decode(err, "list overrides")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Override, err error) {
		var left float64
		var value []byte
		err = row.Scan(&o.Kind, &o.Subject, &o.Detail, &value, &o.Owner, &o.Reason, &o.SetAt, &o.ExpiresAt, &left)
		if o.Kind == QuotaOverride {
			o.Value = value
		}
		o.Left = time.Duration(left * float64(time.Second))
		o.Expired = o.Left <= 0
		return o, err
	})
	return all, decode(err, "list overrides")
}

// Paused says in words why no move may begin now; "" when they may.
func (s *Store) Paused(ctx context.Context) (string, error) {
	all, err := s.inForce(ctx, PauseOverride)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[0].String(), nil
}

// Pins gives the chunks that people have pinned, each with why.
func (s *Store) Pins(ctx context.Context) (map[chunk.ID]string, error) {
	all, err := s.inForce(ctx, PinOverride)
	out := map[chunk.ID]string{}
	for _, o := range all {
		out[chunk.ID(o.Subject)] = o.String()
	}
	return out, err
}

// Waivers gives the checks that people have waived for a chunk, each with why.
func (s *Store) Waivers(ctx context.Context, id chunk.ID) (map[string]string, error) {
	all, err := s.inForce(ctx, WaiverOverride)
	out := map[string]string{}
	for _, o := range all {
		if o.Subject == string(id) {
			out[o.Detail] = o.String()
		}
	}
	return out, err
}

// RaisedQuotas gives what logical databases get beyond their policy, for the proxies.
func (s *Store) RaisedQuotas(ctx context.Context) (map[string][]byte, error) {
	all, err := s.inForce(ctx, QuotaOverride)
	out := map[string][]byte{}
	for _, o := range all {
		out[o.Subject] = o.Value
	}
	return out, err
}

// inForce gives the overrides of a kind that have not expired.
func (s *Store) inForce(ctx context.Context, kind OverrideKind) (out []Override, err error) {
	all, err := s.Overrides(ctx)
	for _, o := range all {
		if o.Kind == kind && !o.Expired {
			out = append(out, o)
		}
	}
	return out, err
}
