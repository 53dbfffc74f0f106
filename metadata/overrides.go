package metadata

import (
	"context"
	"fmt"
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
)

// Override is one, until it is taken away. One past its end has no effect any more,
// and stays until somebody does: its owner is to know.
type Override struct {
	Kind      OverrideKind  `json:"kind"`
	Subject   string        `json:"subject,omitempty"` // the chunk of a pin
	Owner     string        `json:"owner"`
	Reason    string        `json:"reason"`
	SetAt     time.Time     `json:"setAt"`
	ExpiresAt time.Time     `json:"expiresAt"`
	Left      time.Duration `json:"-"` // by the clock of the metadata; negative: it has expired
}

// String says it in one line.
func (o Override) String() string {
	what := map[OverrideKind]string{PauseOverride: "moves are paused", PinOverride: o.Subject + " is pinned"}[o.Kind]
	return fmt.Sprintf("%s by %s until %s: %s", what, o.Owner, o.ExpiresAt.UTC().Format(time.RFC3339), o.Reason)
}

// SetOverride sets an override that ends after lasting, in place of the one that is
// there. "chunk.unknown" for a pin of no chunk.
func (s *Store) SetOverride(ctx context.Context, o Override, lasting time.Duration) error {
	if o.Owner == "" || o.Reason == "" || lasting <= 0 {
		return failure.New(failure.Invalid, "override.incomplete", "an override needs an owner, a reason and an end")
	}
	if o.Kind == PinOverride {
		if _, err := s.Route(ctx, chunk.ID(o.Subject)); err != nil {
			return err
		}
	}
	const q = `insert into overrides (kind, subject, owner, reason, expires_at) values ($1, $2, $3, $4, clock_timestamp() + $5::interval)
		on conflict (kind, subject, detail) where ended_at is null do update
			set owner = excluded.owner, reason = excluded.reason, set_at = clock_timestamp(), expires_at = excluded.expires_at`
	_, err := s.pool.Exec(ctx, q, string(o.Kind), o.Subject, plainText(o.Owner), plainText(o.Reason), lasting)
	return decode(err, "set override %s %s", o.Kind, o.Subject)
}

// EndOverride takes an override away. "override.none" where there is none.
func (s *Store) EndOverride(ctx context.Context, kind OverrideKind, subject, by string) error {
	const q = `update overrides set ended_at = clock_timestamp(), ended_by = $3 where kind = $1 and subject = $2 and ended_at is null`
	tag, err := s.pool.Exec(ctx, q, string(kind), subject, by)
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Invalid, "override.none", "there is no override %s %s", kind, subject).WithHint("drover override list shows them")
	}
	return decode(err, "end override %s %s", kind, subject)
}

// Overrides gives those that nobody has taken away, the one that ends first first.
func (s *Store) Overrides(ctx context.Context) ([]Override, error) {
	const q = `select kind, subject, owner, reason, set_at, expires_at, extract(epoch from expires_at - clock_timestamp())::float8
		from overrides where ended_at is null order by expires_at, id`
	rows, err := s.pool.Query(ctx, q)
	if err != nil {
		return nil, decode(err, "list overrides")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Override, err error) {
		var left float64
		err = row.Scan(&o.Kind, &o.Subject, &o.Owner, &o.Reason, &o.SetAt, &o.ExpiresAt, &left)
		o.Left = time.Duration(left * float64(time.Second))
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

// inForce gives the overrides of a kind that have not expired.
func (s *Store) inForce(ctx context.Context, kind OverrideKind) (out []Override, err error) {
	all, err := s.Overrides(ctx)
	for _, o := range all {
		if o.Kind == kind && o.Left > 0 {
			out = append(out, o)
		}
	}
	return out, err
}
