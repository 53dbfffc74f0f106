package metadata

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// Attempt is one try to switch. Source serves until the publish; in a rollback
// that is the migration's target.
type Attempt struct {
	ID        chunk.AttemptID
	Migration chunk.MigrationID
	Chunk     chunk.ID
	Source    chunk.Placement
	Target    chunk.Placement
	Legs      []Leg // every pair of placements that is switched; one in a move
	State     chunk.AttemptState
	Key       string
	Direction chunk.AttemptID // of the lanes that feed the target: the newest attempt of the migration that was published before
	Deadline  time.Time       // by Postgres' clock
	Left      time.Duration   // until the deadline when it was read, by Postgres' clock; negative past it
	Unbroken  bool            // the metadata's server is the one, without a restart, that the attempt began on
	Overdue   bool            // it holds traffic or leases past its deadline: the watchdog's
	Reason    string
	Term      int64  // of the source's primary at the fence
	Process   string // process id of the source's primary at the fence
	Token     chunk.Token
	Timeline  []Moment
	CreatedAt time.Time
	ChangedAt time.Time
}

// Notice is the attempt as it is announced to proxies.
func (a Attempt) Notice() chunk.Notice {
	n := chunk.Notice{
		Attempt: a.ID, Migration: a.Migration, State: a.State, Source: a.Source.ID, Target: a.Target.ID, Chunks: []chunk.ID{a.Chunk},
	}
	if !a.Deadline.IsZero() {
		n.DeadlineUnixMS = a.Deadline.UnixMilli()
	}
	if len(a.Legs) > 1 {
		n.Chunks = nil
		for _, l := range a.Legs {
			n.Sources, n.Targets, n.Chunks = append(n.Sources, l.Source.ID), append(n.Targets, l.Target.ID), append(n.Chunks, l.Source.Chunk)
		}
		for _, ids := range []*[]chunk.PlacementID{&n.Sources, &n.Targets} {
			slices.Sort(*ids)
			*ids = slices.Compact(*ids)
		}
		slices.Sort(n.Chunks)
		n.Chunks = slices.Compact(n.Chunks)
	}
	return n
}

// Leg is one pair of placements that an attempt switches, in its direction.
type Leg struct {
	Migration chunk.MigrationID
	Source    chunk.Placement
	Target    chunk.Placement
}

// legJSON is a leg as attempt_view gives it.
type legJSON struct {
	Migration chunk.MigrationID `json:"migration"`
	Source    placementJSON     `json:"source"`
	Target    placementJSON     `json:"target"`
}

// placementJSON is a placement as attempt_view gives it.
type placementJSON struct {
	ID       chunk.PlacementID    `json:"id"`
	Chunk    chunk.ID             `json:"chunk"`
	Shard    string               `json:"shard"`
	Database string               `json:"database"`
	State    chunk.PlacementState `json:"state"`
}

// Moment is one change of an attempt's state.
type Moment struct {
	State  chunk.AttemptState `json:"state"`
	At     time.Time          `json:"at"`
	Reason string             `json:"reason"`
}

// attemptColumns are what scanAttempt reads, of attempt_view.
const attemptColumns = `v.id, v.migration, v.chunk, v.state, v.key, v.direction, v.deadline, v.reason, v.source_term, v.source_process,
	v.token, v.timeline, v.created_at, v.changed_at,
	v.source_id, v.source_shard, v.source_database, v.source_state,
	v.target_id, v.target_shard, v.target_database, v.target_state, v.overdue, v.left_seconds, v.same_server,
	v.source_chunk, v.target_chunk, v.legs`

// Statements of the fence window, see hotStatements.
const (
	advanceAttemptSQL = `select ` + attemptColumns + ` from advance_attempt($1, $2, $3, $4, $5, $6, $7) v`
	passAttemptSQL    = `select ` + attemptColumns + ` from ` + unflushed + `, advance_attempt($1, $2, $3, $4, $5, $6, $7) v`
	settleSQL         = `select ` + attemptColumns + ` from settle_attempt($1, $2) v`
	attemptSQL        = `select ` + attemptColumns + ` from attempt_view v where v.id = $1`
	latestAttemptSQL  = `select ` + attemptColumns + ` from attempt_view v where v.migration in
		(select m.lead from migrations m where $1 in (m.chunk, m.target_chunk)) order by v.id desc limit 1`
	openAttemptsSQL = `select ` + attemptColumns + ` from attempt_view v where v.state not in ('done', 'aborted') order by v.id`
	publishSQL      = `select publish_attempt($1, $2, $3, $4)`
)

