package metadata

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/internal/failure"
)

// The states of a version of the fleet's settings.
const (
	SettingsTrying  = "trying"  // one proxy runs it
	SettingsLive    = "live"    // every proxy runs the newest of these
	SettingsRefused = "refused" // its trial has failed, or nobody has ended it
)

// Settings is one version of what is kept for all proxies and the balancer.
type Settings struct {
	Version   int64      `json:"version"` // 0: there never was one
	Content   string     `json:"content"` // the file as it was applied
	State     string     `json:"state"`
	Canary    string     `json:"canary,omitempty"`  // the proxy that tries it, or has
	Reason    string     `json:"reason,omitempty"`  // of whoever applied it
	Outcome   string     `json:"outcome,omitempty"` // of its trial
	AppliedBy string     `json:"appliedBy"`
	AppliedAt time.Time  `json:"appliedAt"`
	DecidedAt *time.Time `json:"decidedAt,omitempty"`
}

// settingsColumns are what scanSettings reads. A trial past its time has failed.
const settingsColumns = `version, content, case when state = 'trying' and try_until <= clock_timestamp() then 'refused' else state end, canary, reason,
	case when state = 'trying' and try_until <= clock_timestamp() then 'nobody has ended its trial' else outcome end, applied_by, applied_at, decided_at`

// scanSettings reads settingsColumns.
func scanSettings(row pgx.CollectableRow) (s Settings, err error) {
	return s, row.Scan(&s.Version, &s.Content, &s.State, &s.Canary, &s.Reason, &s.Outcome, &s.AppliedBy, &s.AppliedAt, &s.DecidedAt)
}

// SettingsOf gives the settings that a proxy should run: the newest live ones, or those
// that it tries. "" is a proxy that tries none.
func (s *Store) SettingsOf(ctx context.Context, proxy string) (Settings, error) {
	return s.settingsOf(ctx, s.pool, proxy)
}

// settingsOf is SettingsOf within a transaction, or without.
func (s *Store) settingsOf(ctx context.Context, q querier, proxy string) (out Settings, err error) {
	rows, err := q.Query(ctx, `select `+settingsColumns+` from settings
		where state = 'live' or state = 'trying' and canary = $1 and try_until > clock_timestamp() order by version desc limit 1`, proxy)
	if err != nil {
		return out, decode(err, "read the settings of %s", proxy)
	}
	out, err = pgx.CollectExactlyOneRow(rows, scanSettings)
	if noRows(err) {
		return Settings{}, nil
	}
	return out, decode(err, "read the settings of %s", proxy)
}

// KeepSettings adds a version over the live one that was seen, and gives its number.
// With a canary that proxy tries it for a while, without one it is live.
//
// Refusals: "settings.trying", "settings.changed".
func (s *Store) KeepSettings(ctx context.Context, n Settings, over int64, try time.Duration) (version int64, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtext('drover.settings'))`); err != nil {
			return err
		}
		const expire = `update settings set state = 'refused', outcome = 'nobody has ended its trial', decided_at = clock_timestamp()
			where state = 'trying' and try_until <= clock_timestamp()`
		if _, err := tx.Exec(ctx, expire); err != nil {
			return err
		}
		var open Settings
		err := tx.QueryRow(ctx, `select version, canary, applied_by from settings where state = 'trying'`).Scan(&open.Version, &open.Canary, &open.AppliedBy)
		if err == nil {
			return failure.New(failure.Invalid, "settings.trying", "%s is trying version %d, by %s", open.Canary, open.Version, open.AppliedBy).
				WithHint("wait for the end of its trial: drover config history")
		}
		if !noRows(err) {
			return err
		}
		live, err := s.settingsOf(ctx, tx, "")
		if err != nil {
			return err
		}
		if live.Version != over {
			return failure.New(failure.Invalid, "settings.changed", "version %d is live now, by %s; the change was made to version %d", live.Version, live.AppliedBy, over).
				WithHint("look at what it changes now: drover config diff")
		}
		n.State = SettingsLive
		if n.Canary != "" {
			n.State = SettingsTrying
		}
		const q = `insert into settings (content, state, canary, try_until, reason, applied_by, decided_at)
			values ($1, $2, $3, case when $2 = 'trying' then clock_timestamp() + $4::interval end, $5, $6, case when $2 = 'live' then clock_timestamp() end)
			returning version`
		return tx.QueryRow(ctx, q, n.Content, n.State, n.Canary, try, n.Reason, n.AppliedBy).Scan(&version)
	})
	return version, decode(err, "keep settings")
}

// DecideSettings ends a trial: the version is live, or refused. One that was ended
// already, or is past its time, is lost.
//
// Refusals: "settings.not_trying".
func (s *Store) DecideSettings(ctx context.Context, version int64, state, outcome string) error {
	const q = `update settings set state = $2, outcome = $3, decided_at = clock_timestamp()
		where version = $1 and state = 'trying' and ($2 <> 'live' or try_until > clock_timestamp())`
	tag, err := s.pool.Exec(ctx, q, version, state, outcome)
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Lost, "settings.not_trying", "version %d is not being tried any more", version).WithHint("drover config history shows what became of it")
	}
	return decode(err, "decide on settings %d", version)
}

// AllSettings gives the newest versions.
func (s *Store) AllSettings(ctx context.Context, limit int) ([]Settings, error) {
	rows, err := s.pool.Query(ctx, `select `+settingsColumns+` from settings order by version desc limit $1`, limit)
	if err != nil {
		return nil, decode(err, "list settings")
	}
	all, err := pgx.CollectRows(rows, scanSettings)
	return all, decode(err, "list settings")
}