// scanAttempt reads attemptColumns.
func scanAttempt(row pgx.CollectableRow) (a Attempt, err error) {
	var timeline, legs []byte
	var left float64
	err = row.Scan(&a.ID, &a.Migration, &a.Chunk, &a.State, &a.Key, &a.Direction, &a.Deadline, &a.Reason, &a.Term, &a.Process,
		&a.Token, &timeline, &a.CreatedAt, &a.ChangedAt,
		&a.Source.ID, &a.Source.Shard, &a.Source.Database, &a.Source.State,
		&a.Target.ID, &a.Target.Shard, &a.Target.Database, &a.Target.State, &a.Overdue, &left, &a.Unbroken,
		&a.Source.Chunk, &a.Target.Chunk, &legs)
	if err != nil {
		return a, err
	}
	var all []legJSON
	if err := json.Unmarshal(legs, &all); err != nil {
		return a, err
	}
	for _, l := range all {
		a.Legs = append(a.Legs, Leg{Migration: l.Migration, Source: chunk.Placement(l.Source), Target: chunk.Placement(l.Target)})
	}
	a.Left = time.Duration(left * float64(time.Second))
	return a, json.Unmarshal(timeline, &a.Timeline)
}

// oneAttempt runs a statement that gives one attempt.
func (s *Store) oneAttempt(ctx context.Context, q string, args ...any) (Attempt, error) {
	rows, err := s.pool.Query(ctx, q, args...)
	if err != nil {
		return Attempt{}, err
	}
	return pgx.CollectExactlyOneRow(rows, scanAttempt)
}

// BeginAttempt opens an attempt from the placement that serves now to the other
// one of the migration, state preparing, to be fencing within the time given.
// The same key asking again is given its attempt, whatever has become of it.
//
// Refusals: "attempt.open" (transient: another one is not finished), "attempt.phase" (the
// migration is neither switching nor in burn-in), "attempt.placements" (the
// target is not a mirror), "lease.held_exclusive" (transient: a shard is being
// repaired).
func (s *Store) BeginAttempt(ctx context.Context, id chunk.MigrationID, key string, within time.Duration) (Attempt, error) {
	a, err := s.oneAttempt(ctx, `select `+attemptColumns+` from begin_attempt($1, $2, $3) v`, int64(id), key, within)
	return a, decode(err, "begin attempt of migration %d", id)
}

// AdvanceOptions is what may change together with an attempt's state. A zero
// field leaves what is there.
type AdvanceOptions struct {
	Deadline time.Duration // from now, by Postgres' clock; refused for closing: the fence's stands
	Reason   string
	Term     int64
	Process  string
}

// AdvanceAttempt moves an attempt from one state to another and announces it. It
// is lost ("attempt.is_<state>") where another state is found, and refused past
// the deadline ("attempt.deadline_passed") when it goes to fencing or closing.
// Published is reached by [Store.Publish] alone.
func (s *Store) AdvanceAttempt(ctx context.Context, id chunk.AttemptID, from, to chunk.AttemptState, o AdvanceOptions) (Attempt, error) {
	if !from.CanBecome(to) {
		return Attempt{}, failure.New(failure.Invalid, "attempt.transition", "attempt %d cannot go from %s to %s", id, from, to)
	}
	var within *time.Duration
	if o.Deadline > 0 {
		within = &o.Deadline
	}
	q := advanceAttemptSQL
	if mayBeForgotten(to) {
		q = passAttemptSQL
	}
	a, err := s.oneAttempt(ctx, q, int64(id), string(from), string(to), within, plainText(o.Reason), o.Term, o.Process)
	return a, decode(err, "set attempt %d to %s", id, to)
}

// mayBeForgotten reports whether a crash of the server right behind the change to a
// state does no harm, so that the fence window need not wait for its disk. One that
// was closing is fencing again: its publish is refused, and it goes back. One that
// was open is published again: the watchdog opens it once more, which changes nothing.
func mayBeForgotten(s chunk.AttemptState) bool { return s == chunk.Closing || s == chunk.Open }

// Attempt gives one attempt, or "attempt.unknown".
func (s *Store) Attempt(ctx context.Context, id chunk.AttemptID) (Attempt, error) {
	a, err := s.oneAttempt(ctx, attemptSQL, int64(id))
	if noRows(err) {
		return a, failure.New(failure.Invalid, "attempt.unknown", "there is no attempt %d", id)
	}
	return a, decode(err, "read attempt %d", id)
}

// LatestAttempt gives the newest attempt of a chunk; one with id 0 when there was
// none yet.
func (s *Store) LatestAttempt(ctx context.Context, id chunk.ID) (Attempt, error) {
	a, err := s.oneAttempt(ctx, latestAttemptSQL, string(id))
	if noRows(err) {
		return Attempt{}, nil
	}
	return a, decode(err, "read newest attempt of %s", id)
}

// Announce tells the proxies about an attempt that is still in the state of the notice,
// once more, with what else the notice says; whoever does not hear it misses nothing.
func (s *Store) Announce(ctx context.Context, n chunk.Notice) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	_, err = s.pool.Exec(ctx, `select pg_notify($1, $2) from attempts where id = $3 and state = $4`,
		attemptsChannel, string(text), int64(n.Attempt), string(n.State))
	return decode(err, "announce attempt %d", n.Attempt)
}

// OpenAttempts gives every attempt that is not finished, oldest first.
func (s *Store) OpenAttempts(ctx context.Context) ([]Attempt, error) {
	return s.listAttempts(ctx, openAttemptsSQL)
}

// Attempts gives every attempt of a migration, or of the one that a leg is of,
// oldest first.
func (s *Store) Attempts(ctx context.Context, id chunk.MigrationID) ([]Attempt, error) {
	const where = ` from attempt_view v where v.migration = (select m.lead from migrations m where m.id = $1) order by v.id`
	return s.listAttempts(ctx, `select `+attemptColumns+where, int64(id))
}

// listAttempts runs a statement that gives attempts.
func (s *Store) listAttempts(ctx context.Context, q string, args ...any) ([]Attempt, error) {
	rows, err := s.pool.Query(ctx, q, args...)
	if err != nil {
		return nil, decode(err, "list attempts")
	}
	all, err := pgx.CollectRows(rows, scanAttempt)
	return all, decode(err, "list attempts")
}

// PublishRequest is what a publish is conditional on.
type PublishRequest struct {
	Attempt        chunk.AttemptID
	Leases         []Lease // of the source's and of the target's shard
	CatalogVersion int64   // the one that was validated
}

// leases gives the shards and the epochs of their leases, in one order.
func (r PublishRequest) leases() (shards []string, epochs []int64) {
	for _, l := range r.Leases {
		shards, epochs = append(shards, l.Shard), append(epochs, l.Epoch)
	}
	return shards, epochs
}

// Publish makes an attempt's target the placement that serves, in one transaction
// that is the linearization point of the switch: route and token, the states of
// both placements and of the attempt change together and are announced, or
// nothing changes. It gives the new token; asked again after it was published, the
// same one.
//
// Refusals: lost are "attempt.is_<state>", "publish.lease_lost",
// "publish.placements", "publish.route_moved"; invalid are
// "attempt.deadline_passed", "publish.catalog_changed", "publish.lease_missing".
// Any other error leaves it open whether it was published: see [Store.Settle].
func (s *Store) Publish(ctx context.Context, r PublishRequest) (chunk.Token, error) {
	shards, epochs := r.leases()
	var token chunk.Token
	err := s.pool.QueryRow(ctx, publishSQL, int64(r.Attempt), shards, epochs, r.CatalogVersion).Scan(&token)
	return token, decode(err, "publish attempt %d", r.Attempt)
}

// Settle ends the doubt about a publish that gave no answer. It waits for one
// that is under way; an attempt that was not published is aborting afterwards, so
// that a publish which is still to arrive is refused. The attempt that it gives
// has a token exactly if it was published.
func (s *Store) Settle(ctx context.Context, id chunk.AttemptID, reason string) (Attempt, error) {
	a, err := s.oneAttempt(ctx, settleSQL, int64(id), plainText(reason))
	return a, decode(err, "settle attempt %d", id)
}
